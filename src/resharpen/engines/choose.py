"""Which engine runs a problem."""

from __future__ import annotations

import contextlib
import shlex
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from resharpen import own
from resharpen.engines.base import Arrays, Engine, Ensemble, Measures, Problem
from resharpen.errors import Failed, UserError

if TYPE_CHECKING:
    from resharpen.engines.native.base import NativeEngine

NATIVE = {"minimal": "NativeMinimal", "retriever": "NativeRetriever", "transformer": "NativeTransformer"}
"""Model family, and module of `engines/native` -> the class of its engine."""


SLOWER = {"minimal": "10 to 50", "retriever": "4 to 10", "transformer": "2 to 5"}
"""About how many times as long the torch engine takes, by model family; less without AVX-512; see the benchmarks."""


def make_engine(name: str, problem: Problem, ensemble: Ensemble) -> Engine:
    if name == "native":
        return _native(problem)(problem, ensemble)
    import torch

    from resharpen.engines.torch.fast import TorchEngine

    torch.set_num_threads(1)  # every core has a shard of its own
    return TorchEngine(problem, ensemble)


def measure_all(engine: Engine, weights: Arrays, validation: Any) -> Measures:
    """All that a report has of these weights: what the engine does not measure torch computes."""
    found, task = engine.measure(weights, validation, report=True), engine.problem.task
    if missing := [name for name in (*task.measures, *task.further) if name not in found]:
        known_M = np.array([np.isfinite(row).all() for row in next(iter(weights.values()))])
        nan_MxP = np.full((len(known_M), len(validation.length_P)), np.nan, np.float32)
        found |= {name: nan_MxP.copy() for name in missing}
        if known_M.any():  # models without weights cost nothing
            torch = make_engine("torch", engine.problem, engine.ensemble.some(known_M))
            some = {name: array[known_M] for name, array in weights.items()}
            measured = torch.measure(some, validation, report=any(name in task.further for name in missing))
            for name in missing:
                if name in measured:
                    found[name][known_M] = measured[name]
                else:  # a task without p*
                    del found[name]
    return found


def check_device(name: str) -> None:
    """UserError if this machine has no such device, before anything is written."""
    from resharpen.engines.torch.definition import torch_device

    torch_device(name)


def check_march(name: str) -> None:
    """UserError for an instruction set that this machine's compiler does not know; nothing can be said without one."""
    from resharpen.engines.native.build import why_not_here

    if name != "native" and not why_not_here("native") and (reason := why_not_here(name)):
        raise UserError(f"march = {name}: not an instruction set here, as native and x86-64-v3 may be: {reason}")


def why_not_native(problem: Problem, training: bool = True) -> str:
    """Why the native engine cannot run this problem here, or only read trained weights with it; empty if it can."""
    from resharpen.engines.native.build import why_not_here

    if problem.device != "cpu":
        return f"device = {problem.device}: it computes on the cpu"
    if problem.model.kind not in NATIVE:
        return f"there is no native kernel for the model '{own.short(problem.model.kind)}'"
    if reason := _native(problem).supports(problem, training):
        return reason
    if reason := why_not_here(problem.march):
        with contextlib.suppress(Failed):
            _native(problem).kernel(problem.model, problem.march)
            return ""  # built before, when it could be
    return reason


def rounding(engine: str, march: str, device: str) -> str:
    """What decides how the numbers of an engine are rounded on this machine; empty where it cannot be told."""
    if engine == "native":
        from resharpen.engines.native import build, compiler

        # where none can be built, one that was built before will do, whatever built it
        return "" if build.why_not_here(march) else build.rounding(march, compiler.find_compiler())
    from resharpen.engines.torch.fast import rounding

    return rounding(device)


def how_much_slower(problem: Problem) -> str:
    """Words for what the torch engine costs where the native one has a kernel for the model."""
    factor = SLOWER.get(problem.model.kind) if problem.device == "cpu" else None
    return f", about {factor} times as slow as native" if factor else ""


def _native(problem: Problem) -> type[NativeEngine]:
    kind = problem.model.kind
    return getattr(import_module(f"resharpen.engines.native.{kind}"), NATIVE[kind])


def describe_compiler() -> tuple[bool, str]:
    """Whether there is a compiler for native kernels, and which; or what it means that there is none."""
    from resharpen.engines.native.compiler import find_compiler

    try:
        compiler = find_compiler()
        return True, f"{compiler} ({shlex.join(compiler.command)})"
    except Failed as error:
        slower = ", ".join(f"{factor} for a {family}" for family, factor in SLOWER.items())
        return False, f"{error}. The torch engine takes over, so many times as slow: {slower}"
