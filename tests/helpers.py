"""Small problems and ensembles for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from resharpen.engines.base import Engine, Ensemble, Problem, initial_state
from resharpen.experiments.keeping.stored import StoredModel
from resharpen.models import RETRIEVER_PLACEMENTS, Minimal, Model, Retriever, Transformer
from resharpen.optim import OPTIMIZERS
from resharpen.optim.hyperparameters import TABLE, Row, draw, narrowed
from resharpen.optim.optimizer import Optimizer
from resharpen.optim.schedule import Schedule
from resharpen.optim.schedules import SCHEDULES
from resharpen.parts import ATTENTIONS, DROPOUTS, NORMS, PLACEMENTS, POSITIONS, STUDIED_PLACEMENTS, Parts, Placement
from resharpen.parts.part import Attention, Dropout, Norm, Positions
from resharpen.state import arrays_of
from resharpen.tasks import Batch, Dyck, MaxRetrieval, SetComplement, Task
from resharpen.tasks.automaton import Automaton

EVERYTHING = {
    **{name: PLACEMENTS[name] for name in STUDIED_PLACEMENTS},
    "all": Placement(*[True] * 5),
    "two-after": Placement(embedding_out=True, residual=True, unembedding_in=True),
}
"""The placements with norms around blocks, and two that nobody named: all of these, and those after the residual."""
SEVEN = Placement(*[True] * 7)
"""Those and the norms inside attention."""
BENIGN = {"rms_epsilon": (1e-6, 1e-4), "adam_epsilon": 1e-4, "peak_learning_rate": (1e-4, 1e-3)}
"""AdamW divides by the size of a gradient; where that is rounding error, so is the quotient. Not here."""
TINY_TRANSFORMER = Transformer(6, layers=2, d=8, heads=2, d_mlp=6)
SMALL_RETRIEVAL = MaxRetrieval(longest=64, items=512, selection_items=256)


def make_problem(
    placement: str = "peri", v: int = 5, s: int = 3, d_k: int = 2, batch: int = 6, steps: int = 50, **parts: Any
) -> Problem:
    """Set Complement and a small minimal transformer; `parts` are what `of_parts` takes."""
    return of_parts(SetComplement(v), Minimal(v, d=v + 1, d_k=d_k, d_v=v - 1), placement, s, batch, steps, 3, **parts)


def minimal_problem(
    placement: str | Placement,
    v: int = 9,
    s: int = 8,
    batch: int = 16,
    steps: int = 100,
    model: Minimal | None = None,
    **parts: Any,
) -> Problem:
    return of_parts(SetComplement(v), model or Minimal.usual(v), placement, s, batch, steps, 0, **parts)


def transformer_problem(
    placement: str = "peri",
    model: Any = TINY_TRANSFORMER,
    task: Any = None,
    cap: int = 37,
    batch: int = 6,
    steps: int = 100,
    **parts: Any,
) -> Problem:
    return of_parts(task or Dyck(2, 3), model, placement, cap, batch, steps, 3, **parts)


def rows_of(*lengths, seed=0):
    """A minibatch of sequences with the given lengths, of six tokens."""
    rng = np.random.default_rng(seed)
    shape = len(lengths), max(lengths)
    real = np.arange(shape[1]) < np.array(lengths)[:, None]
    inputs, targets = rng.integers(0, 6, shape) * real, rng.integers(0, 6, shape)
    return Batch(inputs, targets, real)


def branching(*sequences, seed=0):
    """A minibatch of sequences (length, tokens shared with the one before), in an order that is not alphabetical."""
    inputs, targets, real = rows_of(*(length for length, _ in sequences), seed=seed)
    for i, (_, shared) in enumerate(sequences):
        inputs[i, :shared] = inputs[i - 1, :shared]
    order = np.random.default_rng(seed).permutation(len(sequences))
    return Batch(inputs[order], targets[order], real[order])


def retriever_problem(
    placement: str,
    hidden: int = 32,
    batch: int = 37,
    steps: int = 100,
    length: int = 16,
    task: MaxRetrieval = SMALL_RETRIEVAL,
    **parts: Any,
) -> Problem:
    where = RETRIEVER_PLACEMENTS[placement]
    return of_parts(task, Retriever(hidden), where, length, batch, steps, 3, **parts)


def of_parts(
    task: Task,
    model: Model,
    placement: str | Placement,
    length: int,
    batch: int,
    steps: int,
    seed: int,
    norm: str | Norm = "rms",
    attention: str | Attention = "softmax",
    positions: str | Positions | None = None,
    optimizer: str | Optimizer = "adamw",
    schedule: str | Schedule = "linear",
    dropout: str | Dropout = "no-dropout",
    norm_at: Mapping[str, str] | None = None,
) -> Problem:
    """A problem whose parts are given by name, or as they are; positions are the model's own where none are said."""

    def found(catalog: Mapping[str, Any], part: Any) -> Any:
        return catalog[part] if isinstance(part, str) else part

    parts = Parts(
        found({**PLACEMENTS, **EVERYTHING, "seven": SEVEN}, placement),
        found(NORMS, norm),
        found(ATTENTIONS, attention),
        found(POSITIONS, positions or type(model).positions),
        found(DROPOUTS, dropout),
        tuple((site, NORMS[name]) for site, name in (norm_at or {}).items()),
        longest=task.longest_input,
    )
    how = found(OPTIMIZERS, optimizer), found(SCHEDULES, schedule)
    return Problem(task, model, parts, length, batch, steps, seed, *how)


