"""Small problems and ensembles for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from resharpen.experiments.spec import Setting

from resharpen.engines.base import Ensemble, Problem, initial_state, part
from resharpen.models import PLACEMENTS, RETRIEVER_PLACEMENTS, Minimal, Placement, Retriever, Transformer
from resharpen.optim.hyperparameters import TABLE, draw, narrowed
from resharpen.tasks import SetComplement
from resharpen.tasks.dyck import Dyck
from resharpen.tasks.max_retrieval import MaxRetrieval

EVERYTHING = {
    **PLACEMENTS,
    "all": Placement(*[True] * 5),
    "two-after": Placement(embedding_out=True, residual=True, unembedding_in=True),
}
"""The named placements, and two that nobody named: every norm, and both of those after the residual."""
BENIGN = {"rms_epsilon": (1e-6, 1e-4), "adam_epsilon": 1e-4, "peak_learning_rate": (1e-4, 1e-3)}
"""AdamW divides by the size of a gradient; where that is rounding error, so is the quotient. Not here."""
TINY_TRANSFORMER = Transformer(6, layers=2, d=8, heads=2, d_mlp=6)


def make_problem(placement: str, v: int = 5, s: int = 3, d_k: int = 2, batch: int = 6, steps: int = 50) -> Problem:
    model = Minimal(v, d=v + 1, d_k=d_k, d_v=v - 1)
    name = Setting(SetComplement(v), s, model).name
    return _problem(SetComplement(v), model, PLACEMENTS[placement], s, batch, steps, 3, name)


def minimal_problem(
    placement: str, v: int = 9, s: int = 8, batch: int = 16, steps: int = 100, model: Minimal | None = None
) -> Problem:
    model = model or Minimal.smallest(v)
    return _problem(SetComplement(v), model, EVERYTHING[placement], s, batch, steps, 0, f"sct-v{v}-s{s}")


def transformer_problem(
    placement: str = "peri",
    model: Any = TINY_TRANSFORMER,
    task: Any = None,
    cap: int = 37,
    batch: int = 6,
    steps: int = 100,
    attention: str = "softmax",
) -> Problem:
    return _problem(task or Dyck(2, 3), model, EVERYTHING[placement], cap, batch, steps, 3, "t", attention)


def retriever_problem(
    placement: str, hidden: int = 32, batch: int = 37, steps: int = 100, length: int = 16, attention: str = "softmax"
) -> Problem:
    where = RETRIEVER_PLACEMENTS[placement]
    return _problem(MaxRetrieval(), Retriever(hidden), where, length, batch, steps, 3, f"max-h{hidden}", attention)


def _problem(
    task: Any,
    model: Any,
    placement: Placement,
    length: int,
    batch: int,
    steps: int,
    seed: int,
    setting: str,
    attention: str = "softmax",
) -> Problem:
    return Problem(task, model, placement, length, batch, steps, seed, setting, attention)


def make_ensemble(problem: Problem, draws: int | Sequence[int] = 3, **rows: Any) -> Ensemble:
    """The first so many draws, or the given ones; rows of the table of hyperparameters narrowed as asked."""
    draw_M = np.arange(draws) if isinstance(draws, int) else np.array(draws)
    table = {**TABLE, **{name: narrowed(name, value) for name, value in rows.items()}}
    return Ensemble(draw_M, draw(table, problem.seed, problem.setting, draw_M))


def moved(problem: Problem, ensemble: Ensemble, scale: float = 0.5) -> dict[str, np.ndarray]:
    """A state whose weights are far from zero, so that norms, attention and softmax are all at work."""
    rng, state = np.random.default_rng(1), initial_state(problem, ensemble)
    for name, x in part(state, "theta").items():
        size = scale * (len(x[0]) / 4) ** -0.5 if x.ndim == 3 else scale
        around = 1.0 if name.split(".")[-1].startswith("g_") else 0.0
        state[f"theta.{name}"] = (around + size * rng.standard_normal(x.shape)).astype(np.float32)
        state[f"ema.{name}"] = state[f"theta_0.{name}"] = state[f"theta.{name}"].copy()
    return state


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], models: Any = slice(None)) -> None:
    """Bit for bit the same state; `b` may have some of the models of `a`."""
    assert set(a) == set(b)
    for name in a:
        assert np.array_equal(a[name] if name == "step" else a[name][models], b[name], equal_nan=True), name
