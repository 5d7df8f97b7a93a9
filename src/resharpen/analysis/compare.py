"""Comparison of variants with a baseline, pair by pair over the same draws.

Draw i of a setting has the same hyperparameters, initial weights and minibatches in every variant, so the models of a
pair differ only in the variant. All effects are **gains**: the variant minus the baseline if higher is better, the
baseline minus the variant if lower is better. A gain above zero is better, in the unit of the task's metric. A model
that diverged before its first checkpoint has the metric's worst value.

- the median gain, with its exact interval, and the share of pairs won, ties half
- the gain of the best tenth: the difference of the 10% (or 90%) quantiles
- the expected best of k draws (`analysis/best_of.py`) of each, at every budget k
- each over all lengths and over new lengths; the median at every length
- the number of models that are better than the best constant distribution (by at least a fiftieth of its distance to a
  perfect score), and the gain as a share of that distance

Intervals are over draws, and over the sequences of the report set if it is a sample (`analysis/report_set.py`).

`analysis/verdict.py` defines the verdicts on medians and best tenths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from html import escape
from math import isfinite
from typing import Any, Literal

from resharpen.analysis.best_of import best_of, budgets
from resharpen.analysis.importance import Importance, importances
from resharpen.analysis.pairing import Compared, Paired, pair
from resharpen.analysis.report_set import Constant, Places, Shifts, of_best, of_median, shifts, widened
from resharpen.analysis.samples import BEST, MEDIAN, Cells, by_draw, correlation_within_groups, median_of
from resharpen.analysis.statistics import (
    Correlation,
    Interval,
    Sample,
    quantile_interval,
    share_interval,
    sum_interval,
)
from resharpen.analysis.verdict import MARGIN, Gain, judged, untrained
from resharpen.errors import UserError
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.counts import unlike
from resharpen.lazy import pl
from resharpen.streams import GROUP

EVERY = "mean"
"""Name in place of a setting, for the mean over all settings."""
Lengths = Literal["all", "new"]
CHOSEN = {
    "best": "checkpoints chosen on all lengths",
    "best-trained": "checkpoints chosen on trained lengths",
    "last": "last checkpoints",
}
"""Selection -> note on the lengths used: checkpoints selected on the reported lengths look better than they are."""


@dataclass(frozen=True)
class Effect:
    """A variant against the baseline in a setting, or over all settings."""

    variant: str
    setting: str
    lengths: Lengths
    pairs: int
    median: Gain
    best: Gain
    """Gain of the best tenth."""
    wins: Interval
    """The share of pairs in which the variant is better, ties half."""
    places: Places | None = None
    """Number of scored places."""
    constant: Constant | None = None
    """Value of the best prediction that ignores the input, if p* is known."""


@dataclass(frozen=True)
class AtLength:
    """The median gain at one length, or in the bin of lengths that ends there."""

    variant: str
    setting: str
    length: int
    new: bool
    """Longer than trained."""
    median: Interval


@dataclass(frozen=True)
class BestOf:
    """The expected best of k draws over all or new lengths."""

    variant: str
    setting: str
    lengths: Lengths
    k: tuple[int, ...]
    value: tuple[Interval, ...]
    """In the direction of the metric: for TVD, lower is better."""


@dataclass(frozen=True)
class Models:
    """The number of models of a variant in a setting, and how many of them diverged."""

    variant: str
    setting: str
    models: int
    diverged: int
    median: float
    best: float
    """The best tenth; both of mean values on new lengths, or over all lengths if there are no new ones."""


@dataclass(frozen=True)
class Comparison(Compared):
    """Result of `compare`; displays itself in a notebook."""

    margin: float
    effects: tuple[Effect, ...]
    """By variant, setting and lengths; the mean over settings (`EVERY`) last if there are several."""
    at_lengths: tuple[AtLength, ...]
    best_of: tuple[BestOf, ...]
    models: tuple[Models, ...]
    correlation: Correlation
    importance: tuple[Importance, ...]

    def size_warnings(self) -> list[str]:
        """Variants that are larger or smaller than the baseline."""
        return unlike(self.parameters, self.baseline)

    def headlines(self) -> list[Effect]:
        """One effect per variant: on new lengths if there are any, over all settings."""
        last = {(effect.variant, effect.lengths): effect for effect in self.effects}  # the mean of settings, if any
        return [last.get((variant, "new")) or last[variant, "all"] for variant in self.variants]

    def sentences(self) -> list[str]:
        """The verdict on each variant, with all numbers."""
        return [sentence(effect, self) for effect in self.headlines()]

    def results(self) -> list[str]:
        """The verdict on each variant in at most two lines of a terminal."""
        return [result(effect, self) for effect in self.headlines()]

    def table(self) -> pl.DataFrame:
        """The effects, one per row."""
        whole: dict[str, Any] = dict.fromkeys(("median_more", "best_tenth_more", "places", "fewest_places"), pl.Int64)
        whole |= dict.fromkeys(("beat_constant", "baseline_beat_constant"), pl.Int64)
        whole |= dict.fromkeys(("constant", "of_the_way"), pl.Float64)
        return pl.DataFrame([_row(effect) for effect in self.effects], schema_overrides=whole)

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{escape(line)}</li>" for line in (*self.sentences(), *self.size_warnings()))
        return f"<ul>{said}</ul>{self.table()._repr_html_()}"


def compare(
    run: RunOrReference,
    variants: Sequence[str] = (),
    other: RunOrReference | None = None,
    baseline: str | None = None,
    margin: float = MARGIN,
    weights: str = "train",
    selection: str = "best",
    metric: str | None = None,
    pool: Sequence[RunOrReference] = (),
    test: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare variants of a run, and of another run with the same draws, with a baseline: by default all variants with
    the baseline of the spec, or else with the first variant.

    `selection` is the checkpoint (best, best-trained, last), `metric` the metric to compare, by default the one that
    selects checkpoints. `pool` are runs of the same spec with other seeds: a pair then has the same seed and draw.
    `test` is a further test distribution of the spec. `tell` is called with the current stage: thousands of draws take
    minutes.
    """
    if not (margin > 0 and isfinite(margin)):
        raise UserError(f"margin = {margin}: must be a number above 0, in the unit of the metric")
    paired = pair(run, variants, other, baseline, weights, selection, metric, pool, test)
    return compare_pairs(paired, margin, tell)


