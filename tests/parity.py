"""Parity: how far a native engine may be from the definition in float64 on the same minibatches.

Three rules. In the geometric mean over models, and over tensors, native is at most four times as far as the definition
in float32. No single (model, tensor) is further off than `CAP`, unless float32 itself is as uncertain there, and that
of the first step's gradient not even then. And where float64 has an exact zero, native has one: AdamW makes a whole
step of a rounding error in its place.
"""

from __future__ import annotations

import numpy as np

from resharpen.engines.base import weights_of
from resharpen.engines.torch.definition import Definition

CAP = 1e-3
"""Relative distance from which a single (model, tensor) needs a reason."""
GRADIENT_CAP = 1e-4
"""The same for the gradient of the first step, which no chaos of training has touched."""
DOUBLE = 1e-15
"""Of a model's whole gradient: what float64 itself rounds off, in a softmax with all its weight on one key say."""
AROUND_GELU = ("W_1", "b_1", "W_2", "W_3", "b_3", "W_4")
TIMES = 4
"""How many times as far as the definition in float32 native may be."""


def distances(got, exact, negligible_M=0.0):
    """|got - exact| / |exact| of every model, at least half a unit in the last place; where the exact tensor is zero,
    infinite unless the other is. Kernels flush subnormal numbers: less than the smallest normal one apart is equal."""
    got, exact = (x.reshape(len(x), -1).astype(np.float64) for x in (got, exact))
    apart = np.maximum(np.abs(got - exact) - np.finfo(np.float32).tiny, 0)
    size, off = np.linalg.norm(exact, axis=1), np.maximum(np.linalg.norm(apart, axis=1) - negligible_M, 0)
    relative = np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
    return np.maximum(relative, 2.0**-24)


def distance(got, exact):
    """Root mean square over the models."""
    return np.sqrt(np.mean(distances(got, exact) ** 2))


def assert_close(states, names, when=""):
    """States of the definition in float64, in float32, and of a native engine: of every tensor in the geometric mean
    over models, and of every model in that over tensors.

    Where a tensor of a model is ill conditioned both distances are chance, their ratio may be anything, and a mean of
    distances would be those of that model alone.
    """
    assert names
    exact, float32, native = states
    further = {
        name: np.log(distances(native[name], exact[name]) / distances(float32[name], exact[name])) for name in names
    }
    for name, log_ratio_M in further.items():
        assert log_ratio_M.mean() <= np.log(TIMES), f"{name}{when}"
    for m, log_ratio in enumerate(np.mean(list(further.values()), axis=0)):
        assert log_ratio <= np.log(TIMES), f"model {m}{when}"


def assert_every_cell_is_close(exact, float32, native, names, cap, when=""):
    """No (model, tensor) is further off than the cap, or than `TIMES` the worst of several runs in float32 that
    differ in the order of their sums."""
    whole_M = np.sqrt(sum((x.reshape(len(x), -1) ** 2).sum(1) for name, x in exact.items() if name.startswith("m.")))
    for name in names:
        negligible_M = DOUBLE * whole_M if name.startswith("m.") else 0.0
        uncertain = np.max([distances(state[name], exact[name]) for state in float32], axis=0)
        off = distances(native[name], exact[name], negligible_M)
        worst = np.argmax(off / np.maximum(cap, TIMES * uncertain))
        allowed = max(cap, TIMES * uncertain[worst])
        assert off[worst] <= allowed, f"{name} of model {worst}{when}: {off[worst]:.1e} off, {allowed:.1e} allowed"


def assert_zeros(exact, native, when=""):
    """Moments that are exactly zero are so natively; not around a GELU, which saturates earlier in torch."""
    for name in (name for name in exact if name.startswith(("m.", "v.")) and not name.endswith(AROUND_GELU)):
        noise = native[name][exact[name] == 0]
        assert not noise.any(), f"{name}{when}: {np.abs(noise).max():.1e} in place of 0"


def backwards(batch):
    """The same minibatch with its sequences in another order."""

    def turned(x):
        return type(x)(*map(turned, x)) if isinstance(x, tuple) else x[::-1].copy()

    return turned(batch)


def engines_of(kind, problem, ensemble, start):
    """The definition in float64, twice in float32, and the native engine."""
    exact = Definition(problem, ensemble, "float64")
    engines = exact, Definition(problem, ensemble), Definition(problem, ensemble), kind(problem, ensemble)
    if start is not None:
        for engine in engines:
            engine.load(start)
    return engines


def advanced(engines, batches):
    """States after training on these minibatches, the second in float32 with its sums in another order; none has
    diverged."""
    for i, engine in enumerate(engines):
        engine.advance(len(batches), [backwards(batch) for batch in batches] if i == 2 else batches)
    states = [engine.dump() for engine in engines]
    assert all((state["diverged_at"] == -1).all() for state in states)
    return states


def assert_first_gradient(kind, problem, ensemble, start=None):
    """The gradient of one step, tensor by tensor of every model, and its exact zeros."""
    engines = engines_of(kind, problem, ensemble, start)
    exact, *float32, native = advanced(engines, [problem.minibatch(ensemble.group, 0)])
    moments = [name for name in exact if name.startswith("m.")]
    assert_every_cell_is_close(exact, float32, native, moments, GRADIENT_CAP, " in the first gradient")
    assert_zeros(exact, native, " in the first gradient")


def assert_parity(kind, problem, ensemble, steps=(1, 10, 100), start=None, batches=None, validation=None):
    """Weights, moments, averages, the training loss and the scores of a validation set, after so many steps.

    On the problem's own minibatches, or on the given ones over and over.
    """
    engines = engines_of(kind, problem, ensemble, start)
    done = 0
    for n in steps:
        given = [
            problem.minibatch(ensemble.group, i) if batches is None else batches[i % len(batches)]
            for i in range(done, n)
        ]
        states, done, when = advanced(engines, given), n, f" after {n} steps"
        if validation is not None:
            for engine, state in zip(engines, states, strict=True):
                measured = engine.measure(weights_of(state, ensemble, "train"), validation)
                state |= {f"measured.{name}": values for name, values in measured.items()}
        exact, *float32, native = states
        names = set(exact) - {"step", "diverged_at"}
        assert_close((exact, float32[0], native), names, when)
        assert_every_cell_is_close(exact, float32, native, names, CAP, when)
        assert_zeros(exact, native, when)
