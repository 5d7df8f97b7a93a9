"""Kernels touch what they are given and nothing beside it, wherever it lies in memory."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import (
    TINY_TRANSFORMER,
    assert_same,
    make_ensemble,
    minimal_problem,
    retriever_problem,
    transformer_problem,
)
from kernel_calls import Moved, through

from resharpen.engines.native.minimal import NativeMinimal
from resharpen.engines.native.retriever import NativeRetriever
from resharpen.engines.native.transformer import NativeTransformer
from resharpen.models import Minimal, Transformer
from resharpen.state import arrays_of

CASES = {
    "minimal, states counted": (NativeMinimal, minimal_problem("peri", attention="ssmax")),
    "minimal, states listed": (NativeMinimal, minimal_problem("post", 12, 4, model=Minimal(12, 5, 3, 4))),
    "retriever": (NativeRetriever, retriever_problem("peri", hidden=16, attention="ssmax")),
    "transformer, alibi": (
        NativeTransformer,
        transformer_problem("seven", TINY_TRANSFORMER, norm="layer", attention="ssmax", positions="alibi"),
    ),
    "transformer, window": (NativeTransformer, transformer_problem("pre", attention="window", positions="kerple")),
    "transformer, sink": (NativeTransformer, transformer_problem("pre", attention="sink", positions="t5")),
    "transformer, rope-half": (NativeTransformer, transformer_problem("pre", positions="rope-half")),
    "transformer, sinusoidal": (NativeTransformer, transformer_problem("all", positions="sinusoidal")),
    "transformer, learned": (NativeTransformer, transformer_problem("all", positions="learned")),
    "transformer, learned-offset": (NativeTransformer, transformer_problem("all", positions="learned-offset")),
    "transformer, dropout": (NativeTransformer, transformer_problem("all", dropout="dropout")),
    "transformer, rope": (NativeTransformer, transformer_problem("all", Transformer(6))),
    "transformer, odd widths": (NativeTransformer, transformer_problem("none", Transformer(6, 1, 36, 1, 50))),
}


@pytest.mark.parametrize("where", ["shifted", "guarded"])
def test_the_same_bits_wherever_buffers_lie(where):
    """In a process of its own, which may not survive."""
    here = Path(__file__)
    path = os.pathsep.join([*sys.path, str(here.parents[2])])
    done = subprocess.run(
        [sys.executable, str(here), where], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines() == list(CASES)


def check(kind, problem, guarded):
    """Three steps on minibatches of its own, two on given ones, and what a report takes."""
    ensemble = make_ensemble(problem)
    validation = problem.task.validation(0, "selection", *((2,) if problem.model.kind == "transformer" else ()))
    given, found = [problem.minibatch(0, step) for step in range(2)], []
    for engine in (kind(problem, ensemble), through(kind(problem, ensemble), Moved(guarded))):
        engine.advance(3)
        engine.advance(2, given)
        state = engine.dump()
        found.append(state | engine.measure(arrays_of(state, "theta"), validation, report=True))
    assert_same(*found)


if __name__ == "__main__":
    faulthandler.enable()
    for name, case in CASES.items():
        print(name, flush=True)
        check(*case, sys.argv[1] == "guarded")
