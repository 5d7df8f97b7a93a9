"""Training speed on Set Complement against the usual ways to train many small models.

    python benchmarks/set_complement.py [--quick] [--json FILE] [--cases sct-v9-s8 ...] [--systems jax-vmap ...]

Everyone does the whole work of a step with minibatches of 256 sequences, placement peri, d = d_v = v - 1, d_k = 1:
draw a minibatch, forward, backward, clip each model's gradient, AdamW with its schedule, moving average. Ours share a
minibatch among sixteen models, as the random streams of the search have it. `jax-vmap` is the plain vmap of one model's
training, each model with a key of its own; drawing is a good part of its time, so `jax-vmap-shared` shares minibatches
as ours do. The torch peers share them among all models of an ensemble. Peers draw by their own generator.

Every system runs in processes of its own and uses all cores the better way (one process with all threads, or one
single-threaded process a core) at the better of a few ensemble sizes. Numbers are model-steps/s, the best of several
short timings.

The last table says what share of the machine's peak (a loop of fused multiply-adds on all cores) native reaches,
counting the operations that its kernel performs, and what rate that would be for the formula as printed, computed at
every position of every sequence.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CASES = ("sct-v9-s2", "sct-v9-s8", "sct-v16-s2", "sct-v16-s8", "sct-v25-s2", "sct-v25-s8")
SYSTEMS = (
    "resharpen-native",
    "resharpen-torch",
    "torch-loop",
    "torch-vmap",
    "torch-compile",
    "jax-vmap",
    "jax-vmap-shared",
)
OURS = ("resharpen-native", "resharpen-torch")
SIZES = {
    "resharpen-torch": (16,),
    "torch-loop": (1,),
    "torch-vmap": (16,),
    "torch-compile": (16,),
    "jax-vmap": (64,),
    "jax-vmap-shared": (64,),
}
"""Ensemble sizes to try; native has the sixteen of a group."""
MORE_SIZES = {"torch-vmap": (16, 64), "torch-compile": (16, 64), "jax-vmap": (16, 64), "jax-vmap-shared": (16, 64)}
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
N, STEPS = 256, 100_000
RATE, BETAS, ADAM_EPSILON, DECAY, CLIP, NORM_EPSILON, EMA = 1e-3, (0.9, 0.99), 1e-9, 1e-2, 1.0, 1e-6, 0.01
WARMUP, END = 100, 0.1


def sizes_of(case: str) -> tuple[int, int]:
    v, s = case.removeprefix("sct-v").split("-s")
    return int(v), int(s)


def make_problem(case: str):
    from resharpen.engines.base import Problem
    from resharpen.models import PLACEMENTS, Minimal
    from resharpen.tasks import SetComplement

    v, s = sizes_of(case)
    return Problem(SetComplement(v), Minimal.smallest(v), PLACEMENTS["peri"], s, N, STEPS, seed=0, setting=case)


def ours(system: str, case: str, n_models: int) -> Callable[[int], Any]:
    from resharpen.engines.base import Ensemble
    from resharpen.optim.hyperparameters import TABLE, draw

    problem, draws = make_problem(case), np.arange(n_models)
    ensemble = Ensemble(draws, draw(TABLE, 0, problem.setting, draws))
    if system == "resharpen-native":
        from resharpen.engines.native import NativeEngine

        return NativeEngine(problem, ensemble).advance
    from resharpen.engines.torch_engine import TorchEngine

    return TorchEngine(problem, ensemble).advance


# ---- peers ----------------------------------------------------------------------------------------------------------


def initial(case: str, n_models: int) -> dict[str, np.ndarray]:
    from resharpen.engines.base import Ensemble, initial_state, part

    draws = np.arange(n_models)
    groups = [initial_state(make_problem(case), Ensemble(g, {})) for g in np.split(draws, range(16, n_models, 16))]
    return {name: np.concatenate([part(g, "theta")[name] for g in groups]) for name in part(groups[0], "theta")}


def spared(name: str) -> bool:
    """Without weight decay: embeddings and gains."""
    return name == "E" or name.startswith("g_")


def rate_at(step: Any, where: Callable[..., Any]) -> Any:
    return RATE * where(step < WARMUP, (step + 1) / WARMUP, 1 - (1 - END) * (step - WARMUP) / (STEPS - 1 - WARMUP))


def torch_loop(case: str, n_models: int) -> Callable[[int], Any]:
    """One nn.Module, one optimizer, one model at a time."""
    import torch
    from torch import nn

    v, s = sizes_of(case)
    d = v - 1

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(v, d)
            self.norm_in, self.norm_out, self.norm_final = (nn.RMSNorm(d, NORM_EPSILON) for _ in range(3))
            self.query, self.key = nn.Linear(d, 1, bias=False), nn.Linear(d, 1, bias=False)
            self.value, self.output = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
            self.unembedding = nn.Linear(d, v, bias=False)
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)

        def forward(self, tokens):
            x = self.embedding(tokens)
            h = self.norm_in(x)
            attended = nn.functional.scaled_dot_product_attention(
                self.query(h), self.key(h), self.value(h), is_causal=True
            )
            return self.unembedding(self.norm_final(x + self.norm_out(self.output(attended))))

    model = Model()
    parameters = list(model.parameters())
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and "embedding." not in name[:10]]
    rest = [p for p in parameters if all(p is not q for q in decayed)]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM_EPSILON, weight_decay=DECAY, foreach=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_at(step, lambda c, a, b: a if c else b) / RATE
    )
    average = [p.detach().clone() for p in parameters]

    def run(steps: int) -> None:
        for _ in range(steps):
            tokens = torch.rand(N, v).argsort(1)[:, : s + 1]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                torch._foreach_lerp_(average, parameters, EMA)

    return run


def single_loss(xp, softmax, log_softmax, theta, one_hot, future):
    """The loss of one model on sequences [N, s + 1, V] given as one-hot rows."""

    def norm(x, gain):
        return x / xp.sqrt((x * x).mean(-1)[..., None] + NORM_EPSILON) * gain

    x = one_hot[:, :-1] @ theta["E"]
    h = norm(x, theta["g_block_in"])
    logits = (h @ theta["W_Q"]) * (h @ theta["W_K"])[..., 0][:, None, :]
    attention = softmax(xp.where(future, -1e30, logits))
    y = norm(attention @ (h @ theta["W_V"]) @ theta["W_O"], theta["g_block_out"])
    log_p = log_softmax(norm(x + y, theta["g_unembedding_in"]) @ theta["U"])
    return -(log_p * one_hot[:, 1:]).sum(-1).mean()


def hyperparameters(xp, n_models: int) -> list[Any]:
    return [xp.full((n_models,), x) for x in (1 - BETAS[0], 1 - BETAS[1], ADAM_EPSILON, DECAY, CLIP, EMA)]


def torch_functional(case: str, n_models: int, compiled: bool) -> Callable[[int], Any]:
    """torch.func: vmap of grad of a single model's loss, and an update on stacked parameters."""
    import torch
    from torch.func import grad, vmap

    v, s = sizes_of(case)
    theta = {name: torch.tensor(x) for name, x in initial(case, n_models).items()}
    moments = {name: [torch.zeros_like(x), torch.zeros_like(x), x.clone()] for name, x in theta.items()}
    hyper = hyperparameters(torch, n_models)
    future = torch.ones(s, s).triu(1).bool()

    def loss(theta, one_hot):
        return single_loss(torch, lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), theta, one_hot, future)

    def step(theta, moments, t):
        tokens = torch.rand(N, v).argsort(1)[:, : s + 1]
        gradients = vmap(grad(loss), in_dims=(0, None))(theta, torch.nn.functional.one_hot(tokens, v).float())
        c1, c2, epsilon, decay, clip, ema = hyper
        norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        factor, rate = torch.where(norm > clip, clip / norm, 1.0), rate_at(t, torch.where)
        new_theta, new_moments = {}, {}
        for name, x in theta.items():

            def each(y, ndim=x.ndim):
                return y.view(-1, *(1,) * (ndim - 1))

            g, (m, v2, average) = gradients[name] * each(factor), moments[name]
            m, v2 = m + each(c1) * (g - m), v2 + each(c2) * (g * g - v2)
            direction = m / each(1 - (1 - c1) ** (t + 1))
            direction = direction / ((v2 / each(1 - (1 - c2) ** (t + 1))).sqrt() + each(epsilon))
            x = x - rate * (direction + (0 if spared(name) else each(decay) * x))
            new_theta[name], new_moments[name] = x, [m, v2, average + each(ema) * (x - average)]
        return new_theta, new_moments

    step = torch.compile(step) if compiled else step
    done = 0

    @torch.no_grad()
    def run(steps: int) -> None:
        nonlocal theta, moments, done
        for _ in range(steps):
            theta, moments = step(theta, moments, torch.tensor(float(done)))
            done += 1

    return run


