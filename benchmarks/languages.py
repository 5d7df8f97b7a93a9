"""Training speed of the transformer on formal languages against the usual ways to train many small models.

    python benchmarks/languages.py [--quick] [--json FILE] [--cases tomita3 ...] [--systems jax-vmap ...]

Everyone trains models of two layers, d = 64 (placement peri), on the same four minibatches of 64 sequences, with
clipping, AdamW and the moving average; ours draws its minibatches itself. The peers pad: the plain loop to the longest
sequence of a minibatch, what is compiled for fixed shapes (torch.compile, JAX) to the maximum training length. Every
system runs in processes of its own and uses all cores the better way: one process with all threads, or one
single-threaded process a core. Numbers are model-steps/s, the best of several timings of those four steps.
"""

from __future__ import annotations

import argparse
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

CASES = ("full100", "tomita3", "dyck8-10")
SYSTEMS = ("resharpen-native", "resharpen-torch", "torch-loop", "torch-compile", "jax-vmap")
OURS = ("resharpen-native", "resharpen-torch")
SIZES = {"resharpen-native": (4,), "resharpen-torch": (2,), "jax-vmap": (1, 4)}
"""Ensemble sizes to try, 1 where not given; at length 700 JAX fits one model."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
STEPS = 4
RATE, BETAS, ADAM_EPSILON, DECAY, CLIP, NORM_EPSILON, EMA = 1e-3, (0.9, 0.99), 1e-9, 1e-2, 1.0, 1e-6, 0.01
LAYERS, D, HEADS = 2, 64, 4


# ---- the work -------------------------------------------------------------------------------------------------------


def make_problem(case: str):
    from resharpen.engines.base import Problem
    from resharpen.models import PLACEMENTS
    from resharpen.models.transformer import Transformer
    from resharpen.tasks.dyck import Dyck
    from resharpen.tasks.tomita import Tomita

    task = Dyck(8, 10) if case == "dyck8-10" else Tomita(3)
    return Problem(task, Transformer(task.vocabulary), PLACEMENTS["peri"], task.cap, 64, 100_000, seed=0, setting=case)


def minibatches(case: str) -> list[tuple[np.ndarray, ...]]:
    """Inputs, targets and which are real, [N, L]; `full100` is rows without an end."""
    problem = make_problem(case)
    if case != "full100":
        return [problem.minibatch(0, step) for step in range(STEPS)]
    tokens = np.random.default_rng(0).integers(0, 2, (STEPS, 64, 101))
    tokens[:, :, 0] = problem.task.automaton.bos
    return [(x[:, :-1], x[:, 1:], np.ones((64, 100), bool)) for x in tokens]


def work(case: str) -> tuple[float, float]:
    """Real tokens and floating point operations of a model-step: what the formula needs, without padding."""
    lengths = [real.sum(1) for _, _, real in minibatches(case)]
    length = np.concatenate(lengths).astype(float)
    matrices = LAYERS * 12 * D * D + D * make_problem(case).task.vocabulary
    attention = LAYERS * 2 * 2 * D * length * (length + 1) / 2
    return length.sum() / STEPS, float(3 * (2 * matrices * length + attention).sum() / STEPS)


def padded(case: str, to: int | None) -> list[tuple[np.ndarray, ...]]:
    """The minibatches padded to the given length."""
    found = []
    for batch in minibatches(case):
        width = 0 if to is None else to - batch[0].shape[1]
        found.append(tuple(np.pad(x, ((0, 0), (0, width))) for x in batch))
    return found


# ---- ours -----------------------------------------------------------------------------------------------------------


def ours(system: str, case: str, n_models: int) -> Callable[[], float]:
    from resharpen.engines.base import Ensemble
    from resharpen.optim.hyperparameters import TABLE, draw

    problem, draws = make_problem(case), np.arange(n_models)
    ensemble = Ensemble(draws, draw(TABLE, 0, problem.setting, draws))
    if system == "resharpen-native":
        from resharpen.engines.native.transformer import NativeTransformer

        engine = NativeTransformer(problem, ensemble)
    else:
        from resharpen.engines.torch_engine import TorchEngine

        engine = TorchEngine(problem, ensemble)
    start = engine.dump()
    given = minibatches(case) if case == "full100" else None

    def run() -> float:
        engine.load(start)  # back to the same minibatches
        began = time.perf_counter()
        engine.advance(STEPS, given)
        return time.perf_counter() - began

    return run


# ---- peers ----------------------------------------------------------------------------------------------------------


def torch_loop(case: str, n_models: int, compiled: bool = False) -> Callable[[], float]:
    """One nn.Module, one optimizer."""
    import torch
    from torch import nn
    from torch.nn import functional

    v = make_problem(case).task.vocabulary
    cap = make_problem(case).train_length
    angle = np.arange(cap)[:, None] * 10_000.0 ** (-2 * np.arange(D // HEADS // 2) / (D // HEADS))
    cosine, sine = (torch.tensor(f(angle), dtype=torch.float32) for f in (np.cos, np.sin))

    def rotate(x):
        a, b = x.chunk(2, -1)
        c, s = cosine[: x.shape[-2]], sine[: x.shape[-2]]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def linear(i, o):
        layer = nn.Linear(i, o, bias=False)
        nn.init.normal_(layer.weight, std=0.02)
        return layer

    def norm():
        return nn.RMSNorm(D, eps=NORM_EPSILON)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out, self.up, self.down = linear(D, 3 * D), linear(D, D), linear(D, 4 * D), linear(4 * D, D)
            self.norms = nn.ModuleList([norm() for _ in range(4)])

        def forward(self, x):
            q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
            y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + self.norms[1](self.out(y.transpose(1, 2).flatten(-2)))
            return x + self.norms[3](self.down(functional.gelu(self.up(self.norms[2](x)))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.layers = nn.Embedding(v, D), nn.Sequential(*(Layer() for _ in range(LAYERS)))
            self.norm, self.unembedding = norm(), linear(D, v)

        def forward(self, inputs, targets, real):
            logits = self.unembedding(self.norm(self.layers(self.embedding(inputs))))
            nll = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            return (nll * real.flatten()).sum() / real.sum()

    model = Model()
    parameters = list(model.parameters())
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and name != "embedding.weight"]
    spared = [p for p in parameters if not any(p is q for q in decayed)]
    groups = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM_EPSILON, weight_decay=DECAY, foreach=True)
    average = [p.detach().clone() for p in parameters]
    data = [tuple(map(torch.tensor, batch)) for batch in padded(case, cap if compiled else None)]
    loss = torch.compile(model) if compiled else model

    def run() -> float:
        began = time.perf_counter()
        for batch in data:
            optimizer.zero_grad()
            loss(*batch).backward()
            nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(average, parameters, EMA)
        return time.perf_counter() - began

    return run


def torch_compile(case: str, n_models: int) -> Callable[[], float]:
    return torch_loop(case, n_models, compiled=True)


def jax_vmap(case: str, n_models: int) -> Callable[[], float]:
    """jit(vmap(scan of steps)) of the single model."""
    import jax
    import jax.numpy as jnp

    from resharpen.engines.base import Ensemble, initial_state, part

    problem = make_problem(case)
    hyper = [jnp.full(n_models, x) for x in (RATE, 1 - BETAS[0], 1 - BETAS[1], ADAM_EPSILON, DECAY, CLIP, EMA)]
    data = [jnp.stack(x) for x in zip(*padded(case, problem.train_length), strict=True)]
    angle = np.arange(problem.train_length)[:, None] * 10_000.0 ** (-2 * np.arange(D // HEADS // 2) / (D // HEADS))
    cosine, sine = (jnp.asarray(f(angle), dtype=jnp.float32)[:, None] for f in (np.cos, np.sin))

    def norm(x, gain):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + NORM_EPSILON) * gain

    def rotate(x):
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    def loss(theta, inputs, targets, real):
        x = theta["E"][inputs]
        for i in range(LAYERS):
            a, m = f"{i}.attention.", f"{i}.mlp."
            h = norm(x, theta[a + "g_block_in"])
            q, k, v = ((h @ theta[a + w]).reshape(*h.shape[:-1], HEADS, -1) for w in ("W_Q", "W_K", "W_V"))
            y = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True).reshape(x.shape)
            x = x + norm(y @ theta[a + "W_O"], theta[a + "g_block_out"])
            h = jax.nn.gelu(norm(x, theta[m + "g_block_in"]) @ theta[m + "W_1"], approximate=False)
            x = x + norm(h @ theta[m + "W_2"], theta[m + "g_block_out"])
        log_p = jax.nn.log_softmax(norm(x, theta["g_unembedding_in"]) @ theta["U"])
        nll = -jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]
        return (nll * real).sum() / real.sum()

    def train(theta, m, v, average, t, hyper):
        rate, c1, c2, epsilon, decay, clip, ema = hyper

        def step(carry, batch):
            theta, m, v, average, t = carry
            g = jax.grad(loss)(theta, *batch)
            size = jnp.sqrt(sum((x * x).sum() for x in g.values()))
            g = {name: x * jnp.where(size > clip, clip / size, 1.0) for name, x in g.items()}
            t = t + 1
            m = {name: m[name] + c1 * (g[name] - m[name]) for name in g}
            v = {name: v[name] + c2 * (g[name] ** 2 - v[name]) for name in g}

            def advance(name):
                direction = m[name] / (1 - (1 - c1) ** t) / (jnp.sqrt(v[name] / (1 - (1 - c2) ** t)) + epsilon)
                spared = name == "E" or "g_" in name
                return theta[name] - rate * (direction + (0.0 if spared else decay * theta[name]))

            theta = {name: advance(name) for name in g}
            average = {name: average[name] + ema * (theta[name] - average[name]) for name in g}
            return (theta, m, v, average, t), None

        return jax.lax.scan(step, (theta, m, v, average, t), data)[0]

    run_all = jax.jit(jax.vmap(train))
    state = part(initial_state(problem, Ensemble(np.arange(n_models), {})), "theta")
    theta = {name: jnp.asarray(x) for name, x in state.items()}
    zeros = {name: jnp.zeros_like(x) for name, x in theta.items()}
    arguments = (theta, zeros, zeros, theta, jnp.zeros(n_models), hyper)

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(run_all(*arguments))
        return time.perf_counter() - began

    return run


PEERS = {"torch-loop": torch_loop, "torch-compile": torch_compile, "jax-vmap": jax_vmap}


# ---- timing ---------------------------------------------------------------------------------------------------------


def worker(system: str, case: str, n_models: int, seconds: float, processes: int) -> None:
    """Model-steps/s of this process, all processes starting together."""
    if system != "resharpen-native":
        import torch

        torch.set_num_threads(1 if processes > 1 else CORES)
    run = ours(system, case, n_models) if system in OURS else PEERS[system](case, n_models)
    run()
    print("ready", flush=True)
    sys.stdin.readline()
    best, until = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < until:
        best = min(best, run())
    print(n_models * STEPS / best, flush=True)


def speed(system: str, case: str, n_models: int, seconds: float, processes: int) -> float:
    """Model-steps/s of so many processes at once, together; 0 if one of them failed."""
    threads = {name: str(1 if processes > 1 else CORES) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if processes > 1 and system == "jax-vmap":
        threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    command = [sys.executable, __file__, "--worker", system, case, str(n_models), str(seconds), str(processes)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | threads)
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    values = []
    for process in running:
        assert process.stdin is not None
        if process.poll() is None:
            process.stdin.write("\n")
            process.stdin.flush()
    for process in running:
        out = process.communicate()[0]
        values.append(float(out.splitlines()[-1]) if process.returncode == 0 and out.strip() else 0.0)
    return sum(values) if all(values) else 0.0


def best_speed(system: str, case: str, seconds: float, quick: bool) -> float:
    ways = {CORES} if system in OURS or quick else {1, CORES}
    sizes = SIZES.get(system, (1,))
    sizes = sizes[:1] if quick or case == "dyck8-10" else sizes
    return max(speed(system, case, n, seconds, processes) for processes in ways for n in sizes)


PEAK = """
#include <chrono>
#include <cstdio>
int main() {
    typedef float V __attribute__((vector_size(VECTOR_BYTES)));
    V a[12]; for (auto& x : a) x = V{} + 1.0f;
    V b = V{} + 0.999f, c = V{} + 1e-3f;
    double best = 0;
    for (int trial = 0; trial < 10; trial++) {
        auto t = std::chrono::steady_clock::now();
        for (int i = 0; i < 2000000; i++) {
            _Pragma("GCC unroll 12") for (int j = 0; j < 12; j++) a[j] = a[j] * b + c;
            asm volatile("" : "+v"(a[0]), "+v"(b));
        }
        double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
        double flops = 2000000.0 * 12 * 2 * (sizeof(V) / 4) / s;
        if (flops > best) best = flops;
    }
    float sum = 0; for (auto& x : a) sum += x[0];
    std::printf("%g %g", best, sum);
}
"""


def peak_flops() -> float:
    """Multiply-adds that one core does in registers, as operations a second."""
    from resharpen.engines.native.build import find_compiler

    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    width = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    with tempfile.TemporaryDirectory() as directory:
        source, program = Path(directory) / "peak.cpp", Path(directory) / "peak"
        source.write_text(PEAK.replace("VECTOR_BYTES", str(width)))
        subprocess.run([find_compiler(), "-O3", "-march=native", "-w", str(source), "-o", str(program)], check=True)
        return float(subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()[0])


def print_table(rows: list[dict[str, Any]], peak: float) -> None:
    values = {(row["case"], row["system"]): row["value"] for row in rows}
    print(f"peak of a core {peak / 1e9:,.0f} GFLOP/s, {CORES} cores")
    print(f"{'case':<10} {'system':<18} {'model-steps/s':>14} {'real tokens/s':>14} {'of peak':>8} {'native is':>10}")
    for (case, system), value in values.items():
        tokens, operations = work(case)
        native, share = values.get((case, "resharpen-native"), 0.0), value * operations / (peak * CORES)
        print(f"{case:<10} {system:<18} {value:>14,.2f} {value * tokens:>14,.0f} {share:>8.1%} {native / value:>9.1f}x")


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        system, case, n_models, seconds, processes = sys.argv[2:]
        worker(system, case, int(n_models), float(seconds), int(processes))
        return
    parser = argparse.ArgumentParser(description="Training speed of the transformer on formal languages.")
    parser.add_argument("--quick", action="store_true", help="one case, no torch.compile, about a minute")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing, for each system and case")
    arguments = parser.parse_args()
    cases = arguments.cases or (("tomita3",) if arguments.quick else CASES)
    systems = arguments.systems or [s for s in SYSTEMS if not (arguments.quick and s == "torch-compile")]
    rows: list[dict[str, Any]] = []
    for case in cases:
        for system in systems:
            value = best_speed(system, case, arguments.seconds, arguments.quick)
            if value == 0:
                print(f"{case}: {system} did not run; is it installed? (pip install -e .[bench])", file=sys.stderr)
                continue
            rows.append({"case": case, "system": system, "unit": "model-steps/s", "value": value})
            print(f"{case} {system}: {value:,.2f} model-steps/s", file=sys.stderr, flush=True)
    print_table(rows, peak_flops())
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
