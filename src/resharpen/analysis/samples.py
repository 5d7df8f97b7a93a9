"""Values of models by draw, so that variants pair up, and what claims and comparisons estimate from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resharpen.analysis.statistics import (
    Correlation,
    Interval,
    Sample,
    intraclass_correlation,
    quantile_interval,
    sum_interval,
)
from resharpen.streams import GROUP

if TYPE_CHECKING:
    import polars as pl

Cells = dict[tuple[Any, ...], Sample]
"""What a cell is, such as (setting, variant) -> its values by draw."""
BEST, MEDIAN = 0.1, 0.5
"""Quantiles; the best of what should be high is 1 - BEST."""


def paired_only(rows: pl.DataFrame) -> pl.DataFrame:
    """The draws of each setting that every variant has: in an unfinished run some are ahead of others."""
    import polars as pl

    each = pl.struct("variant", "weights").n_unique()
    return rows.filter(each.over("setting", "draw") == each.over("setting"))


def correlation_within_groups(scores: pl.DataFrame, worst: float) -> Correlation:
    """How alike the scores of draws are that see the same minibatches; one number for a run."""
    settings = []
    for _, rows in paired_only(scores).group_by("setting", maintain_order=True):
        wide = rows.sort("draw").pivot(["variant", "weights"], index="draw", values="score").fill_null(worst)
        settings.append((wide.drop("draw").to_numpy(), wide["draw"].to_numpy() // GROUP))
    return intraclass_correlation(settings)


def by_draw(rows: pl.DataFrame, keys: Sequence[str], value: str, worst: float, worth: float) -> Cells:
    """keys -> values sorted by draw, so that cells with the same draws pair up; each draw worth so many independent
    ones."""
    ordered = rows.with_columns(value=rows[value].fill_null(worst)).sort("draw")
    return {
        key: Sample(part["value"].to_numpy(), worth * len(part))
        for key, part in ordered.group_by(*keys, maintain_order=True)
    }


def paired_differences(cells: Cells, a: str, b: str) -> dict[str, Sample]:
    """Variant a minus variant b, draw by draw, in every setting that has both; cells are (setting, variant)."""
    return {
        setting: cells[setting, a] - cells[setting, b]
        for setting, placement in sorted(cells)
        if placement == a and (setting, b) in cells
    }


def median_of(of_setting: Mapping[str, Sample]) -> Interval:
    """The median of one setting's sample, with its interval; of several settings the mean of their medians.

    Draw i is another draw in each of them, so there is nothing to pair across settings, and all count alike however
    many draws each has.
    """
    if len(of_setting) == 1:
        (sample,) = of_setting.values()
        return quantile_interval(sample, MEDIAN, 0.0)
    terms = [(1 / len(of_setting), setting, sample) for setting, sample in of_setting.items()]
    return sum_interval(terms, MEDIAN, 0.0)