def make_ensemble(problem: Problem, draws: int | Sequence[int] = 3, **rows: Any) -> Ensemble:
    """The first so many draws, or the given ones; rows of the table of hyperparameters narrowed as asked."""
    draw_M = np.arange(draws) if isinstance(draws, int) else np.array(draws)
    brought = (problem.optimizer, problem.schedule, problem.parts)
    table: dict[str, Row] = {**TABLE, **{name: row for x in brought for name, row in x.hyperparameters.items()}}
    table |= {name: narrowed(name, value, table[name]) for name, value in rows.items()}
    return Ensemble(draw_M, draw(table, problem.seed, problem.setting, draw_M))


def random_theta(problem: Problem, models: int = 2, scale: float = 0.7, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights in double, far from where they start, gains and biases included, so that every term matters."""
    rng, parameters = np.random.default_rng(seed), problem.model.parameters(problem.parts)
    return {name: scale * rng.standard_normal((models, *p.shape)) for name, p in parameters.items()}


def tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in arrays.items()}


def hyper(epsilon: Any) -> dict[str, torch.Tensor]:
    """What a built-in model takes of the hyperparameters: the epsilon of the norms, [M]."""
    return {"rms_epsilon": torch.as_tensor(epsilon)}


def moved(problem: Problem, ensemble: Ensemble, scale: float = 0.5) -> dict[str, np.ndarray]:
    """A state whose weights are far from zero, so that norms, attention and softmax are all at work."""
    rng, state = np.random.default_rng(1), initial_state(problem, ensemble)
    for name, x in arrays_of(state, "theta").items():
        size = scale * (len(x[0]) / 4) ** -0.5 if x.ndim == 3 else scale
        around = 1.0 if name.split(".")[-1].startswith("g_") else 0.0
        state[f"theta.{name}"] = (around + size * rng.standard_normal(x.shape)).astype(np.float32)
        state[f"ema.{name}"] = state[f"theta_0.{name}"] = state[f"theta.{name}"].copy()
    return state


def steep(problem: Problem, ensemble: Ensemble, steepest: Any, rest: Any, scale: float = 0.5) -> dict[str, np.ndarray]:
    """Of the retriever a state with three weights of the priority that are this large, and others up to `rest`: of all
    models, or of each."""
    state, rng = moved(problem, ensemble, scale), np.random.default_rng(2)
    shape = state["theta.W_1"][:, 0].shape
    row = rng.uniform(0.8, 1, shape) * rng.choice([-1, 1], shape) * np.reshape(rest, (-1, 1))
    row[:, [3, 5, 11]] = np.reshape(steepest, (-1, 1)) * [1, -0.9, 0.8]
    for name in ("theta", "theta_0", "ema"):
        state[f"{name}.W_1"][:, 0] = row.astype(np.float32)
    return state


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], models: Any = slice(None)) -> None:
    """Bit for bit the same state; `b` may have some of the models of `a`."""
    assert set(a) == set(b)
    for name in a:
        assert np.array_equal(a[name] if name == "step" else a[name][models], b[name], equal_nan=True), name


def assert_draws_as_numpy(engine: Engine, step: int) -> None:
    """A step on the minibatch that a kernel draws gives the same bits as one on that of the task."""
    start = engine.dump() | {"step": np.array([step])}
    engine.load(start)
    engine.advance(1)
    drawn = engine.dump()
    engine.load(start)
    engine.advance(1, [engine.problem.minibatch(engine.ensemble.group, step)])
    assert_same(drawn, engine.dump())
    engine.load(start)
    engine.advance(1, [engine.problem.minibatch(engine.ensemble.group, step + 1)])
    assert not np.array_equal(drawn["loss"], engine.dump()["loss"])


def as_tensors(inputs: Any) -> Any:
    if isinstance(inputs, tuple):
        return type(inputs)(*map(as_tensors, inputs))
    return torch.as_tensor(inputs)


@torch.no_grad()
def reported(model: StoredModel, seed: int) -> dict[tuple[str, int], float]:
    """The report of a stored model as its module gives it: metric and length -> value, by the task's own score."""
    task, module, measured = model.setting.task, model.module(), {}
    validation = task.validation(seed, "report")
    for piece in validation.pieces(10**6):
        inputs, scored, truth = task.examples(piece)
        record = {}
        further = (record,) if model.model.reads == "items" and not model.model.is_module else ()
        logits = module(as_tensors(inputs), *further)
        tensors = {name: as_tensors(x) for name, x in truth.items()}
        logits = logits[torch.as_tensor(scored)][None]
        found = {**task.score(logits, tensors), **task.further_scores(logits, tensors)}
        if record:  # of a retriever the report tells how attention disperses, too
            weights = record["weights"][0, :, 0, 0]
            found |= {"entropy": -weights.xlogy(weights).sum(-1)[None], "largest_weight": weights.amax(-1)[None]}
        for name, value in found.items():
            measured.setdefault(name, []).append(value.numpy())
    measured = {name: np.concatenate(found, axis=1) for name, found in measured.items()}
    reduced = task.by_length(measured, validation)
    return {
        (metric, int(length)): float(value)
        for metric, (lengths, values, _) in reduced.items()
        for length, value in zip(lengths, values[0], strict=True)
    }


def accepts(automaton: Automaton, string: Sequence[int]) -> bool:
    """Whether an automaton can produce a string, given without BOS and EOS."""
    return bool(automaton.p_star(np.array([[automaton.bos, *string]]))[0, -1, automaton.eos] > 0)
