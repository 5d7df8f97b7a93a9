"""Published numbers beside our draws: tables for a terminal and for a page, and the figure. All values in percent."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.text import Text

from resharpen.analysis.anchors import WIDE, Compared, finding
from resharpen.analysis.published import SOURCES, THEIR_QUERY, Anchor, Published, Range, Source
from resharpen.views.columns import Column, print_table
from resharpen.views.palette import BLUE, GREEN, VERMILION
from resharpen.views.style import our_style
from resharpen.views.violins import darker, plain_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from resharpen.analysis.statistics import Interval

HEADINGS = (
    "",
    "lengths",
    "published",
    "constant",
    "hyperparameters",
    "draws",
    "median",
    "best tenth",
    "best draw",
    "as good",
    "median is",
)
LEGEND = (
    "In percent; differences in percentage points. Constant: what the constant distribution that is best at each "
    "length scores, or a random guess. Hyperparameters are drawn or, except for steps and minibatch size, "
    "the published ones. In brackets are 95% intervals over draws: of medians and quantiles exact, from order "
    "statistics, and open where draws are too few; of shares Clopper and Pearson's. As good: the share of draws at "
    "least as good as published, or as the worse end of a range. Consistent: the interval of the median includes what "
    f"was published; undecided: it does, but is wider than {100 * WIDE:.0f} points, or that of a gain "
    "includes 0, too."
)
COLORS = {"drawn": BLUE, "published": VERMILION, THEIR_QUERY: GREEN}
STYLES = {"better": "green", "worse": "red", "consistent": "cyan", "undecided": "yellow"}
PAGE = 120
"""Characters in a line of a page."""
WORDS = {"exact": "exact match", "sets": "strings right", "closing": "brackets right"}
"""Metric -> what the figure calls it, if not by its name."""
COLUMNS, WIDTH, HEIGHT = 2, 4.15, 2.6
"""Panels side by side, and the inches of each."""
Panel = tuple[str, str, bool]
"""Title, metric, and whether its values are differences."""


def lengths_text(lengths: Range) -> str:
    low, high = lengths
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def published_text(published: Published | None) -> str:
    """Published numbers have one or two decimals.

    >>> published_text((0.9985, 0.9985)), published_text((0.01, 0.06)), published_text(None)
    ('99.85', '1.0 to 6.0', '')
    """
    if published is None:
        return ""
    low, high = (f"{100 * x:.2f}".removesuffix("0") for x in published)
    return low if low == high else f"{low} to {high}"


def interval_text(interval: Interval) -> str:
    """>>> from resharpen.analysis.statistics import Interval
    >>> interval_text(Interval(0.5, 0.25, float("inf"), 1.0))
    '50.0 (25.0 or more)'
    """
    low, high = interval.low, interval.high
    estimate = f"{100 * interval.estimate:.1f}"
    if isinf(low) and isinf(high):
        return estimate
    if isinf(low) or isinf(high):
        return f"{estimate} (up to {100 * high:.1f})" if isinf(low) else f"{estimate} ({100 * low:.1f} or more)"
    return f"{estimate} ({100 * low:.1f} to {100 * high:.1f})"


def cells(each: Compared) -> tuple[str, ...]:
    """A row of a table. A difference has no best draws: what is best of two variants may be of different draws."""
    return (
        each.anchor.label,
        lengths_text(each.lengths),
        published_text(each.published),
        "" if each.constant is None else f"{100 * each.constant:.1f}",
        each.hyperparameters,
        str(len(each.sample.values_N)),
        interval_text(each.median),
        "" if each.anchor.less else interval_text(each.best_tenth),
        "" if each.anchor.less else f"{100 * each.best:.1f}",
        "" if each.as_good is None else interval_text(each.as_good),
        each.verdict or "",
    )


def print_anchors(found: Sequence[Compared], console: Console) -> None:
    """One table per source."""
    wraps, goes = {"": 18}, {"draws": 1, "best draw": 2, "as good": 3, "best tenth": 4, "hyperparameters": 5}
    columns = [
        Column(name, right=i not in (0, 4, 10), wraps=wraps.get(name, 0), goes=goes.get(name, 0))
        for i, name in enumerate(HEADINGS)
    ]
    for source in (source for source in SOURCES if any(each.source is source for each in found)):
        rows = [cells(each) for each in found if each.source is source]
        styled = [(*row[:-1], Text(row[-1], STYLES.get(row[-1], ""))) for row in rows]
        print_table(console, columns, styled, f"{source.title} ({source.source})")
        console.print(f"Why they may differ: {source.differs}", style="dim", highlight=False)
        console.print()
    console.print(finding(found), highlight=False)
    console.print(LEGEND, style="dim", highlight=False)


@our_style()
def draw_anchors(found: Sequence[Compared], sources: Sequence[Source] = SOURCES) -> Figure:
    """What was published, and every draw. Lines of a table that have one unit share a panel."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels: dict[Panel, list[Anchor]] = {}
    for source in sources:
        for anchor in source.anchors:
            # differences that nobody published are shown once there are draws
            if any(anchor.numbers.values()) or any(each.anchor is anchor for each in found):
                title = f"{source.title}{', ' if anchor.test else ''}{anchor.test}"
                panels.setdefault((title, anchor.metric, bool(anchor.less)), []).append(anchor)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    found = [each for each in found if each.source in sources]
    figure = Figure(figsize=(WIDTH * max(columns, 1.4), HEIGHT * rows + 0.6), layout="constrained", dpi=150)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (panel, anchors) in zip(grid, panels.items(), strict=False):
        _panel(axes, panel, anchors, found)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    marks = [Line2D([], [], color="black", marker="D", linestyle="", label="published")]
    marks += [Line2D([], [], color="gray", linestyle=":", label="constant")]
    names = {
        "drawn": "drawn hyperparameters",
        "published": "published hyperparameters",
        THEIR_QUERY: "drawn, with the published query",
    }
    marks += [
        Line2D([], [], color=COLORS[whose], marker="o", linestyle="", alpha=0.6, label=name)
        for whose, name in names.items()
        if any(each.hyperparameters == whose for each in found)
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, panel: Panel, anchors: Sequence[Anchor], found: Sequence[Compared]) -> None:
    """Lines side by side, each with its ranges of lengths."""
    title, metric, differences = panel
    several = len({anchor.less for anchor in anchors}) > 1
    ticks: dict[float, str] = {}
    x = 0.0
    for anchor in anchors:
        first = x
        for lengths, published in anchor.numbers.items():
            ticks[x] = lengths_text(lengths)
            here = [each for each in found if each.anchor is anchor and each.lengths == lengths]
            for each in here:
                _draws(axes, x + (0.0 if len(here) == 1 else -0.2 if each.hyperparameters == "drawn" else 0.2), each)
            if published is not None:
                ends = [100 * end for end in published]
                axes.plot([x, x], ends, "D-", color="black", markersize=4.5, linewidth=2, zorder=4)
            x += 1
        what = anchor.what if several else anchor.what.removesuffix(f" minus {anchor.less}")
        what = what.replace("+", "\n+").replace(" minus ", "\nminus ") if len(anchors) > 2 else what
        axes.text((first + x - 1) / 2, 1.02, what, transform=axes.get_xaxis_transform(), ha="center", fontsize=7)
        x += 0.8
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=7, rotation=90 if len(ticks) > 8 else 0)
    axes.set_xlim(-0.7, x - 1.1)
    what = WORDS.get(metric, metric)
    points = f"difference of {what} (points)" if several else f"{what} minus that of {anchors[0].less} (points)"
    axes.set_ylabel(points if differences else f"{what} (%)", fontsize=8)
    empty = not any(each.anchor in anchors for each in found)
    axes.set_title(f"{title}{': differences' if differences else ''}{': no results yet' * empty}", fontsize=9, pad=24)
    axes.set_xlabel(_rests_on([each for each in found if each.anchor in anchors]), fontsize=8)
    axes.tick_params(axis="y", labelsize=7.5)
    if differences:
        axes.axhline(0, color="black", linewidth=0.8, zorder=1)
    else:  # shares from 0 on, with room for marks at the ends
        high = axes.get_ylim()[1]
        axes.set_ylim(-0.05 * high, 1.05 * high)
    plain_panel(axes, "y")


