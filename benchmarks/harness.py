"""Common code of the benchmarks: systems run in their own processes, rounds alternate between them, one table."""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from trainers import Trainer, minibatches, probe, reference_loss

from resharpen.experiments.keeping.machine import cores, provenance

NATIVE = "resharpen-native"
CORES = cores()
ROUNDS, LEAST_ROUNDS = 4, 3
TOLERANCE = 1e-5
NOTES = f"""
How it is measured. Every system runs in its own processes and uses all cores: as one single-threaded process per core,
or as one process with all threads, whichever a short trial finds faster, with the fastest of a few ensemble sizes
(ours: always a process per core). Before it is timed, a peer's loss on a minibatch has to agree with that of our torch
engine to {TOLERANCE:g}, with large random weights; native is held to the torch engine by the tests of this repository.
Then rounds alternate between the systems: {ROUNDS} with the trial, {LEAST_ROUNDS} where a single call is long.

Columns. models: in one process. model-steps/s: of all processes, the best call of each in the best round. spread: how
far the worst round is below the best; a system with long calls has fewer of them to choose from, so where the spread is
large do not trust small ratios. us/core: of one core for one step of one model. tokens/s and GFLOP/s: of the formula as
printed, for real tokens alone, forward and backward. of peak: the same as a share of the measured peak of all cores at
once (a loop of fused multiply-adds), but for native the operations that its kernel performs. MB: the most memory that
one process held, interpreter and libraries included.
"""


@dataclass(frozen=True)
class System:
    """A way to train models. --quick uses the first of the ensemble sizes."""

    build: Callable[[int], Trainer]
    steps: int
    """Steps in one timed call; constant, because JAX compiles for it."""
    sizes: tuple[int, ...] = (1,)
    needs: str = "torch"
    threads: bool = True
    """Whether to try one process with all threads as well."""
    quick: bool = True


@dataclass(frozen=True)
class Work:
    """Per step of one model: tokens without padding, operations of the printed formula, operations of the kernel."""

    tokens: float
    printed: float
    native: float


@dataclass(frozen=True)
class Benchmark:
    about: str | None
    cases: tuple[str, ...]
    quick: str
    """The case that --quick runs."""
    problem: Callable[[str], Any]
    """Case -> problem, the argument of the next two functions."""
    systems: Callable[[Any], dict[str, System]]
    work: Callable[[Any], Work]
    alike: Callable[[str], str] = lambda case: case
    """Cases with the same value share one trial of ensemble sizes and of processes against threads."""


# ---- in a separate process ------------------------------------------------------------------------------------------


