"""Parity: a native engine is at most four times as far from torch in float64 as torch in float32 is."""

from __future__ import annotations

import numpy as np

from resharpen.engines.base import weights_of
from resharpen.engines.torch_engine import TorchEngine


def distance(got, exact):
    """Root mean square over the models of |got - exact| / |exact|; at least half a unit in the last place."""
    got, exact = (x.reshape(len(x), -1).astype(np.float64) for x in (got, exact))
    size = np.linalg.norm(exact, axis=1)
    there = size > 0
    relative = np.linalg.norm(got - exact, axis=1)[there] / size[there]
    return max(2.0**-24, np.sqrt(np.mean(relative**2)) if there.any() else 0.0)


def assert_close(states, names, when=""):
    """States of torch in float64, torch in float32 and a native engine."""
    assert names
    for name in names:
        torch_distance, native_distance = (distance(state[name], states[0][name]) for state in states[1:])
        assert native_distance <= 4 * torch_distance, f"{name}{when}"


def assert_parity(kind, problem, ensemble, steps=(1, 10, 100), start=None, batches=None, validation=None, **options):
    """Weights, moments, averages, the training loss and the scores of a validation set, after so many steps.

    On the problem's own minibatches, or on the given ones over and over.
    """
    engines = (
        TorchEngine(problem, ensemble, "float64"),
        TorchEngine(problem, ensemble),
        kind(problem, ensemble, **options),
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
