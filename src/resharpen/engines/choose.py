"""Choosing and creating the engine for a problem."""

from __future__ import annotations

import contextlib
import copy
import shlex
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from resharpen import own
from resharpen.engines.base import Arrays, Engine, Ensemble, Measures, Problem
from resharpen.errors import Failed, UserError
from resharpen.tasks import Task

if TYPE_CHECKING:
    from resharpen.engines.native.base import NativeEngine

NATIVE = {"minimal": "NativeMinimal", "retriever": "NativeRetriever", "transformer": "NativeTransformer"}
"""Model family (also the module in `engines/native`) -> class of its engine."""

SLOWER = {"minimal": "10 to 50", "retriever": "4 to 10", "transformer": "2 to 5"}
"""Time of the torch engine relative to native, by model family; less without AVX-512; from `benchmarks/`."""


def make_engine(name: str, problem: Problem, ensemble: Ensemble) -> Engine:
    if name == "native":
        return _native(problem)(problem, ensemble)
    import torch

    from resharpen.engines.torch.fast import TorchEngine

    torch.set_num_threads(1)  # every core runs its own shard
    return TorchEngine(problem, ensemble)


def make_reader(name: str, problem: Problem, ensemble: Ensemble) -> Engine:
    """An engine to measure trained weights with: torch if the native kernel does not support the parts."""
    native = name == "native" and not why_not_native(problem, training=False)
    return make_engine("native" if native else "torch", problem, ensemble)


def on_task(engine: Engine, task: Task) -> Engine:
    """The same engine, to measure on another task with the same vocabulary."""
    if task is engine.problem.task:
        return engine
    other = copy.copy(engine)
    other.problem = replace(engine.problem, task=task)
    return other


def measure_all(engine: Engine, weights: Arrays, validation: Any) -> Measures:
    """All measures that a report needs; torch computes those that the engine lacks."""
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
    """UserError if this machine does not have the device."""
    from resharpen.engines.torch.definition import torch_device

    torch_device(name)


def check_march(name: str) -> None:
    """UserError if the compiler does not know the instruction set; no check without a compiler."""
    from resharpen.engines.native.build import why_not_here

    if name != "native" and not why_not_here("native") and (reason := why_not_here(name)):
        raise UserError(f"march = {name}: unknown instruction set (try native or x86-64-v3): {reason}")


def why_not_native(problem: Problem, training: bool = True) -> str:
    """Why the native engine cannot train this problem here or, with training=False, measure it; empty if it can."""
    from resharpen.engines.native.build import why_not_here

    if problem.device != "cpu":
        return f"device = {problem.device}: it supports only cpu"
    if problem.model.kind not in NATIVE:
        return f"there is no native kernel for the model '{own.short(problem.model.kind)}'"
    if reason := _native(problem).supports(problem, training):
        return reason
    if reason := why_not_here(problem.march):
        with contextlib.suppress(Failed):
            _native(problem).kernel(problem.model, problem.march)
            return ""  # a cached kernel
    return reason


def rounding(engine: str, march: str, device: str) -> str:
    """What determines rounding of an engine on this machine; empty if unknown."""
    if engine == "native":
        from resharpen.engines.native import build, compiler

        # without a compiler any cached kernel is used, whichever compiler built it
        return "" if build.why_not_here(march) else build.rounding(march, compiler.find_compiler())
    from resharpen.engines.torch.fast import rounding

    return rounding(device)


def compiles(engine: str, problem: Problem) -> bool:
    """Whether the run is long enough to be compiled, which changes the last bits."""
    if engine == "native" or not problem.model.compiles:
        return False
    from resharpen.engines.torch.fast import COMPILED_FROM

    return problem.steps >= COMPILED_FROM


def how_much_slower(problem: Problem) -> str:
    """The slowdown of torch as text, if there is a native kernel for the model."""
    factor = SLOWER.get(problem.model.kind) if problem.device == "cpu" else None
    return f", about {factor} times as slow as native" if factor else ""


def _native(problem: Problem) -> type[NativeEngine]:
    kind = problem.model.kind
    return getattr(import_module(f"resharpen.engines.native.{kind}"), NATIVE[kind])


def describe_compiler() -> tuple[bool, str]:
    """Whether there is a compiler for native kernels; and which one, or the consequences of having none."""
    from resharpen.engines.native.compiler import find_compiler

    try:
        compiler = find_compiler()
        return True, f"{compiler} ({shlex.join(compiler.command)})"
    except Failed as error:
        slower = ", ".join(f"{factor} for a {family}" for family, factor in SLOWER.items())
        return False, f"{error}. The torch engine is used instead, slower by a factor of {slower}"
