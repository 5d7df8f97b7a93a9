"""Which cure works on which disease: every remedy of the study against the untreated model, a column a disease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resharpen.analysis.claims.remedies import CURED, NO_CURE
from resharpen.analysis.compare import MARGIN, Comparison
from resharpen.views.compare_figure import interval_bar

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: attention is a color, what stands after it a shape.
ATTENTION = {
    "log-n": "#0072B2",
    "ssmax": "#E69F00",
    "asentmax": "#009E73",
    "stick-breaking": "#CC79A7",
    "softmax": "#555555",
}
AFTER = ("pre-final", "peri", "post")
"""Placements with a norm after attention."""
SHAPES = {True: "s", False: "o"}


def draw_remedies(comparisons: Sequence[Comparison]) -> Figure:
    """Above the gain of the best tenth, with the line from which it is a cure; below the median of the paired gains."""
    from matplotlib.figure import Figure

    panels = [(found, setting) for found in comparisons for setting in found.settings]
    tallest = max(len(found.variants) for found in comparisons)
    size = (max(10.0, 1.5 + 3.0 * len(panels)), max(6.5, 3.0 + 0.42 * tallest))  # room for the legend, too
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    grid = figure.subplots(2, len(panels), squeeze=False)
    for column, (found, setting) in enumerate(panels):
        for row, name in enumerate(("best", "median")):
            _panel(grid[row, column], found, setting, name, named=setting == found.settings[0])
    legend(figure)
    figure.suptitle(
        "Which cure works on which disease: against the untreated model, pair by pair over the same draws, on lengths "
        "longer than trained\n(training weights at the best checkpoint; 95% intervals over draws)",
        fontsize=10,
    )
    return figure


def _panel(axes: Axes, found: Comparison, setting: str, name: str, named: bool) -> None:
    of = {effect.variant: effect for effect in found.effects if effect.setting == setting}  # new lengths come last
    margin = NO_CURE if name == "best" else found.margin
    axes.axvspan(-margin, margin, color="#DDDDDD", alpha=0.6, linewidth=0, zorder=0)
    axes.axvline(0.0, color="black", linewidth=0.8)
    for place, variant in enumerate(found.variants):
        color, shape = look(variant)
        interval_bar(axes, getattr(of[variant], name).interval, place, {"color": color, "marker": shape})
    if name == "best":
        models = [m for m in found.models if m.setting == setting]
        perfect = 0.0 if found.metric.lower_is_better else 1.0
        away = next(abs(m.best - perfect) for m in models if m.variant == found.baseline)
        if away > CURED:
            axes.axvline(away - CURED, color="#D55E00", linewidth=1.1, linestyle="--")
        diverged, total = sum(m.diverged for m in models), sum(m.models for m in models)
        count = f"{models[0].models} models per variant, {diverged} of {total:,} diverged"
        axes.set_title(f"{setting}\n", fontsize=10, fontweight="bold")
        axes.text(0.5, 1.02, count, transform=axes.transAxes, ha="center", va="bottom", fontsize=7.5)
    what = {"best": "gain of the best tenth", "median": "median gain"}[name]
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"{what} in {found.metric.label}\n(right of 0: better than {found.baseline})", fontsize=8)
    axes.set_yticks(range(len(found.variants)), found.variants if named else [""] * len(found.variants), fontsize=8)
    axes.set_ylim(len(found.variants) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def look(variant: str) -> tuple[str, str]:
    """Color and shape.

    >>> look("peri+ssmax+nope")
    ('#E69F00', 's')
    """
    terms = variant.split("+")
    attention = next((term for term in terms if term in ATTENTION), "softmax")
    return ATTENTION[attention], SHAPES[terms[0] in AFTER]


def legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(facecolor=color, label=name) for name, color in ATTENTION.items()]
    for after, text in ((False, "no norm after attention"), (True, "a norm after attention")):
        handles.append(Line2D([], [], color="black", marker=SHAPES[after], linestyle="", label=text))
    handles.append(
        Patch(facecolor="#DDDDDD", label=f"less than {NO_CURE:g} (best), {MARGIN:g} (median): no difference")
    )
    cured = f"about here the best tenth is less than {CURED:g} from perfect: a cure"
    handles.append(Line2D([], [], color="#D55E00", linewidth=1.1, linestyle="--", label=cured))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