def _rests_on(found: Sequence[Compared]) -> str:
    """The unit of the lengths, and the number of draws and of diverged models."""
    if not found:
        return ""
    draws = dict.fromkeys((each.hyperparameters, len(each.sample.values_N)) for each in found)
    diverged = len({(each.hyperparameters, model) for each in found for model in each.diverged})
    return f"length ({found[0].unit}); {' and '.join(str(n) for _, n in draws)} draws, {diverged or 'none'} diverged"


def _draws(axes: Axes, x: float, each: Compared) -> None:
    """A dot per draw in ascending order, and the median with its interval."""
    values_N, color = np.sort(100 * each.sample.values_N), COLORS[each.hyperparameters]
    axes.plot(x + np.linspace(-0.14, 0.14, len(values_N)), values_N, "o", color=color, alpha=0.4, markersize=2.5)
    median = each.median
    if each.constant is not None:
        axes.hlines(100 * each.constant, x - 0.3, x + 0.3, color="gray", linewidth=1, linestyle=":")
    axes.hlines(100 * median.estimate, x - 0.19, x + 0.19, color=darker(color), linewidth=1.6)
    if np.isfinite([median.low, median.high]).all():
        axes.vlines(x, 100 * median.low, 100 * median.high, color=darker(color), linewidth=1.6)


def section(source: Source, found: Sequence[Compared], trained: Sequence[str]) -> str:
    """A section of a page, in Markdown: what was published, what ours is, and a table; another one for what was not
    published. `trained` says how every run was trained."""
    known = [cells(each) for each in found if each.published is not None]
    further = [cells(each) for each in found if each.published is None]
    lines = [
        f"## {source.title}",
        "",
        *_lines(f"**Published** ({source.source}). {source.protocol}"),
        "",
        *_lines(f"**Ours.** {source.ours} From {' and '.join(trained)}."),
        "",
        *_lines(f"**Why they may differ.** {source.differs}"),
        "",
        f"![{source.title}: published numbers as diamonds over the values of our draws](images/{source.picture}.png)",
        "",
    ]
    if known or not found:
        lines += _table(HEADINGS, known)
    if not found:
        empty = ("", "no results yet") + ("",) * 6
        lines += [
            f"| {' | '.join((anchor.label, lengths_text(lengths), published_text(value), *empty))} |"
            for anchor in source.anchors
            for lengths, value in anchor.numbers.items()
            if value is not None
        ]
    if further:
        shown = [i for i, values in enumerate(zip(*further, strict=True)) if any(values)]
        lines += ["", "Without a published number:", ""] if known else []
        lines += _table([HEADINGS[i] for i in shown], [[row[i] for i in shown] for row in further])
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _lines(text: str) -> list[str]:
    return wrap(text, PAGE, break_on_hyphens=False, break_long_words=False)
