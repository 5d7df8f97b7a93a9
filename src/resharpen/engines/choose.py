"""Which engine runs a problem."""

from __future__ import annotations

from resharpen.engines.base import Engine, Ensemble, Problem


def make_engine(name: str, problem: Problem, ensemble: Ensemble) -> Engine:
    if name == "native":
        if problem.model.kind == "retriever":
            from resharpen.engines.native.retriever import NativeRetriever

            return NativeRetriever(problem, ensemble)
        from resharpen.engines.native import NativeEngine

        return NativeEngine(problem, ensemble)
    import torch

    from resharpen.engines.torch_engine import TorchEngine

    torch.set_num_threads(1)  # every core has a shard of its own
    return TorchEngine(problem, ensemble)


def why_not_native(problem: Problem, training: bool = True) -> str:
    """Why the native engine cannot run this problem here, or only read trained weights with it; empty if it can."""
    from resharpen.engines.native.build import NoCompiler, find_compiler

    if problem.model.kind == "retriever":
        from resharpen.engines.native.retriever import supports
    else:
        from resharpen.engines.native.engine import supports
    if reason := supports(problem, training):
        return reason
    try:
        find_compiler()
    except NoCompiler as error:
        return str(error)
    return ""