def jax_vmap(case: str, n_models: int, sharing: int) -> Callable[[int], Any]:
    """jit(vmap(scan of steps)) of a single model's training; so many models have the same key."""
    import jax
    import jax.numpy as jnp

    v, s = sizes_of(case)
    future = jnp.triu(jnp.ones((s, s), bool), 1)

    def loss(theta, one_hot):
        return single_loss(jnp, jax.nn.softmax, jax.nn.log_softmax, theta, one_hot, future)

    def train(theta, m, v2, average, hyper, key, first, order):
        c1, c2, epsilon, decay, clip, ema = hyper

        def step(carry, i):
            theta, m, v2, average = carry
            t = first + i
            tokens = jax.random.uniform(jax.random.fold_in(key, t), (N, v)).argsort(1)[:, : s + 1]
            g = jax.grad(loss)(theta, jax.nn.one_hot(tokens, v))
            norm = jnp.sqrt(sum((x * x).sum() for x in g.values()))
            g = {name: x * jnp.where(norm > clip, clip / norm, 1.0) for name, x in g.items()}
            m = {name: m[name] + c1 * (g[name] - m[name]) for name in g}
            v2 = {name: v2[name] + c2 * (g[name] ** 2 - v2[name]) for name in g}
            rate = rate_at(t, jnp.where)

            def advance(name):
                direction = m[name] / (1 - (1 - c1) ** (t + 1))
                direction = direction / (jnp.sqrt(v2[name] / (1 - (1 - c2) ** (t + 1))) + epsilon)
                return theta[name] - rate * (direction + (0.0 if spared(name) else decay * theta[name]))

            theta = {name: advance(name) for name in g}
            average = {name: average[name] + ema * (theta[name] - average[name]) for name in g}
            return (theta, m, v2, average), None

        return jax.lax.scan(step, (theta, m, v2, average), order)[0]

    groups = n_models // sharing
    of_group = jax.vmap(train, in_axes=(0, 0, 0, 0, 0, None, None, None))
    run_all = jax.jit(jax.vmap(of_group, in_axes=(0, 0, 0, 0, 0, 0, None, None)))
    theta = {name: jnp.asarray(x).reshape(groups, sharing, *x.shape[1:]) for name, x in initial(case, n_models).items()}
    zeros = {name: jnp.zeros_like(x) for name, x in theta.items()}
    hyper = [x.reshape(groups, sharing) for x in hyperparameters(jnp, n_models)]
    state, keys, done = (theta, zeros, zeros, theta), jax.random.split(jax.random.key(0), groups), 0

    def run(steps: int) -> None:
        nonlocal state, done
        state = run_all(*state, hyper, keys, done, jnp.arange(steps))
        jax.block_until_ready(state)
        done += steps

    return run