def work_for(benchmark: Benchmark, case: str, name: str, n_models: int, processes: int) -> None:
    """Build the system, print its loss, warm up; then run one round per line of input until the input ends."""
    replies, sys.stdout = sys.stdout, sys.stderr

    def reply(**what: Any) -> None:
        print(json.dumps(what), file=replies, flush=True)

    problem = benchmark.problem(case)
    system = benchmark.systems(problem)[name]
    try:
        if system.needs == "torch":
            import torch

            torch.set_num_threads(1 if processes > 1 else CORES)
        trainer = system.build(n_models)
        loss = trainer.loss and trainer.loss(probe(problem, n_models))
        seconds_of_call(trainer, system.steps)
        reply(loss=loss)
        for line in sys.stdin:
            until, calls = time.perf_counter() + float(line), [seconds_of_call(trainer, system.steps)]
            while time.perf_counter() < until:
                calls.append(seconds_of_call(trainer, system.steps))
            reply(speed=n_models * system.steps / min(calls), memory=peak_memory())
    except Exception as error:
        reply(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
        raise


def seconds_of_call(trainer: Trainer, steps: int) -> float:
    trainer.reset()
    began = time.perf_counter()
    trainer.advance(steps)
    return time.perf_counter() - began


def peak_memory() -> float:
    """Peak memory of this process in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage tells is at least that of the parent when it started us
        return next(float(line.split()[1]) for line in status.read_text().splitlines() if line[:6] == "VmHWM:") / 1e3
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


# ---- a system and its processes -------------------------------------------------------------------------------------


class Pool:
    """The processes of one system, each with its own models. They are idle between rounds."""

    def __init__(self, case: str, name: str, system: System, n_models: int, processes: int, expected: float):
        self.n_models, self.processes, self.error = n_models, processes, ""
        self.seconds, self.memory, self.speeds = 0.0, 0.0, []
        self._label = f"{case} {name}, {n_models} x {processes}"
        say(f"{self._label}: starting")
        environment = {variable: str(CORES // processes) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if processes > 1 and system.needs == "jax":
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        command = [sys.executable, sys.argv[0], "--worker", case, name, str(n_models), str(processes)]
        self._running = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
            )
            for _ in range(processes)
        ]
        losses = [reply["loss"] for reply in self._replies() if reply["loss"] is not None]
        if any(not abs(loss - expected) <= TOLERANCE * abs(expected) for loss in losses):  # nan too
            self._fail(f"not timed: its loss is {losses[0]:.6g} and not {expected:.6g}")

    def round(self, seconds: float) -> float:
        """Total model-steps/s of all processes; 0 if one of them failed."""
        began = time.perf_counter()
        for process in self._running:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it died: there will be no reply
                print(seconds, file=process.stdin, flush=True)
        replies = self._replies()
        if self.error:
            return 0.0
        self.seconds += time.perf_counter() - began
        self.memory = max(reply["memory"] for reply in replies)
        self.speeds.append(sum(reply["speed"] for reply in replies))
        say(f"{self._label}: {number(self.speeds[-1])} model-steps/s")
        return self.speeds[-1]

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self._running = []

    def _replies(self) -> list[dict[str, Any]]:
        """One answer per process, or none if one of them failed."""
        lines = [process.stdout.readline() for process in self._running if process.stdout is not None]
        replies = [json.loads(line) if line else {"error": "its process died"} for line in lines]
        if errors := [reply["error"] for reply in replies if "error" in reply]:
            self._fail(errors[0])
        return [] if self.error else replies

    def _fail(self, error: str) -> None:
        self.error = error
        say(f"{self._label}: {error}")
        self.close()


def best_pool(start: Callable[[int, int], Pool], system: System, seconds: float, quick: bool) -> Pool:
    """Try all sizes with one process per core, then the best size in one process with all threads; keep the fastest."""
    best = start(system.sizes[0], CORES)
    others: list[tuple[int | None, int]] = [] if quick else [(n, CORES) for n in system.sizes[1:]]
    others += [(None, 1)] if system.threads and CORES > 1 and not quick else []
    speed = best.round(seconds) if others else 0.0
    for n_models, processes in others:
        pool = start(n_models or best.n_models, processes)
        if (found := pool.round(seconds)) > speed:
            best, pool, speed = pool, best, found
        pool.close()
    return best


def measure(
    benchmark: Benchmark, case: str, names: Sequence[str], seconds: float, quick: bool, settled: dict[Any, Any]
) -> list[dict[str, Any]]:
    """One row per system. `settled` stores the best size of a system, and whether it uses processes or threads."""
    problem, pools = benchmark.problem(case), dict[str, Pool]()
    systems, batch = benchmark.systems(problem), minibatches(problem)[0]
    usual = "softmax", type(problem.model).positions, "no-dropout"  # the peers have no others
    parts = problem.parts
    plain = (parts.attention.name, parts.positions.name, parts.dropout.name) == usual
    names = [name for name in names if name in systems and (plain or name.startswith("resharpen"))]
    expected = cache(lambda n_models: reference_loss(problem, batch, n_models))
    for name in names:
        system, key = systems[name], (name, benchmark.alike(case))
        if importlib.util.find_spec(system.needs) is None:
            continue

        def start(n_models: int, processes: int, name: str = name, system: System = system) -> Pool:
            return Pool(case, name, system, n_models, processes, expected(n_models))

        pool = start(*settled[key]) if key in settled else best_pool(start, system, seconds / ROUNDS, quick)
        settled[key], pools[name] = (pool.n_models, pool.processes), pool
    for _ in range(ROUNDS):
        for pool in pools.values():
            if not pool.error and (len(pool.speeds) < LEAST_ROUNDS or pool.seconds < seconds):
                pool.round(seconds / ROUNDS)
    for pool in pools.values():
        pool.close()
    return [row_of(case, name, systems[name], pools.get(name)) for name in names]


def row_of(case: str, name: str, system: System, pool: Pool | None) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case, "system": name, "unit": "model-steps/s", "value": None}
    if pool is None:
        return row | {"note": f"{system.needs} is not installed (pip install -e .[bench])"}
    if pool.error:
        return row | {"note": pool.error}
    found: dict[str, Any] = {"value": max(pool.speeds), "rounds": pool.speeds, "peak_MB": pool.memory}
    return row | found | {"models": pool.n_models, "processes": pool.processes}


# ---- the machine ----------------------------------------------------------------------------------------------------

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


def peak_flops() -> float:
    """Peak floating-point operations per second, from fused multiply-adds on all cores with the best vector width."""
    from resharpen.engines.native.compiler import find_compiler

    def of_core(run: Callable[[int], float], width: int, n: int = 1_000_000) -> float:
        best, until = float("inf"), time.perf_counter() + 1
        while time.perf_counter() < until:
            began = time.perf_counter()
            run(n)
            best = min(best, time.perf_counter() - began)
        return 2 * 12 * n * (width // 4) / best

    found = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(CORES) as threads:
        source = Path(directory) / "peak.cpp"
        source.write_text(PEAK_SOURCE)
        for width in (16, 32, 64):
            flags = ["-O2", "-march=native", "-ffp-contract=fast", "-w", "-fPIC", "-shared", f"-DBYTES={width}"]
            library = source.with_name(f"peak{width}.so")
            subprocess.run([*find_compiler().command, *flags, str(source), "-o", str(library)], check=True)
            run = ctypes.CDLL(str(library)).run  # without the interpreter's lock
            run.argtypes, run.restype = [ctypes.c_long], ctypes.c_float
            found.append(sum(threads.map(of_core, [run] * CORES, [width] * CORES)))
    return max(found)


VERSIONS = ("resharpen", "torch", "jax", "numpy", "python")


def machine_row() -> dict[str, Any]:
    """The peak, and the machine and versions that results depend on."""
    row = {"case": "machine", "system": "peak", "unit": "FLOP/s", "value": peak_flops()} | provenance()
    if importlib.util.find_spec("jax"):
        row["versions"]["jax"] = metadata.version("jax")
    return row


# ---- the report -----------------------------------------------------------------------------------------------------

HEADER = ("case", "system", "models", "procs", "model-steps/s", "spread", "native is", "us/core", "tokens/s", "GFLOP/s")
HEADER += ("of peak", "MB")
WIDTHS = (-21, -17, 6, 6, 14, 7, 10, 11, 13, 8, 8, 7)


def line(*cells: str) -> str:
    return "".join(f"{x:<{-w}}" if w < 0 else f"{x:>{w}}" for x, w in zip(cells, WIDTHS, strict=False))


def number(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:,.2f}"


def print_rows(rows: list[dict[str, Any]], work: Work, peak: float) -> None:
    native = next((row["value"] for row in rows if row["system"] == NATIVE), None)
    for row in rows:
        value, system = row["value"], row["system"]
        if value is None:
            print(line(row["case"], system), row["note"])
            continue
        cells = [str(row["models"]), str(row["processes"]), number(value), f"{1 - min(row['rounds']) / value:.0%}"]
        cells += [f"{native / value:,.1f}x" if native else "-", number(1e6 * CORES / value)]
        cells += [number(value * work.tokens), number(value * work.printed / 1e9)]
        done = value * (work.native if system == NATIVE else work.printed)
        print(line(row["case"], system, *cells, f"{done / peak:.1%}", f"{row['peak_MB']:,.0f}"), flush=True)


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:4.0f} s] {text}", file=sys.stderr, flush=True)


BEGAN = time.perf_counter()


def main(benchmark: Benchmark) -> None:
    if sys.argv[1:2] == ["--worker"]:
        case, name, n_models, processes = sys.argv[2:]
        work_for(benchmark, case, name, int(n_models), int(processes))
        return
    systems = benchmark.systems(benchmark.problem(benchmark.cases[0]))
    parser = argparse.ArgumentParser(
        description=benchmark.about, epilog=NOTES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    quick = f"only {benchmark.quick}, no trials, nothing that compiles for long; a minute or two"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--cases", nargs="+", choices=benchmark.cases, metavar="CASE", help=", ".join(benchmark.cases))
    parser.add_argument("--systems", nargs="+", choices=systems, metavar="SYSTEM", help=", ".join(systems))
    parser.add_argument("--seconds", type=float, help="of timing, for each system and case (8; 4 with --quick)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, after every case")
    asked = parser.parse_args()
    cases = asked.cases or ([benchmark.quick] if asked.quick else benchmark.cases)
    names = asked.systems or [name for name, system in systems.items() if system.quick or not asked.quick]
    seconds = asked.seconds or (4 if asked.quick else 8)
    rows, settled = [machine_row()], {}
    peak, versions = rows[0]["value"], rows[0]["versions"]
    print(f"{rows[0]['cpu']}, {CORES} cores, peak {peak / 1e9:,.0f} GFLOP/s; git {rows[0]['git']}")
    print(", ".join(f"{name} {versions[name]}" for name in VERSIONS if name in versions), "\n")
    print(line(*HEADER), flush=True)
    for case in cases:
        found = measure(benchmark, case, names, seconds, asked.quick, settled)
        print_rows(found, benchmark.work(benchmark.problem(case)), peak)
        rows += found
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1))
    print("\n--help says what is measured and how.")