def compare_pairs(paired: Paired, margin: float = MARGIN, tell: Callable[[str], None] = lambda _: None) -> Comparison:
    correlation = correlation_within_groups(paired.scores, paired.metric.worst)
    worth, worst = correlation.worth(GROUP), paired.sign * paired.metric.worst
    effects: list[Effect] = []
    curves: list[BestOf] = []
    for lengths, rows in paired.means().items():
        cells = by_draw(rows, ["setting", "variant"], "gain", worst, worth)
        behind = paired.rows.filter("new") if lengths == "new" else paired.rows
        tell(f"gains, {lengths} lengths")
        effects += _effects(cells, paired, lengths, margin, behind)
        for i, ((setting, variant), sample) in enumerate(cells.items()):
            tell(f"best of k, {lengths} lengths, {i} of {len(cells)} curves")
            curves.append(_curve(setting, variant, sample, paired, lengths, worst))
    tell("gains by length and importance of hyperparameters")
    order = {key: i for i, key in enumerate((v, s) for v in paired.variants for s in (*paired.settings, EVERY))}
    shared: dict[str, Any] = {field.name: getattr(paired, field.name) for field in fields(Compared)}
    return Comparison(
        **shared,
        margin=margin,
        effects=tuple(sorted(effects, key=lambda effect: order[effect.variant, effect.setting])),
        at_lengths=tuple(_at_lengths(paired, worst, worth)),
        best_of=tuple(curves),
        models=tuple(Models(*row) for row in paired.models()),
        correlation=correlation,
        importance=tuple(importances(paired, worth)),
    )


def _effects(cells: Cells, paired: Paired, lengths: Lengths, margin: float, rows: pl.DataFrame) -> list[Effect]:
    """Effects, with Holm's correction over those shown together: all settings and variants, and separately the means
    over settings. `rows` are the values of the cells."""
    moved, base = shifts(rows, ["setting", "variant"], paired.sign), paired.baseline
    settings = [setting for setting in paired.settings if (setting, paired.baseline) in cells]
    families = [[(variant, [setting]) for variant in paired.variants for setting in settings]]
    if len(settings) > 1:
        families.append([(variant, settings) for variant in paired.variants])
    effects = []
    for family in families:
        members = [(variant, of, {s: (cells[s, variant], cells[s, base]) for s in of}) for variant, of in family]
        fewest = [min(len(a.values_N) for a, _ in samples.values()) for *_, samples in members]
        constant = [paired.beside_constant(rows, variant, of) for variant, of, _ in members]
        medians = judged([_median(samples, moved, variant, base) for variant, _, samples in members], fewest, margin)
        bests = judged([_best(samples, moved, variant, base) for variant, _, samples in members], fewest, margin)
        medians, bests = (
            [gain if c is None or c.trained else untrained(gain) for gain, c in zip(gains, constant, strict=True)]
            for gains in (medians, bests)
        )
        effects += [
            Effect(
                variant,
                of[0] if len(of) == 1 else EVERY,
                lengths,
                sum(len(a.values_N) for a, _ in samples.values()),
                median,
                best,
                share_interval([a - b for a, b in samples.values()]),
                paired.places(rows, of),
                beside,
            )
            for (variant, of, samples), median, best, beside in zip(members, medians, bests, constant, strict=True)
        ]
    return effects


Samples = dict[str, tuple[Sample, Sample]]
"""Setting -> the values of a variant and of the baseline."""


