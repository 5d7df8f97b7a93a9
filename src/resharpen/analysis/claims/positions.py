"""Claims 10 and 11, our own: how much of the loss on longer inputs is due to position encodings.

The distance of a model is its mean TVD, or one minus its mean AUC or accuracy. Its **loss** is its distance on new
lengths minus that on trained lengths. A change **recovers** the amount by which it reduces this loss:

    masking far keys    the same model, without the keys that are further away than any in training
    a norm              peri instead of pre: dispersion of values
    log n               log-n instead of softmax: dispersion of weights
    others              another position encoding instead of rope

All are medians over the draws that `pre` learns: the better half by distance on trained lengths, selected without using
longer inputs. Masking distant keys also removes dispersion, which grows with the number of keys; what it recovers for a
model without positions is due to dispersion alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from resharpen.analysis.claims.finding import Claim, Finding, make_claim
from resharpen.analysis.claims.reading import THRESHOLD
from resharpen.analysis.samples import MEDIAN, by_draw, correlation_within_groups, paired_only
from resharpen.analysis.scores import scored_lengths, scores, task_of, worst_values
from resharpen.analysis.statistics import Interval, Sample, quantile_interval
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.lazy import pl
from resharpen.streams import GROUP

BASE = "pre"
"""The variant whose loss is analyzed: rope, with norms only before the blocks."""
SPLIT = {"masking far keys": "", "a norm": "peri", "log n": "pre+log-n"}
"""Change that may recover the loss -> its variant; the first masks keys of the same models."""
FAINTER = ("alibi", "t5", "window")
"""Encodings, or attention, that reduce the weight of distant keys."""
FAR_TASK = "copy"
"""The task in which the distance to the answer grows with the length of the question."""
NUMBERS = (10, 11)


@dataclass(frozen=True)
class Losses:
    """One setting of a run: variant -> values by draw, of the same draws throughout."""

    setting: str
    title: str
    trained: Mapping[str, Sample]
    """Distances on trained lengths, of the draws that are learned."""
    new: Mapping[str, Sample]
    """Distances on new lengths."""
    near: Mapping[str, Sample]
    """The same with distant keys masked."""

    def lost(self, variant: str) -> Sample:
        return self.new[variant] - self.trained[variant]

    def median_lost(self, variant: str) -> Interval:
        return quantile_interval(self.lost(variant), MEDIAN, 0.0)

    def recovered(self, what: str, base: str = BASE) -> Sample | None:
        """The amount that one of SPLIT recovers for `pre` or `pre+nope`; None if a variant is missing."""
        without = base.removeprefix(BASE)
        other = base if not SPLIT[what] else f"{SPLIT[what]}{without}"
        if base not in self.new or other not in (self.near if other == base else self.new):
            return None
        return self.new[base] - self.near[base] if other == base else self.lost(base) - self.lost(other)


def distances(run: RunOrReference, near: pl.DataFrame) -> pl.DataFrame:
    """One row per model: its distance on `trained` lengths, on `new` lengths, and on new lengths with distant keys
    masked (`near`, from `rescoring.read_near`; null if not applicable); `worth` is the effective share of draws."""
    titles = {setting.name: setting.task.title for setting in run.experiment.settings}
    read = _distances(run, near).select("setting", "variant", "draw", near="new")
    worth = correlation_within_groups(scores(run), worst_values(run)[task_of(run).metric]).worth(GROUP)
    return (
        _distances(run)
        .join(read, on=["setting", "variant", "draw"], how="left", maintain_order="left")
        .select(
            "setting",
            pl.col("setting").replace_strict(titles).alias("title"),
            "variant",
            "draw",
            "trained",
            "new",
            "near",
            pl.lit(worth).alias("worth"),
        )
    )


def losses(distances: pl.DataFrame) -> list[Losses]:
    """The losses of every variant, by setting, from the rows of `distances`."""
    found = []
    for (setting, title, worth), rows in distances.group_by("setting", "title", "worth", maintain_order=True):
        if BASE not in set(rows["variant"]):
            continue
        read = rows.filter(pl.col("near").is_not_null().any().over("variant"))
        every = {
            column: {variant: sample for (variant,), sample in by_draw(of, ["variant"], column, 1.0, worth).items()}
            for column, of in (("trained", rows), ("new", rows), ("near", read))
        }
        learned = _better_half(every["trained"][BASE].values_N)
        some = [
            {variant: Sample(x.values_N[learned], worth * learned.sum()) for variant, x in every[column].items()}
            for column in ("trained", "new", "near")
        ]
        found.append(Losses(str(setting), str(title), *some))
    return found


def positions_claims(found: Sequence[Losses]) -> list[Claim]:
    """Claims 10 and 11, as far as the run has the settings and variants for them."""
    local = [each for each in found if not each.setting.startswith(FAR_TASK)]
    due: list[Finding] = []
    for each in local:
        near, rope_free = each.recovered("masking far keys"), each.recovered("masking far keys", f"{BASE}+nope")
        if near is None:
            continue
        half = Sample(0.5 * each.lost(BASE).values_N, near.effective)
        others = {"half of the loss": half, "what a norm recovers": each.recovered("a norm")}
        others |= {"what log n recovers": each.recovered("log n"), "the same without positions": rope_free}
        due += [
            Finding(
                f"{each.setting}: recovered by masking far keys, minus {what}",
                quantile_interval(near - other, MEDIAN, 0.0),
                ">",
                0.0,
            )
            for what, other in others.items()
            if other is not None
        ]
    fainter = [
        Finding(
            f"{each.setting}, {placement}+{name}: loss minus that of {placement}",
            quantile_interval(each.lost(f"{placement}+{name}") - each.lost(placement), MEDIAN, 0.0),
            "<",
            0.0,
        )
        for each in local
        for placement in (BASE, "peri")
        for name in FAINTER
        if {placement, f"{placement}+{name}"} <= set(each.new)
    ]
    far = [
        Finding(f"{each.setting}, {variant}: distance", quantile_interval(sample, MEDIAN, THRESHOLD), ">", THRESHOLD)
        for each in found
        if each.setting.startswith(FAR_TASK)
        for variant, sample in each.new.items()
        if variant.split("+")[0] in (BASE, "peri")
    ]
    texts = (
        "most of the loss of rope on longer inputs is due to positions: masking far keys recovers more than half of "
        "it, more than a norm or log n, and more than in models without positions",
        "encodings that give far keys less weight lose less on longer inputs if the answer is near; if it is far, no "
        "encoding generalizes",
    )
    each = zip(NUMBERS, texts, (due, fainter + far), strict=True)
    return [make_claim(number, f"Ours: {text}", findings) for number, text, findings in each if findings]


def _distances(run: RunOrReference, lengths: pl.DataFrame | None = None) -> pl.DataFrame:
    """Distances per model (training weights, best checkpoint) on trained and on new lengths, `trained` and `new`, for
    draws that all variants have."""
    task = task_of(run)
    rows = scored_lengths(run, "best", lengths).filter(metric=task.metric, weights="train")
    away = pl.col("value") if task.lower_is_better else 1 - pl.col("value")
    longer = pl.col("length") > pl.col("train_length")
    found = rows.group_by("setting", "variant", "weights", "draw", maintain_order=True).agg(
        trained=away.filter(~longer).mean(), new=away.filter(longer).mean()
    )
    return paired_only(found)


def _better_half(values_N: np.ndarray) -> np.ndarray:
    """True for the half with the smaller values, rounded up."""
    chosen = np.zeros(len(values_N), bool)
    chosen[np.argsort(values_N, kind="stable")[: (len(values_N) + 1) // 2]] = True
    return chosen
