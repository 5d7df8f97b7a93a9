"""Other people's tables: published numbers, and where our models are beside them.

A number is the mean of a metric over a range of lengths. A model has one value for it: training weights at the
checkpoint that is best on trained lengths, since none of the published protocols chooses by longer ones. Over draws
there are the median and the best tenth with exact intervals, the best draw, and the share of draws that are at least
as good as published. Everything is a share from 0 to 1, or a difference of two of them on the same draws.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, get_args

import numpy as np

from resharpen.analysis.published import QUERY, RUNS, THEIR_QUERY, Anchor, Published, Range, Source
from resharpen.analysis.samples import BEST, MEDIAN, correlation_within_groups
from resharpen.analysis.scores import lengths_of, scored_lengths, scores, task_of
from resharpen.analysis.statistics import Floats, Interval, Sample, quantile_interval, share_interval
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.shelf import SCALES
from resharpen.lazy import pl
from resharpen.streams import GROUP
from resharpen.tasks.task import Task
from resharpen.tasks.trivial import trivial_values

SELECTION = "best-trained"
ROUNDING = 0.0005
"""Published numbers are tenths of a percent, and so off by half of one at most; differences by twice that."""
WIDE = 0.2
"""The width of an interval from which it says too little."""
Verdict = Literal["better", "worse", "consistent", "undecided"]


@dataclass(frozen=True)
class Compared:
    """A published number, and our draws."""

    source: Source
    anchor: Anchor
    hyperparameters: str
    """Drawn, or published; and whether the query is theirs."""
    lengths: Range
    sample: Sample
    lower_is_better: bool
    unit: str
    """Of the lengths."""
    constant: float | None = None
    """The value of the best constant distribution, or of a random guess; None of a difference."""
    diverged: frozenset[str] = frozenset()
    """The models that diverged. Without an earlier checkpoint they have the worst value."""

    @property
    def published(self) -> Published | None:
        return self.anchor.numbers[self.lengths]

    @property
    def median(self) -> Interval:
        return quantile_interval(self.sample, MEDIAN, 0.0)

    @property
    def best_tenth(self) -> Interval:
        return quantile_interval(self.sample, BEST if self.lower_is_better else 1 - BEST, 0.0)

    @property
    def best(self) -> float:
        return float(self.sample.values_N.min() if self.lower_is_better else self.sample.values_N.max())

    @property
    def as_good(self) -> Interval | None:
        """The share of draws at least as good as published; of a range, as its worse end. None if that is 0, the worst
        possible value or no gain."""
        if self.published is None or (self.published[0] == 0 and not self.lower_is_better):
            return None
        values_N, (least, most) = self.sample.values_N, self.published
        good_N = values_N <= most if self.lower_is_better else values_N >= least
        return share_interval([replace(self.sample, values_N=np.where(good_N, 1.0, -1.0))])

    @property
    def verdict(self) -> Verdict | None:
        """Where the interval of the median is beside what was published, which is rounded; undecided if a wide interval
        includes it, or that of a difference also no difference, or if there are too few draws for an interval."""
        if self.published is None:
            return None
        rounding = ROUNDING * (2 if self.anchor.less else 1)
        (least, most), median = (self.published[0] - rounding, self.published[1] + rounding), self.median
        if not (isfinite(median.low) and isfinite(median.high)):
            return "undecided"
        if median.low > most:
            return "worse" if self.lower_is_better else "better"
        if median.high < least:
            return "better" if self.lower_is_better else "worse"
        nothing = bool(self.anchor.less) and least > 0 and median.low <= 0
        return "consistent" if median.high - median.low <= WIDE and not nothing else "undecided"


def compared(run: RunOrReference) -> list[Compared]:
    """All published numbers that a run can be compared with; none of most runs, and none of a metric that was not
    measured there."""
    name = re.sub(f"-({'|'.join(SCALES)})$", "", run.experiment.name)
    if name not in RUNS:
        return []
    metrics, tests, unit = task_of(run).metrics, ("", *task_of(run).tests), task_of(run).unit
    diverged = run.table("models").filter(pl.col("diverged_at").is_not_null())
    worth = correlation_within_groups(scores(run, SELECTION), metrics[task_of(run).metric].worst).worth(GROUP)
    source, found = RUNS[name], []
    whose = THEIR_QUERY if name == QUERY else source.runs[name]
    for anchor in source.anchors:
        if anchor.metric not in metrics or anchor.test not in tests:  # another task of that name
            continue
        rows = scored_lengths(run, SELECTION, lengths_of(run, anchor.test)).filter(
            metric=anchor.metric, weights="train"
        )
        models = frozenset(diverged.filter(pl.col("variant").is_in([anchor.variant, anchor.less]))["model"])
        for between in anchor.numbers:
            values_N = values(rows, anchor, between, metrics[anchor.metric].worst)
            if len(values_N):
                sample = Sample(values_N, worth * len(values_N))
                lower = metrics[anchor.metric].lower_is_better
                constant = constant_value(task_of(run), run.experiment.seed, anchor, between)
                found.append(Compared(source, anchor, whose, between, sample, lower, unit, constant, models))
    return found


def constant_value(task: Task, seed: int, anchor: Anchor, lengths: Range) -> float | None:
    """What a model scores that ignores its input, in the mean over a range of lengths."""
    if anchor.less:
        return None
    by_length = trivial_values(task.tested(anchor.test), seed, anchor.metric).get(anchor.metric, {})
    inside = [value for length, value in by_length.items() if lengths[0] <= length <= lengths[1]]
    return float(np.mean(inside)) if inside else None


def values(rows: pl.DataFrame, anchor: Anchor, lengths: Range, worst: float) -> Floats:
    """A value per draw from rows of `lengths` of one metric, [N]: the mean over the range, or a difference of means. A
    model that diverged has the worst value."""
    means = (
        rows.filter(pl.col("length").is_between(*lengths))
        .group_by("variant", "draw")
        .agg(pl.col("value").mean())
        .with_columns(pl.col("value").fill_null(worst))
    )
    here = means.filter(variant=anchor.variant)
    if anchor.less:
        other = means.filter(variant=anchor.less).select("draw", less="value")
        here = here.join(other, on="draw").with_columns(value=pl.col("value") - pl.col("less"))
    return here.sort("draw")["value"].to_numpy()


def finding(found: Iterable[Compared]) -> str:
    """How many published numbers our draws agree with, in one sentence."""
    known = [each for each in found if each.verdict is not None]
    if not known:
        return "No numbers are published to compare these with."
    counts = {word: sum(each.verdict == word for each in known) for word in get_args(Verdict)}
    reached = sum(bool(each.as_good and each.as_good.estimate > 0) for each in known)
    return (
        f"Of {len(known)} comparisons with published numbers, the median of our draws is consistent with "
        f"{counts['consistent']}, better in {counts['better']}, worse in {counts['worse']} and undecided in "
        f"{counts['undecided']}; in {reached} at least one draw is as good as published."
    )
