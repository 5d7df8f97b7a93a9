"""Score any function from tokens to logits or probabilities on the report set of a task.

    rs.score(f, rs.Dyck(8, 10))                          a torch module, a Hugging Face model, a NumPy or JAX function
    rs.score(rs.load_model(run, "dyck-k8-m10-s700/peri/3"))
    rs.score(f, rs.Dyck(8, 10), beside="fig3-overnight")     also its rank among the models there

f takes tokens [N, L], a torch tensor if f is a torch module, otherwise a NumPy array, and returns [N, L, V]: the
prediction after every prefix. Tokens after the last scored place of a sequence are padding.

Shapes: N sequences, L positions, V tokens, P scored places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError
from resharpen.experiments.keeping.opening import RunOrReference, open_run_or_reference
from resharpen.experiments.keeping.stored import StoredModel
from resharpen.lazy import pl
from resharpen.metrics import jackknife_error
from resharpen.tasks import Task
from resharpen.tasks.blocks import by_length_without
from resharpen.tasks.metrics import OF_SEQUENCES, PlaceMetric
from resharpen.tasks.trivial import trivial_values

ONE = 1e-3
"""How far a sum of probabilities may be from 1."""
MOVED = 1e-3
"""How much an output may change by rounding, relative to its largest value, when only later tokens change."""
ROUNDING = 1e-6
"""The smallest difference by which a model ranks before another."""
CHECKED = 4
"""Sequences on which causality is tested."""


@dataclass(frozen=True)
class Scored:
    """Result of `score`; prints as a table, and displays itself in a notebook."""

    name: str
    task: Task
    table: pl.DataFrame
    """One row per metric and length: value, standard error, count, trivial; beside a run also rank and models."""
    read_as: str
    """Whether the output was interpreted as logits or probabilities, and whether this was given or detected."""
    beside: str | None = None

    def __str__(self) -> str:
        means = self.means()
        lines = [f"{self.name} on {self.task.title} ({self.read_as}); mean over lengths, compared with a constant"]
        for row in means.iter_rows(named=True):
            error = "" if row["error"] is None else f" +- {row['error']:.4f}"
            constant = "" if row["trivial"] is None else f", constant {row['trivial']:.4f}"
            rank = f", rank {row['rank']} of {row['models']} in {self.beside}" if row.get("models") else ""
            places = f"{row['count']:,} {'sequences' if row['metric'] in OF_SEQUENCES else 'places'}"
            label = self.task.metrics[row["metric"]].label if row["metric"] in self.task.metrics else row["metric"]
            lines.append(f"  {row['metric']:<17} {row['value']:.4f}{error}{constant}{rank}   ({label}; {places})")
        shown = self.table.filter(pl.col("count") > 0).pivot("metric", index="length", values="value")
        with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_hide_dataframe_shape=True, tbl_width_chars=100):
            lines.append(str(shown))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.means()._repr_html_()

    def means(self) -> pl.DataFrame:
        """One row per metric: the mean over lengths, as in `rs.scores`. The standard error is the mean of the errors at
        the lengths, which is an upper bound."""
        there = self.table.filter(pl.col("count") > 0)
        mean = [pl.col(name).mean() for name in ("value", "error", "trivial")]
        ranks = [pl.col(name).first() for name in ("rank", "models") if name in there.columns]
        return there.group_by("metric", maintain_order=True).agg(*mean, pl.col("count").sum(), *ranks)


def score(
    f: Any,
    task: Task | None = None,
    *,
    probabilities: bool | None = None,
    beside: RunOrReference | str | Path | None = None,
    seed: int | None = None,
    metrics: Sequence[PlaceMetric] = (),
    sequences: int | None = None,
    batch: int = 32,
    name: str | None = None,
) -> Scored:
    """Every metric of a task by length, with standard errors, for any function from tokens to logits.

    Args:
        f: a stored model, a torch module (with or without `.logits` in its output), or a function of NumPy tokens.
        task: the task; by default that of a stored model.
        probabilities: whether f returns probabilities; by default this is detected and printed.
        beside: a run or a reference, or its name: the rank that f would have among its models, at their best
            checkpoints. Its task must be this one; its report set is used.
        seed: seed of the report set. Default: that of `beside`, or 0.
        metrics: further metrics, declared by `rs.metric`.
        sequences: number of sequences in the report set; default as in runs.
        batch: sequences per call of f.
    """
    if isinstance(f, StoredModel):
        task, name, f = task or f.setting.task, name or f.id, f.module()
    if task is None:
        raise UserError("score needs a task, such as rs.Dyck(8, 10): only a stored model has one")
    if task.reads != "tokens":
        raise UserError(f"{task.name} has inputs of {task.reads}: score supports only tasks on tokens")
    other = open_run_or_reference(beside) if isinstance(beside, str | Path) else beside
    if other is not None:
        task = _task_in(other, task)
        seed = other.experiment.seed if seed is None else seed
    if sequences is not None and other is not None:
        raise UserError("sequences cannot be set together with a run: its models were scored on its own report set")
    task = task.with_options(metrics, sequences)
    model = Predictor(f, task, probabilities)
    validation = task.validation(seed or 0, "report")
    table = _table(task, _measure(model, task, validation, batch), validation, seed or 0)
    label = name or getattr(f, "__name__", type(f).__name__)
    if other is not None:
        table = _ranked(table, other, task)
    return Scored(label, task, table, model.read_as, other.experiment.name if other is not None else None)


class Predictor:
    """f, with its input and output checked."""

    def __init__(self, f: Callable[..., Any], task: Task, probabilities: bool | None):
        if not callable(f):
            raise UserError(f"score takes a function of tokens or a model, not {type(f).__name__}")
        self._f, self._task, self._probabilities = f, task, probabilities
        self.read_as = ""
        self._checked = False

    def logits(self, tokens_NxL: NDArray[np.int64]) -> NDArray[np.floating]:
        """[N, L, V], minus infinity where a probability is zero."""
        if not self._checked:
            self._check(tokens_NxL[:CHECKED])
        found = self._output(tokens_NxL)
        if not self._probabilities:
            return found
        with np.errstate(divide="ignore"):
            return np.log(found)

    def _output(self, tokens_NxL: NDArray[np.int64]) -> NDArray[np.floating]:
        found = _called(self._f, tokens_NxL)
        shape = (*tokens_NxL.shape, self._task.vocabulary)
        if found.shape != shape:
            raise UserError(f"f returns the shape {list(found.shape)}, not {list(shape)}: sequences, places, tokens")
        if found.dtype.kind != "f":
            raise UserError(f"f returns {found.dtype}: logits and probabilities must be floating-point numbers")
        bad = np.isnan(found) | (found == np.inf) | (np.isinf(found) & bool(self._probabilities))
        bad[..., 0] |= np.isneginf(found).all(-1)
        if bad.any():
            n, i, _ = map(int, np.argwhere(bad)[0])
            raise UserError(
                f"f returns values that are not finite after {i + 1} tokens of {tokens_NxL[n, : i + 1].tolist()}"
            )
        sums = found.sum(-1)
        if self._probabilities and ((found < 0).any() or np.abs(sums - 1).max() > ONE):
            raise UserError(
                f"f does not return probabilities: they are {found.min():.3g} to {found.max():.3g} and sum to "
                f"{sums.min():.3g} to {sums.max():.3g}; for logits pass probabilities=False"
            )
        return found

    def _check(self, tokens_NxL: NDArray[np.int64]) -> None:
        """Detect the kind of output, and check that f is deterministic and causal."""
        self._checked = True
        first = self._output(tokens_NxL)
        if self._probabilities is None:
            self._probabilities = bool((first >= 0).all() and np.abs(first.sum(-1) - 1).max() < ONE)
            kind = "probabilities" if self._probabilities else "logits"
            self.read_as = f"its output was interpreted as {kind}"
        else:
            self.read_as = "probabilities" if self._probabilities else "logits"
        allowed = MOVED * max(1.0, float(np.abs(first[np.isfinite(first)]).max(initial=0)))
        if self._moved(first, self._output(tokens_NxL), allowed).any():
            raise UserError("f returns different outputs for the same input: turn off dropout and other noise")
        length, v = tokens_NxL.shape[1], self._task.vocabulary
        for cut in sorted({1, length // 3, length // 2, length - 1} - {0, length}):
            changed = tokens_NxL.copy()  # need not be a sequence of the task
            changed[:, cut:] = (changed[:, cut:] + 1 + np.arange(length - cut)) % v
            moved_NxC = self._moved(first[:, :cut], _called(self._f, changed)[:, :cut], allowed)
            if moved_NxC.any():
                n, i = map(int, np.argwhere(moved_NxC)[0])
                what = f"its output after {i + 1} tokens of {tokens_NxL[n, : i + 1].tolist()}"
                raise UserError(f"f is not causal: {what} depends on the tokens from {cut + 1} on")

    @staticmethod
    def _moved(a: NDArray[np.floating], b: NDArray[np.floating], allowed: float) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore"):
            return (~((np.abs(a - b) <= allowed) | (a == b))).any(-1)


def _called(f: Callable[..., Any], tokens_NxL: NDArray[np.int64]) -> NDArray[np.floating]:
    import torch

    if not isinstance(f, torch.nn.Module):
        found = f(tokens_NxL)
    else:
        training = f.training
        device = next((x.device for x in (*f.parameters(), *f.buffers())), torch.device("cpu"))
        f.eval()
        try:
            with torch.no_grad():
                found = f(torch.as_tensor(tokens_NxL, device=device))
        finally:
            f.train(training)
    found = getattr(found, "logits", found)
    if isinstance(found, torch.Tensor):
        found = found.detach().cpu()
        found = (found if found.dtype in (torch.float32, torch.float64) else found.float()).numpy()
    return np.asarray(found)


def _measure(model: Predictor, task: Task, validation: Any, batch: int) -> dict[str, NDArray[np.floating]]:
    import torch

    found: dict[str, list[NDArray[np.floating]]] = {}
    for piece in validation.pieces(batch * validation.inputs_NxL.shape[1]):
        inputs, scored, truth = task.examples(piece)
        logits = torch.as_tensor(model.logits(inputs)[scored])[None]
        tensors = {name: torch.as_tensor(x) for name, x in truth.items()}
        tensors = {name: x.to(logits.dtype) if x.is_floating_point() else x for name, x in tensors.items()}
        values = {**task.score(logits, tensors), **task.further_scores(logits, tensors)}
        for name, x in values.items():
            found.setdefault(name, []).append(x.numpy())
    return {name: np.concatenate(pieces, axis=1) for name, pieces in found.items()}


def _table(task: Task, measured: Mapping[str, NDArray[np.floating]], validation: Any, seed: int) -> pl.DataFrame:
    without = by_length_without(task, measured, validation)
    trivial = trivial_values(task, seed)
    rows = []
    for name, (lengths, values, counts) in task.by_length(measured, validation).items():
        if name not in task.metrics:
            continue
        errors = jackknife_error(without[name][0]) if name in without else np.full(len(lengths), np.nan)
        for length, value, error, count in zip(lengths, values[0], errors, counts, strict=True):
            constant = trivial.get(name, {}).get(int(length))
            rows.append((name, int(length), float(value), float(error), int(count), constant))
    kinds = {"metric": pl.String, "length": pl.Int64, "value": pl.Float64, "error": pl.Float64, "count": pl.Int64}
    table = pl.DataFrame(rows, {**kinds, "trivial": pl.Float64}, orient="row")
    return table.with_columns(pl.col("value", "error").fill_nan(None))


def _task_in(other: RunOrReference, task: Task) -> Task:
    """The same task as the run has it, with the sizes of its report set."""
    for setting in other.experiment.settings:
        if setting.task.name == task.name:
            return setting.task
    names = ", ".join(dict.fromkeys(setting.task.name for setting in other.experiment.settings))
    raise UserError(f"{other.directory} has no models on {task.name} (it has: {names})")


def _ranked(table: pl.DataFrame, other: RunOrReference, task: Task) -> pl.DataFrame:
    """The table with the rank of f among the models of a run on this task (training weights, best checkpoint), by the
    mean over lengths; rank 1 is better than all models. Models without values rank last."""
    settings = [setting.name for setting in other.experiment.settings if setting.task.name == task.name]
    models = other.table("models").filter(pl.col("setting").is_in(settings))
    theirs = (
        other.table("lengths")
        .filter(pl.col("count") > 0, weights="train", selection="best", test="")
        .join(models.select("model"), on="model", how="semi")
        .group_by("metric", "model")
        .agg(pl.col("value").mean())
    )
    ranks = []
    for name in table["metric"].unique(maintain_order=True):
        ours = table.filter(pl.col("count") > 0, metric=name)["value"].mean()
        there = theirs.filter(metric=name)
        if there.is_empty() or ours is None or name not in task.metrics:
            continue
        lower = task.metrics[name].lower_is_better
        gap = ours - pl.col("value") if lower else pl.col("value") - ours
        better = there.filter(gap > ROUNDING)
        ranks.append((name, 1 + better.height, there.height))
    kinds = {"metric": pl.String, "rank": pl.Int64, "models": pl.Int64}
    return table.join(pl.DataFrame(ranks, kinds, orient="row"), on="metric", how="left", maintain_order="left")
