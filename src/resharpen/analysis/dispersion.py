"""Which kind of dispersion a task has, measured in trained models, and which remedy helps.

Two quantities can shrink on longer inputs. If attention is nearly uniform, the mean of n values shrinks, and with it
the amplitude of the attention output: a norm after attention restores it. If one key must keep its weight among n keys,
the largest weight falls: sharper attention restores it. Measured for a few stored models, at scored places with n keys:

    largest weight     the largest attention weight of the most focused head
    amplitude          the root mean square of the output of attention blocks, before a norm after them

and for both the slope of log y on log n by least squares: 0 is constant, -1 is that of uniform attention.

Shapes: H heads, L positions, D width, P places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.pairing import pair
from resharpen.analysis.report_set import of_median, shifts, widened
from resharpen.analysis.samples import MEDIAN, by_draw
from resharpen.analysis.scores import scores, task_of
from resharpen.analysis.statistics import Interval, quantile_interval
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.stored import StoredModel, load_model
from resharpen.lazy import pl
from resharpen.tasks import Items, Task

BASE, NORM, SHARPER = "pre", "peri", "pre+log-n"
MODELS, SEQUENCES = 4, 24
"""Number of models (the best of the baseline), and of sequences per model."""
FEWEST_KEYS = 4
"""Places with fewer keys are left out: a weight is always large there."""
FOCUSED = 0.5
"""A head focuses on one key if its mean largest weight on trained lengths is at least this."""

Lengths = Literal["trained", "new"]


@dataclass(frozen=True)
class Gain:
    """The median gain of a variant over the baseline, pair by pair, on trained or on new lengths."""

    task: str
    variant: str
    lengths: Lengths
    metric: str
    interval: Interval


@dataclass(frozen=True)
class Dispersion:
    """How attention changes with length in the best baseline models of a task."""

    task: str
    largest: float
    """Mean largest weight of the most focused head on trained lengths."""
    largest_slope: float
    amplitude_slope: float

    @property
    def kind(self) -> str:
        return "focus" if self.largest >= FOCUSED else "mean"

    @property
    def remedy(self) -> str:
        """The variant that should help according to the kind of dispersion."""
        return SHARPER if self.kind == "focus" else NORM


def gains(run: Run, baseline: str = BASE) -> list[Gain]:
    """Gains in TVD if the task has it, else in the metric that selects checkpoints."""
    task = task_of(run)
    metric = "tvd" if "tvd" in task.metrics else task.metric
    paired = pair(run, (), None, baseline, "train", "best", metric, (), "")
    worst, found = paired.sign * paired.metric.worst, []
    every: dict[Lengths, pl.DataFrame] = {
        "trained": paired.rows.filter(~pl.col("new")),
        "new": paired.rows.filter("new"),
    }
    for lengths, rows in every.items():
        if rows.is_empty():
            continue
        means = rows.group_by("setting", "variant", "draw", maintain_order=True).agg(pl.col("gain").mean())
        cell = ["setting", "variant"]
        cells, moved = by_draw(means, cell, "gain", worst, 1.0), shifts(rows, cell, paired.sign)
        for setting in paired.settings:
            for variant in paired.variants:
                ours, theirs = (setting, variant), (setting, paired.baseline)
                gain = cells[ours] - cells[theirs]
                interval = widened(quantile_interval(gain, MEDIAN, 0.0), of_median(moved, [(ours, theirs, gain)]))
                found.append(Gain(task.title, variant, lengths, paired.metric.label, interval))
    return found


def gains_table(found: Sequence[Gain]) -> pl.DataFrame:
    """One row per gain, for a file."""
    return pl.DataFrame([{**asdict(gain), **asdict(gain.interval)} for gain in found]).drop("interval")


def gains_from(table: pl.DataFrame) -> list[Gain]:
    """The gains of such a table."""
    ends = [field.name for field in fields(Interval)]
    return [
        Gain(**{name: x for name, x in row.items() if name not in ends}, interval=Interval(*(row[x] for x in ends)))
        for row in table.iter_rows(named=True)
    ]


def dispersion(run: Run, variant: str = BASE) -> Dispersion:
    """Dispersion of the best models of a variant, by their score over all lengths."""
    setting, task = run.experiment.settings[0], task_of(run)
    ranked = scores(run).filter(variant=variant, weights="train", setting=setting.name).drop_nulls("score")
    best = ranked.sort("score", descending=not task.lower_is_better)["model"].head(MODELS)
    read = [places(load_model(run, model), run.experiment.seed) for model in best]
    if not read:
        return Dispersion(task.title, nan, nan, nan)
    trained = [(largest, keys <= most) for keys, most, largest, _ in read]
    return Dispersion(
        task.title,
        float(np.mean([largest[here].mean() if here.any() else nan for largest, here in trained])),
        float(np.mean([slope(keys, largest) for keys, _, largest, _ in read])),
        float(np.mean([slope(keys, amplitude) for keys, _, _, amplitude in read])),
    )


def places(model: StoredModel, seed: int) -> tuple[NDArray[np.int64], int, NDArray[np.float64], NDArray[np.float64]]:
    """At the scored places of some sequences: keys [P], the most keys in training, the largest weight of the most
    focused head [P], and the amplitude of the attention output [P]."""
    keys, largest_HxP, amplitude = [], [], []
    for sequence, scored in sequences(model.setting.task, seed):
        trace = model.trace(sequence)
        blocks = [name.removesuffix("weights") for name in trace if name.endswith("weights")]
        weights_HxQxK = np.concatenate([trace[f"{block}weights"] for block in blocks])
        update_QxD = np.sqrt(np.mean([(trace[f"{block}update"] ** 2).mean(-1) for block in blocks], axis=0)).ravel()
        whole = weights_HxQxK.shape[1] == 1  # one query that sees all items
        at = np.zeros(1, int) if whole else scored[scored + 1 >= FEWEST_KEYS]
        keys.append(np.full(1, len(sequence)) if whole else at + 1)
        largest_HxP.append(weights_HxQxK.max(-1)[:, at])
        amplitude.append(update_QxD[at])
    keys_P, by_head_HxP = np.concatenate(keys), np.concatenate(largest_HxP, axis=1)
    most = most_keys(model)
    trained = keys_P <= most
    focused = by_head_HxP[:, trained if trained.any() else slice(None)].mean(1).argmax()
    return keys_P, most, by_head_HxP[focused].astype(np.float64), np.concatenate(amplitude).astype(np.float64)


def most_keys(model: StoredModel) -> int:
    """Keys of the longest input in training."""
    task, length = model.setting.task, model.setting.train_length
    return task.input_tokens(length) if hasattr(task, "input_tokens") else length  # pyright: ignore[reportAttributeAccessIssue]


def sequences(task: Task, seed: int) -> Iterator[tuple[Any, NDArray[np.int64]]]:
    """Sequences spread over the report set, up to their last scored place, and these places."""
    pieces = list(task.validation(seed, "report").pieces(1))
    for piece in pieces[:: -(-len(pieces) // SEQUENCES)]:
        inputs, scored, _ = task.examples(piece)
        if isinstance(inputs, Items):
            length = int(inputs.length[0])
            yield np.stack([inputs.priority[0, :length], inputs.kind[0, :length]], axis=1), np.array([length - 1])
        elif len(places := np.flatnonzero(scored[0])):
            yield inputs[0, : places[-1] + 1].tolist(), places


def slope(keys_P: NDArray[np.int64], values_P: NDArray[np.float64]) -> float:
    """Least-squares slope of log value on log number of keys; nan if all places have the same number of keys.

    >>> n = np.array([4, 8, 16])
    >>> round(slope(n, 1 / n), 6)
    -1.0
    """
    known = values_P > 0
    if len(np.unique(keys_P[known])) < 2:
        return nan
    return float(np.polyfit(np.log(keys_P[known]), np.log(values_P[known]), 1)[0])


def agreement(found: Sequence[Dispersion], of: Sequence[Gain]) -> pl.DataFrame:
    """One row per task: its kind of dispersion, the gains of both remedies on new lengths, and whether the remedy that
    the kind predicts is the better one; null where neither helps."""
    new = {(gain.task, gain.variant): gain.interval for gain in of if gain.lengths == "new"}
    rows = []
    for x in found:
        norm, sharper = (new.get((x.task, variant)) for variant in (NORM, SHARPER))
        helps = [i for i in (norm, sharper) if i is not None and i.low > 0]
        better = NORM if norm and sharper and norm.estimate >= sharper.estimate else SHARPER
        rows.append(
            {
                "task": x.task,
                "largest weight": x.largest,
                "its slope": x.largest_slope,
                "slope of amplitude": x.amplitude_slope,
                "kind": x.kind,
                NORM: None if norm is None else norm.estimate,
                SHARPER: None if sharper is None else sharper.estimate,
                "as predicted": (better == x.remedy) if helps else None,
            }
        )
    return pl.DataFrame(rows, schema_overrides={"as predicted": pl.Boolean, NORM: pl.Float64, SHARPER: pl.Float64})