PEERS = {
    "torch-loop": torch_loop,
    "torch-vmap": lambda case, n: torch_functional(case, n, compiled=False),
    "torch-compile": lambda case, n: torch_functional(case, n, compiled=True),
    "jax-vmap": lambda case, n: jax_vmap(case, n, sharing=1),
    "jax-vmap-shared": lambda case, n: jax_vmap(case, n, sharing=16),
}
NEEDS = {
    "torch-loop": "torch",
    "torch-vmap": "torch",
    "torch-compile": "torch",
    "jax-vmap": "jax",
    "jax-vmap-shared": "jax",
}


# ---- timing ---------------------------------------------------------------------------------------------------------


def measure(run: Callable[[int], Any], n_models: int, seconds: float, steps: int, processes: int) -> float:
    """Model-steps/s of this process: the best of short timings, all processes starting together."""
    run(steps)
    run(steps)
    if processes > 1:  # the others are ready too
        print("ready", flush=True)
        sys.stdin.readline()
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        run(steps)
        best = min(best, time.perf_counter() - start)
    return n_models * steps / best


def worker(system: str, case: str, n_models: int, seconds: float, processes: int) -> None:
    if NEEDS.get(system) == "torch" or system == "resharpen-torch":
        import torch

        torch.set_num_threads(1 if processes > 1 else CORES)
    run = ours(system, case, n_models) if system in OURS else PEERS[system](case, n_models)
    steps = 40 if system == "resharpen-native" else 5
    print(measure(run, n_models, seconds, steps, processes), flush=True)


