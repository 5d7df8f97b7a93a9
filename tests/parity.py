"""Parity: a native engine is at most four times as far from torch in float64 as torch in float32 is."""

from __future__ import annotations

import numpy as np

from resharpen.engines.base import weights_of
from resharpen.engines.torch_engine import TorchEngine


def distances(got, exact):
    """|got - exact| / |exact| of every model, at least half a unit in the last place."""
    got, exact = (x.reshape(len(x), -1).astype(np.float64) for x in (got, exact))
    size = np.linalg.norm(exact, axis=1)
    relative = np.linalg.norm(got - exact, axis=1) / np.where(size > 0, size, 1)
    return np.maximum(np.where(size > 0, relative, 0), 2.0**-24)


def distance(got, exact):
    """Root mean square over the models."""
    return np.sqrt(np.mean(distances(got, exact) ** 2))


def assert_close(states, names, when=""):
    """States of torch in float64, torch in float32 and a native engine: of every tensor in the geometric mean over
    models, and of every model in that over tensors.

    Where a tensor of a model is ill conditioned both distances are chance, their ratio may be anything, and a mean of
    distances would be those of that model alone.
    """
    assert names
    exact, torch, native = states
    further = {
        name: np.log(distances(native[name], exact[name]) / distances(torch[name], exact[name])) for name in names
    }
    for name, log_ratio_M in further.items():
        assert log_ratio_M.mean() <= np.log(4), f"{name}{when}"
    for m, log_ratio in enumerate(np.mean(list(further.values()), axis=0)):
        assert log_ratio <= np.log(4), f"model {m}{when}"


def assert_parity(kind, problem, ensemble, steps=(1, 10, 100), start=None, batches=None, validation=None):
    """Weights, moments, averages, the training loss and the scores of a validation set, after so many steps.

    On the problem's own minibatches, or on the given ones over and over.
    """
    engines = (
        TorchEngine(problem, ensemble, "float64"),
        TorchEngine(problem, ensemble),
        kind(problem, ensemble),
    )
    done = 0
    if start is not None:
        for engine in engines:
            engine.load(start)
    for n in steps:
        given = [
            problem.minibatch(ensemble.group, i) if batches is None else batches[i % len(batches)]
            for i in range(done, n)
        ]
        states = []
        for engine in engines:
            engine.advance(n - done, given)
            state = engine.dump()
            if validation is not None:
                measured = engine.measure(weights_of(state, ensemble, "train"), validation)
                state |= {f"measured.{name}": values for name, values in measured.items()}
            states.append(state)
        done = n
        assert all((state["diverged_at"] == -1).all() for state in states)
        assert_close(states, set(states[0]) - {"step", "diverged_at"}, f" after {n} steps")
