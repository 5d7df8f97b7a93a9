"""Values of models by draw, to pair variants, and estimates for claims and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resharpen.analysis.statistics import (
    Correlation,
    Interval,
    Sample,
    intraclass_correlation,
    quantile_interval,
    sum_interval,
)
from resharpen.lazy import pl
from resharpen.streams import GROUP

Cells = dict[tuple[Any, ...], Sample]
"""Key of a cell, such as (setting, variant) -> its values by draw."""
BEST, MEDIAN = 0.1, 0.5
"""Quantiles; where more is better the best tenth is 1 - BEST."""


def paired_only(rows: pl.DataFrame) -> pl.DataFrame:
    """The draws of each setting that are finished in all variants."""
    each = pl.struct("variant", "weights").n_unique()
    return rows.filter(each.over("setting", "draw") == each.over("setting"))


def correlation_within_groups(scores: pl.DataFrame, worst: float) -> Correlation:
    """Correlation between scores of draws that see the same minibatches; one number per run."""
    settings = []
    for _, rows in paired_only(scores).group_by("setting", maintain_order=True):
        wide = rows.sort("draw").pivot(["variant", "weights"], index="draw", values="score").fill_null(worst)
        settings.append((wide.drop("draw").to_numpy(), wide["draw"].to_numpy() // GROUP))
    return intraclass_correlation(settings)


def by_draw(rows: pl.DataFrame, keys: Sequence[str], value: str, worst: float, worth: float) -> Cells:
    """keys -> values sorted by draw, so that cells with the same draws can be paired."""
    ordered = rows.with_columns(value=rows[value].fill_null(worst)).sort("draw")
    return {
        key: Sample(part["value"].to_numpy(), worth * len(part))
        for key, part in ordered.group_by(*keys, maintain_order=True)
    }


def paired_differences(cells: Cells, a: str, b: str) -> dict[str, Sample]:
    """Variant a minus variant b, draw by draw, in every setting that has both; keys are (setting, variant)."""
    return {
        setting: cells[setting, a] - cells[setting, b]
        for setting, placement in sorted(cells)
        if placement == a and (setting, b) in cells
    }


def median_of(of_setting: Mapping[str, Sample]) -> Interval:
    """The median over one setting, or the mean of the medians of several. Draws of different settings are independent;
    all settings have the same weight, however many draws each has."""
    if len(of_setting) == 1:
        (sample,) = of_setting.values()
        return quantile_interval(sample, MEDIAN, 0.0)
    terms = [(1 / len(of_setting), setting, sample) for setting, sample in of_setting.items()]
    return sum_interval(terms, MEDIAN, 0.0)