def speed(system: str, case: str, n_models: int, seconds: float, processes: int) -> float:
    """Model-steps/s of so many processes at once, together."""
    threads = {name: str(1 if processes > 1 else CORES) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if processes > 1 and NEEDS.get(system) == "jax":
        threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    command = [sys.executable, __file__, "--worker", system, case, str(n_models), str(seconds), str(processes)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": os.environ | threads}
    running = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    if processes > 1:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    total = 0.0
    for process in running:
        out = process.communicate()[0]
        total += float(out.splitlines()[-1]) if process.returncode == 0 and out.strip() else 0.0
    return total


def best_speed(system: str, case: str, seconds: float, quick: bool) -> float:
    if system == "resharpen-native":
        return speed(system, case, 16, seconds, CORES)
    # One single-threaded process a core is nearly always the better way, and threads collapse on a busy machine.
    ways = (CORES,) if quick or system in OURS or system == "torch-loop" or CORES == 1 else (CORES, 1)
    sizes = SIZES[system] if quick else MORE_SIZES.get(system, SIZES[system])
    return max(speed(system, case, n, seconds, processes) for processes in ways for n in sizes)


# ---- the machine's peak ---------------------------------------------------------------------------------------------

PEAK_SOURCE = """
typedef float Vector __attribute__((vector_size(BYTES)));
extern "C" float run(long n) {
    Vector x[12], a = 0.999f - Vector{}, b = 0.001f - Vector{};
    for (int i = 0; i < 12; i++) x[i] = float(i) - Vector{};
    for (long k = 0; k < n; k++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) x[i] = x[i] * a + b;
    float sum = 0;
    for (auto& v : x) sum += v[0];
    return sum;
}
"""


def peak_flops(seconds: float = 1.0) -> float:
    """Floating point operations a second of a loop of fused multiply-adds, on all cores: the best vector width."""
    with tempfile.TemporaryDirectory() as directory:
        return CORES * max(_peak_of(width, Path(directory), seconds) for width in (16, 32, 64))


def _peak_of(width: int, directory: Path, seconds: float) -> float:
    from resharpen.engines.native.build import find_compiler

    source, library = directory / "peak.cpp", directory / f"peak{width}.so"
    source.write_text(PEAK_SOURCE)
    flags = ["-O2", "-march=native", "-ffp-contract=fast", "-w", "-fPIC", "-shared", f"-DBYTES={width}"]
    subprocess.run([find_compiler(), *flags, str(source), "-o", str(library)], check=True)
    run = ctypes.CDLL(str(library)).run
    run.argtypes, run.restype = [ctypes.c_long], ctypes.c_float
    best, until, n = float("inf"), time.perf_counter() + seconds, 100_000
    while time.perf_counter() < until:
        start = time.perf_counter()
        run(n)
        best = min(best, time.perf_counter() - start)
    return 2 * 12 * n * (width // 4) / best


def operations(case: str) -> tuple[float, float]:
    """Floating point operations of a model-step: those of the native kernel, and those of the formula as printed."""
    v, s = sizes_of(case)
    d, problem = v - 1, make_problem(case)
    states = tokens = 0.0
    for step in range(4):
        inputs = problem.minibatch(0, step)[0]
        sets = np.bitwise_or.accumulate(np.int64(1) << inputs, axis=1)
        for i in range(s):
            keys = np.stack([inputs[:, i], sets[:, i]], axis=1)
            n = len(np.unique(keys, axis=0)) if v <= 10 or i < 2 else len(keys)
            states, tokens = states + n / 4, tokens + n * (i + 1) / 4
    columns = v + 1 + d
    subsets = v <= 9 and s >= 5
    attention = states * 3 * columns if subsets else tokens * 6 * columns
    per_token = 3 * 2 * (2 * v * d + 2 * v * d * d + 2 * v * d * v + v * v)
    weights = 2 * v * d + 2 * d * d + 2 * d + 3 * d
    kernel = attention + states * (26 * v + 17 * d) + per_token + 20 * weights
    positions = N * s
    printed = 3 * 2 * (positions * (2 * d + 2 * d * d + d * v) + N * s * (s + 1) / 2 * (1 + d)) + 20 * weights
    return kernel, printed


# ---- the report -----------------------------------------------------------------------------------------------------


def print_tables(rows: list[dict[str, Any]], peak: float) -> None:
    from rich.console import Console
    from rich.table import Table

    values = {(row["case"], row["system"]): row["value"] for row in rows}
    cases = list(dict.fromkeys(row["case"] for row in rows))
    table = Table(title=f"Model-steps a second on {CORES} cores (N = {N}, peri); in brackets native's multiple")
    table.add_column("system")
    for case in cases:
        table.add_column(case, justify="right")
    for system in dict.fromkeys(row["system"] for row in rows):
        cells = []
        for case in cases:
            value, native = values.get((case, system)), values.get((case, "resharpen-native"))
            ratio = f" ({native / value:,.0f}x)" if value and native and system != "resharpen-native" else ""
            cells.append(f"{value:,.0f}{ratio}" if value else "-")
        table.add_row(system, *cells)
    console = Console(width=max(100, 24 + 20 * len(cases)))
    console.print(table)
    table = Table(title=f"Native against a peak of {peak / 1e9:,.0f} GFLOP/s")
    for column in ("case", "us a model-step and core", "GFLOP/s", "share of peak", "as if printed, GFLOP/s"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in cases:
        if native := values.get((case, "resharpen-native")):
            kernel, printed = operations(case)
            share = f"{kernel * native / peak:.0%}"
            table.add_row(
                case,
                f"{1e6 * CORES / native:.2f}",
                f"{kernel * native / 1e9:,.0f}",
                share,
                f"{printed * native / 1e9:,.0f}",
            )
    console.print(table)


def available(system: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(NEEDS.get(system, "resharpen")) is not None


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        system, case, n_models, seconds, processes = sys.argv[2:]
        worker(system, case, int(n_models), float(seconds), int(processes))
        return
    parser = argparse.ArgumentParser(description="Training speed on Set Complement.")
    parser.add_argument("--quick", action="store_true", help="one case, no torch.compile, about a minute")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing, for each system, case and way")
    arguments = parser.parse_args()
    cases = arguments.cases or (("sct-v9-s8",) if arguments.quick else CASES)
    slow = ("torch-compile", "jax-vmap-shared") if arguments.quick else ()
    systems = arguments.systems or [s for s in SYSTEMS if s not in slow]
    rows: list[dict[str, Any]] = []
    for system in systems:
        if not available(system):
            print(f"{system}: {NEEDS[system]} is not installed, skipped (pip install -e .[bench])", file=sys.stderr)
            continue
        for case in cases:
            value = best_speed(system, case, arguments.seconds, arguments.quick)
            if value == 0:
                print(f"{case}: {system} did not run, skipped", file=sys.stderr)
                continue
            rows.append({"case": case, "system": system, "unit": "model-steps/s", "value": value})
    print_tables(rows, peak_flops())
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