def _median(samples: Samples, moved: Shifts, variant: str, baseline: str) -> Interval:
    gains = {setting: a - b for setting, (a, b) in samples.items()}
    error = of_median(moved, [((s, variant), (s, baseline), gain) for s, gain in gains.items()])
    return widened(median_of(gains), error)


def _best(samples: Samples, moved: Shifts, variant: str, baseline: str) -> Interval:
    share = 1 / len(samples)
    signed = [term for s, (a, b) in samples.items() for term in ((share, s, a), (-share, s, b))]
    error = of_best(moved, [((s, variant), (s, baseline), a, b) for s, (a, b) in samples.items()])
    return widened(sum_interval(signed, 1 - BEST, 0.0), error)


def _curve(setting: str, variant: str, sample: Sample, paired: Paired, lengths: Lengths, worst: float) -> BestOf:
    k_K, best = budgets(len(sample.values_N)), paired.sign * paired.metric.bound
    value_K = [_turned(interval, paired.sign) for interval in best_of(sample, worst, best, k_K)]
    return BestOf(variant, setting, lengths, tuple(k_K), tuple(value_K))


def _turned(interval: Interval, sign: int) -> Interval:
    low, high = sorted((sign * interval.low, sign * interval.high))
    return Interval(sign * interval.estimate, low, high, interval.p)


def _at_lengths(paired: Paired, worst: float, worth: float) -> list[AtLength]:
    keys = ["setting", "variant", "length", "new"]
    cells, moved = by_draw(paired.rows, keys, "gain", worst, worth), shifts(paired.rows, keys, paired.sign)
    found = []
    for (setting, variant, length, new), sample in sorted(cells.items(), key=lambda cell: cell[0]):
        if variant != paired.baseline:
            base = setting, paired.baseline, length, new
            gains = sample - cells[base]
            error = of_median(moved, [((setting, variant, length, new), base, gains)])
            found.append(AtLength(variant, setting, length, new, widened(quantile_interval(gains, MEDIAN, 0.0), error)))
    return found


def _row(effect: Effect) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(effect, name) for name in ("variant", "setting", "lengths", "pairs")}
    for name, gain in (("median", effect.median), ("best_tenth", effect.best)):
        row |= {f"{name}_gain": gain.interval.estimate, f"{name}_low": gain.interval.low}
        row |= {f"{name}_high": gain.interval.high, f"{name}_p": gain.p, f"{name}_verdict": gain.verdict}
        row |= {f"{name}_more": gain.more}
    row |= {"wins": effect.wins.estimate, "wins_low": effect.wins.low, "wins_high": effect.wins.high}
    c, places = effect.constant, effect.places
    row |= {"constant": c.value if c else None, "of_the_way": c.share(effect.median.interval.estimate) if c else None}
    row |= {"beat_constant": c.beat if c else None, "baseline_beat_constant": c.baseline_beat if c else None}
    return row | {"places": places.total if places else None, "fewest_places": places.fewest if places else None}


def result(effect: Effect, of: Comparison) -> str:
    """`peri against pre on new lengths: median helps, +0.210 (+0.180 to +0.250) TVD; best tenth helps, +0.110 (+0.080
    to +0.140); wins 93% of 96 pairs`"""
    return f"{_against(effect, of)}: {'; '.join(_verdicts(effect, of))}"


def sentence(effect: Effect, of: Comparison) -> str:
    """The result, the number of models that beat a constant, and the number of scored places."""
    median, *said = _verdicts(effect, of)
    if c := effect.constant:
        theirs = f"{of.baseline}: {c.baseline_beat} of {c.baseline_models}"
        said.append(f"{c.beat} of {c.models} models beat a constant ({theirs})")
    if effect.places:
        said.append(effect.places.said())
    return f"{_against(effect, of)}: {'; '.join([median + _of_the_way(effect), *said, CHOSEN[of.selection]])}"


def _against(effect: Effect, of: Comparison) -> str:
    where = {"new": "on new lengths", "all": "over all lengths"}[effect.lengths]
    if effect.setting == EVERY:
        where += ", mean of settings"
    elif len(of.settings) > 1:
        where += f" of {of.labels.get(effect.setting, effect.setting)}"
    if of.test:
        where += f" of test {of.test}"
    return f"{effect.variant} against {of.baseline} {where}"


def _verdicts(effect: Effect, of: Comparison) -> list[str]:
    median, best = (gain.said(of.margin) for gain in (effect.median, effect.best))
    wins = f"wins {effect.wins.estimate:.0%} of {effect.pairs} pairs"
    return [f"median {median} {of.metric.label}", f"best tenth {best}", wins]


def _of_the_way(effect: Effect) -> str:
    share = effect.constant.share(effect.median.interval.estimate) if effect.constant else float("nan")
    return f", {share:+.0%} of the way from a constant to perfect" if isfinite(share) else ""
