"""Training speed on Maximum Retrieval against the usual ways to train many small models.

    python benchmarks/max_retrieval.py [--quick] [--json FILE] [--cases max-none ...] [--systems jax-vmap ...]

Everyone trains the same models on the same minibatches (128 sequences of 5 to 16 items) with per-model hyperparameters,
clipping, AdamW and the moving average. The peers compute the formula as printed on padded minibatches that are drawn
beforehand; ours draws its own. Every system runs in processes of its own and uses all cores the better way: one
process with all threads, or one single-threaded process a core, and the better of a few ensemble sizes. Numbers are
model-steps/s, the best of several short timings.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CASES = ("max-none", "max-pre", "max-post", "max-peri")
SYSTEMS = ("resharpen-native", "resharpen-torch", "torch-loop", "torch-compile", "jax-vmap")
OURS = ("resharpen-native", "resharpen-torch")
SIZES = {
    "resharpen-native": (16,),
    "resharpen-torch": (4, 16),
    "torch-loop": (1,),
    "torch-compile": (4, 16),
    "jax-vmap": (1, 4, 16),
}
"""Ensemble sizes to try."""
QUICK_SIZES = {"resharpen-torch": (4,), "jax-vmap": (4,)}
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
BATCHES = 4
"""Minibatches that a peer cycles through."""
RATE, BETAS, ADAM_EPSILON, DECAY, CLIP, NORM_EPSILON, EMA = 1e-3, (0.9, 0.99), 1e-9, 1e-2, 1.0, 1e-6, 0.01


# ---- ours ---------------------------------------------------------------------------------------------------------


def make_problem(case: str):
    from resharpen.engines.base import Problem
    from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
    from resharpen.tasks.max_retrieval import MaxRetrieval

    placement = RETRIEVER_PLACEMENTS[case.removeprefix("max-")]
    return Problem(MaxRetrieval(), Retriever(), placement, 16, 128, 100_000, seed=0, setting=case)


def ours(system: str, case: str, n_models: int) -> Callable[[int], Any]:
    from resharpen.engines.base import Ensemble
    from resharpen.optim.hyperparameters import TABLE, draw

    problem, draws = make_problem(case), np.arange(n_models)
    ensemble = Ensemble(draws, draw(TABLE, 0, problem.setting, draws))
    if system == "resharpen-native":
        from resharpen.engines.native.retriever import NativeRetriever

        return NativeRetriever(problem, ensemble).advance
    from resharpen.engines.torch_engine import TorchEngine

    return TorchEngine(problem, ensemble).advance


# ---- peers ----------------------------------------------------------------------------------------------------------


def minibatches(case: str) -> list[tuple[np.ndarray, ...]]:
    """Features [N, L, 11], mask [N, L], labels [N]."""
    problem, found = make_problem(case), []
    for step in range(BATCHES):
        priority, kinds, lengths, labels = problem.minibatch(0, step)
        features = np.concatenate([priority[..., None], np.eye(10, dtype=np.float32)[kinds]], axis=-1)
        found.append((features, np.arange(16) < lengths[:, None], labels))
    return found


def initial(case: str, n_models: int) -> dict[str, np.ndarray]:
    from resharpen.engines.base import Ensemble, initial_state, part

    return part(initial_state(make_problem(case), Ensemble(np.arange(n_models), {})), "theta")


def torch_loop(case: str, n_models: int) -> Callable[[int], Any]:
    """One nn.Module, one optimizer, one model at a time."""
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self, present: bool):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(128)) if present else None

        def forward(self, x):
            return x if self.gain is None else nn.functional.rms_norm(x, (128,), self.gain, NORM_EPSILON)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.psi = nn.Sequential(nn.Linear(11, 128), nn.GELU(), nn.Linear(128, 128))
            self.phi = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))
            self.key, self.value = nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False)
            self.query = nn.Parameter(0.02 * torch.randn(128))
            self.norm_in, self.norm_out = Norm(case in ("max-pre", "max-peri")), Norm(case in ("max-post", "max-peri"))

        def forward(self, x, mask):
            h = self.norm_in(self.psi(x))
            e = (self.key(h) @ self.query).masked_fill(~mask, -torch.inf)
            z = (e.softmax(-1)[:, None] @ self.value(h))[:, 0]
            return self.phi(self.norm_out(z))

    model = Model()
    parameters = list(model.parameters())
    decayed, spared = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim == 1]
    groups = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM_EPSILON, weight_decay=DECAY, foreach=True)
    average = [p.detach().clone() for p in parameters]
    data = [tuple(map(torch.tensor, batch)) for batch in minibatches(case)]

    def run(steps: int) -> None:
        for i in range(steps):
            x, mask, label = data[i % BATCHES]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x, mask), label).backward()
            nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(average, parameters, EMA)

    return run


def printed_loss(xp, gelu, softmax, log_softmax, case: str, theta, x, mask, label):
    """The formula as printed for one model (jax.vmap) or, by broadcasting, for an ensemble (torch.compile)."""

    def norm(y, gain):
        y = y / xp.sqrt((y * y).mean(-1)[..., None] + NORM_EPSILON)
        return y * theta[gain][..., *(None,) * (y.ndim - theta[gain].ndim), :]

    def linear(y, weight, bias=None):
        out = y.reshape(*y.shape[: theta[weight].ndim - 2], -1, y.shape[-1]) @ theta[weight]
        out = out.reshape(*y.shape[:-1], -1)
        return out if bias is None else out + theta[bias][..., *(None,) * (y.ndim - theta[bias].ndim), :]

    h = linear(gelu(linear(x, "W_1", "b_1")), "W_2", "b_2")
    h = norm(h, "g_block_in") if "g_block_in" in theta else h
    e = (linear(h, "K") * theta["q"][..., None, None, :]).sum(-1)
    w = softmax(xp.where(mask, e, -xp.inf))
    z = (w[..., None, :] @ linear(h, "V"))[..., 0, :]
    z = norm(z, "g_block_out") if "g_block_out" in theta else z
    log_p = log_softmax(linear(gelu(linear(z, "W_3", "b_3")), "W_4", "b_4"))
    return -(log_p * label).sum(-1).mean(-1)


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(10, dtype=np.float32)[labels]


def torch_compile(case: str, n_models: int) -> Callable[[int], Any]:
    """An ensemble with a leading axis, loss and update compiled."""
    import torch
    from torch.nn import functional

    hyper = [torch.full((n_models,), x) for x in (RATE, 1 - BETAS[0], 1 - BETAS[1], ADAM_EPSILON, DECAY, CLIP, EMA)]
    theta = {name: torch.tensor(x).requires_grad_() for name, x in initial(case, n_models).items()}
    moments = {name: [torch.zeros_like(x), torch.zeros_like(x), x.detach().clone()] for name, x in theta.items()}
    data = [(torch.tensor(x), torch.tensor(m), torch.tensor(one_hot(y))) for x, m, y in minibatches(case)]

    @torch.compile
    def loss(theta, x, mask, label):
        x = x.expand(n_models, *x.shape)
        functions = (functional.gelu, lambda y: y.softmax(-1), lambda y: y.log_softmax(-1))
        return printed_loss(torch, *functions, case, theta, x, mask, label).sum()

    @torch.compile
    def update(theta, moments, gradients, hyper, t):
        rate, c1, c2, epsilon, decay, clip, ema = hyper
        norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        factor = torch.where(norm > clip, clip / norm, 1.0)
        for name, x in theta.items():

            def each(y, ndim=x.ndim):
                return y.view(-1, *(1,) * (ndim - 1))

            g, (m, v, average) = gradients[name] * each(factor), moments[name]
            m.add_(each(c1) * (g - m))
            v.add_(each(c2) * (g * g - v))
            step = (m / each(1 - (1 - c1) ** t)) / ((v / each(1 - (1 - c2) ** t)).sqrt() + each(epsilon))
            x.sub_(each(rate) * (step + (each(decay) * x if name[:2] not in ("b_", "g_") else 0)))
            average.add_(each(ema) * (x - average))

    done = 0

    def run(steps: int) -> None:
        nonlocal done
        for i in range(steps):
            gradients = dict(
                zip(theta, torch.autograd.grad(loss(theta, *data[i % BATCHES]), theta.values()), strict=True)
            )
            done += 1
            with torch.no_grad():
                update(theta, moments, gradients, hyper, torch.tensor(float(done)))

    return run


def jax_vmap(case: str, n_models: int) -> Callable[[int], Any]:
    """jit(vmap(scan of steps)) of the single model."""
    import jax
    import jax.numpy as jnp

    hyper = [jnp.full(n_models, x) for x in (RATE, 1 - BETAS[0], 1 - BETAS[1], ADAM_EPSILON, DECAY, CLIP, EMA)]
    data = [jnp.stack(x) for x in zip(*((x, m, one_hot(y)) for x, m, y in minibatches(case)), strict=True)]
    functions = (lambda x: jax.nn.gelu(x, approximate=False), jax.nn.softmax, jax.nn.log_softmax)

    def loss(theta, batch):
        return printed_loss(jnp, *functions, case, theta, *batch)

    def train(theta, m, v, average, t, hyper, order):
        rate, c1, c2, epsilon, decay, clip, ema = hyper

        def step(carry, i):
            theta, m, v, average, t = carry
            g = jax.grad(loss)(theta, [x[i] for x in data])
            norm = jnp.sqrt(sum((x * x).sum() for x in g.values()))
            g = {name: x * jnp.where(norm > clip, clip / norm, 1.0) for name, x in g.items()}
            t = t + 1
            m = {name: m[name] + c1 * (g[name] - m[name]) for name in g}
            v = {name: v[name] + c2 * (g[name] ** 2 - v[name]) for name in g}

            def advance(name):
                direction = m[name] / (1 - (1 - c1) ** t) / (jnp.sqrt(v[name] / (1 - (1 - c2) ** t)) + epsilon)
                spared = name[:2] in ("b_", "g_")
                return theta[name] - rate * (direction + (0.0 if spared else decay * theta[name]))

            theta = {name: advance(name) for name in g}
            average = {name: average[name] + ema * (theta[name] - average[name]) for name in g}
            return (theta, m, v, average, t), None

        return jax.lax.scan(step, (theta, m, v, average, t), order)[0]

    run_all = jax.jit(jax.vmap(train, in_axes=(0, 0, 0, 0, 0, 0, None)))
    theta = {name: jnp.asarray(x) for name, x in initial(case, n_models).items()}
    zeros = {name: jnp.zeros_like(x) for name, x in theta.items()}
    state = (theta, zeros, zeros, theta, jnp.zeros(n_models))

    def run(steps: int) -> None:
        nonlocal state
        state = run_all(*state, hyper, jnp.arange(steps) % BATCHES)
        jax.block_until_ready(state)

    return run


PEERS = {"torch-loop": torch_loop, "torch-compile": torch_compile, "jax-vmap": jax_vmap}


# ---- timing ---------------------------------------------------------------------------------------------------------


def measure(run: Callable[[int], Any], n_models: int, seconds: float, processes: int) -> float:
    """Model-steps/s of this process: the best of timings of some 50 ms, all processes starting together."""
    steps = 4  # the same for every call: JAX compiles for it
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
    if system != "resharpen-native":
        import torch

        torch.set_num_threads(1 if processes > 1 else CORES)
    run = ours(system, case, n_models) if system in OURS else PEERS[system](case, n_models)
    print(measure(run, n_models, seconds, processes), flush=True)


def speed(system: str, case: str, n_models: int, seconds: float, processes: int) -> float:
    """Model-steps/s of so many processes at once, together."""
    threads = {name: str(1 if processes > 1 else CORES) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if processes > 1 and system == "jax-vmap":
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
    ways = (CORES,) if system in OURS or quick else (1, CORES)
    sizes = QUICK_SIZES.get(system, SIZES[system]) if quick else SIZES[system]
    return max(speed(system, case, n, seconds, processes) for processes in ways for n in sizes)


def print_table(rows: list[dict[str, Any]]) -> None:
    values = {(row["case"], row["system"]): row["value"] for row in rows}
    print(f"{'case':<10} {'system':<18} {'model-steps/s':>14} {'us each':>9} {'native is':>10}")
    for (case, system), value in values.items():
        native = values.get((case, "resharpen-native"), 0.0)
        print(f"{case:<10} {system:<18} {value:>14,.0f} {1e6 / value:>9,.0f} {native / value:>9.1f}x")


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        system, case, n_models, seconds, processes = sys.argv[2:]
        worker(system, case, int(n_models), float(seconds), int(processes))
        return
    parser = argparse.ArgumentParser(description="Training speed on Maximum Retrieval.")
    parser.add_argument("--quick", action="store_true", help="one case, no torch.compile, about a minute")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing, for each system and case")
    arguments = parser.parse_args()
    cases = arguments.cases or (CASES[:1] if arguments.quick else CASES)
    systems = arguments.systems or [s for s in SYSTEMS if not (arguments.quick and s == "torch-compile")]
    rows: list[dict[str, Any]] = []
    for case in cases:
        for system in systems:
            value = best_speed(system, case, arguments.seconds, arguments.quick)
            if value == 0:
                print(f"{case}: {system} did not run; is it installed? (pip install -e .[bench])", file=sys.stderr)
                continue
            rows.append({"case": case, "system": system, "unit": "model-steps/s", "value": value})
    print_table(rows)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
