"""Which engine runs a problem."""

from __future__ import annotations

import importlib
from types import ModuleType

from resharpen.engines.base import Engine, Ensemble, Problem

NATIVE = {
    "minimal": ("engine", "NativeEngine"),
    "retriever": ("retriever", "NativeRetriever"),
    "transformer": ("transformer", "NativeTransformer"),
}
"""Model family -> module and class of its native engine."""


def make_engine(name: str, problem: Problem, ensemble: Ensemble) -> Engine:
    if name == "native":
        return getattr(_native(problem), NATIVE[problem.model.kind][1])(problem, ensemble)
    import torch

    from resharpen.engines.torch_engine import TorchEngine

    torch.set_num_threads(1)  # every core has a shard of its own
    return TorchEngine(problem, ensemble)


def why_not_native(problem: Problem, training: bool = True) -> str:
    """Why the native engine cannot run this problem here, or only read trained weights with it; empty if it can."""
    from resharpen.engines.native.build import NoCompiler, find_compiler

    if reason := _native(problem).supports(problem, training):
        return reason
    try:
        find_compiler()
    except NoCompiler as error:
        return str(error)
    return ""


def _native(problem: Problem) -> ModuleType:
    return importlib.import_module(f"resharpen.engines.native.{NATIVE[problem.model.kind][0]}")
