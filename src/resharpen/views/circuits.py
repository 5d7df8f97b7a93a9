"""Figures of the circuits of trained minimal transformers, from the tables of `analysis/circuits`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator
from numpy.typing import NDArray

from resharpen.analysis.circuits import IN_FORM, Table
from resharpen.errors import UserError
from resharpen.views.palette import BLUE, GREEN, ORANGE, PURPLE, VERMILION, variant_colors
from resharpen.views.style import our_style
from resharpen.views.violins import BLACK, shade

MARKERS = "os^vxDP*"
"""Markers also differ, for print in gray."""
THEORY = {
    "gap_bound": ("2C / s", BLACK, ":"),
    "gap_plain": ("κv / ((v - 1) s)", ORANGE, "--"),
    "gap_resharpened": ("κv / √(s (v - s))", PURPLE, "-."),
}
LENGTH = "length s (tokens)"
MANY_PAIRS = 4
"""The last tick of merged pairs stands for this many or more: four tokens merged into one are six pairs."""
FLOOR = 1e-6
"""The smallest distance from constant attention on a log axis; strong weight decay makes attention exactly constant."""
SOLVED = 0.05
"""Mean TVD over the trained lengths below which a model has learned its training task."""


def _styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Color and marker by variant."""
    colors = variant_colors(names)
    return {name: (color, MARKERS[i % len(MARKERS)]) for i, (name, color) in enumerate(colors.items())}


def _describe(axes: Axes, title: str, xlabel: str, ylabel: str, fontsize: int = 10) -> None:
    axes.set_title(title, fontsize=fontsize)
    axes.set(xlabel=xlabel, ylabel=ylabel)


class _Plain(LogFormatterSciNotation):
    """Plain labels of a logarithmic axis, such as 0.01, instead of matplotlib's formulas."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _plain_labels(*which: Axis) -> None:
    for axis in which:
        axis.set_major_formatter(_Plain())
        axis.set_minor_formatter(_Plain())


@our_style()
def draw_model(table: Table, model: int, name: str) -> Figure:
    """One model: B, D and the attention table; delta and eps; entropy, amplitude and gap by length."""
    if not np.isfinite(table["residual"][model]):
        raise UserError(f"model {name}: its weights are not finite, so it cannot be drawn")
    figure = Figure(figsize=(13, 7.4), layout="constrained", dpi=150)
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=(1.15, 1)))
    largest = max(np.abs(table[key][model]).max() for key in ("B", "D"))
    logits, shares = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}, {"cmap": "cividis", "vmin": 0}
    constant = f"A, rows normalized: {float(table['attention_distance'][model]):.3f} from constant"
    panels = (
        ("B", "B: from the last token", "logit of token", "last token", "logits", logits),
        ("D", "D: moved by attention", "logit of token", "token attended to", "logits", logits),
        ("A_normalized", constant, "token attended to", "last token", "share of attention", shares),
    )
    for axes, (key, title, across, down, unit, style) in zip(above.subplots(1, 3), panels, strict=True):
        image = axes.imshow(table[key][model], interpolation="nearest", **style)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=9))
        above.colorbar(image, ax=axes, label=unit, shrink=0.85)
        _describe(axes, title, across, down)
    of_model = {key: values[model] for key, values in table.items() if key not in ("lengths", "states")}
    for axes, draw in zip(below.subplots(1, 4), (_form, _entropy, _amplitude, _gap), strict=True):
        draw(axes, of_model, table["lengths"])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(f"{name}: mean TVD over lengths {float(table['tvd'][model].mean()):.4f}", fontsize=13)
    return figure


def _form(axes: Axes, of: Table, s: NDArray) -> None:
    tokens = np.arange(len(of["delta"]))
    axes.bar(tokens - 0.2, of["delta"], 0.4, color=BLUE, label="δ")
    axes.bar(tokens + 0.2, of["eps"], 0.4, color=ORANGE, hatch="//", edgecolor="white", label="ε")
    axes.axhline(0, color=BLACK, linewidth=0.6)
    verdict = "in form" if of["in_form"] else "not in form"
    title = f"{verdict}: residual {of['residual']:.3f} (scaled {of['scaled_residual']:.3f})"
    _describe(axes, title, "token", "δ, ε (logits, before norm scales)")
    axes.margins(y=0.18)  # room for the legend
    axes.legend(fontsize=8, ncols=2, loc="upper center")


def _entropy(axes: Axes, of: Table, s: NDArray) -> None:
    axes.plot(s, of["entropy"], color=BLUE, marker="o", label="model")
    axes.plot(s, np.log(s), color=BLACK, linestyle="--", label="constant attention: log s")
    _describe(axes, "attention entropy", LENGTH, "attention entropy (nats)")
    axes.legend(fontsize=7.5, framealpha=0.6)


def _amplitude(axes: Axes, of: Table, s: NDArray) -> None:
    for key, label, color, marker in (
        ("amplitude_before", "attention output", VERMILION, "o"),
        ("amplitude_after", "after its norm", BLUE, "s"),
        ("amplitude_read", "as the unembedding reads it", GREEN, "x"),
    ):
        if not any(np.array_equal(of[key], line.get_ydata()) for line in axes.get_lines()):
            axes.plot(s, of[key], color=color, marker=marker, label=label)  # otherwise there is no norm in between
    axes.set_yscale("log")
    _plain_labels(axes.yaxis)
    _describe(axes, "amplitude of the attention output", LENGTH, "amplitude (root mean square)")
    axes.legend(fontsize=7.5, framealpha=0.6)


def _gap(axes: Axes, of: Table, s: NDArray) -> None:
    axes.plot(s, of["gap_mean"], color=BLUE, marker="o", label="mean over states")
    axes.plot(s, of["gap_min"], color=BLUE, marker="v", linestyle=":", label="smallest")
    _draw_theory(axes, s, {key: of[key] for key in THEORY})
    _describe(axes, "logit gap, absent minus present", LENGTH, "gap (logits)")
    axes.legend(fontsize=7.5, framealpha=0.6)


def _draw_theory(axes: Axes, s: NDArray, curves: Mapping[str, NDArray]) -> None:
    for key, curve in curves.items():
        label, color, line = THEORY[key]
        shown = s >= (2 if key == "gap_bound" else 1)  # C is a gap at length 1 or 2: 2C/s says nothing about length 1
        if np.isfinite(curve).all():  # it is undefined for a model that is wrong at length 1 or 2
            axes.plot(s[shown], curve[shown], color=color, linestyle=line, linewidth=1.8, label=label)
    axes.axhline(0, color=BLACK, linewidth=0.6)


@our_style()
def draw_run(tables: Mapping[str, Table], weight_decay: Mapping[str, NDArray]) -> Figure:
    """All models by variant: attention against weight decay, share of models in form, residual and merged tokens
    against TVD."""
    figure = Figure(figsize=(9.5, 7.2), layout="constrained", dpi=150)
    (decay_axes, share_axes), (residual_axes, merged_axes) = figure.subplots(2, 2)
    for i, (name, (color, marker)) in enumerate(_styles(tables).items()):
        sound = np.isfinite(tables[name]["residual"])
        table = {key: tables[name][key][sound] for key in ("residual", "attention_distance", "tvd", "merged")}
        style = {"color": color, "marker": marker, "s": 16, "alpha": 0.6, "linewidths": 0.8}
        decay_axes.scatter(
            weight_decay[name][sound], np.maximum(table["attention_distance"], FLOOR), label=name, **style
        )
        tvd = table["tvd"].mean(-1)
        residual_axes.scatter(table["residual"], tvd, **style)
        beside = 0.7 * ((i + 0.5) / len(tables) - 0.5)  # variants next to each other
        merged_axes.scatter(np.minimum(table["merged"], MANY_PAIRS) + beside, tvd, **style)
    decay_axes.set(xscale="log", yscale="log")
    _describe(decay_axes, "Is attention constant?", "weight decay", "distance of A from constant (mean TVD)", 11)
    figure.legend(*decay_axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(tables), fontsize=8)
    residual_axes.axvline(IN_FORM, color=BLACK, linestyle=":", linewidth=1)
    residual_axes.set(xscale="log", yscale="log")
    title = f"Form and error (in form: left of {IN_FORM:g})"
    _describe(residual_axes, title, "residual of the normal form (relative)", "mean TVD over lengths", 11)
    pairs = "pairs of tokens that attention does not distinguish"
    merged_axes.set(yscale="log", xlim=(-0.6, MANY_PAIRS + 0.6))
    _plain_labels(decay_axes.xaxis, decay_axes.yaxis, residual_axes.xaxis, residual_axes.yaxis, merged_axes.yaxis)
    _describe(merged_axes, "Merged tokens and error", pairs, "mean TVD over lengths", 11)
    merged_axes.set_xticks(range(MANY_PAIRS + 1), [*map(str, range(MANY_PAIRS)), f"{MANY_PAIRS} or more"])
    v = len(next(iter(tables.values()))["lengths"]) + 1
    merged_axes.axhline(1 / (2 * (v - 1)), color=BLACK, linestyle=":", linewidth=1, label="minimum with one pair")
    merged_axes.legend(handles=merged_axes.get_lines(), loc="lower right", fontsize=8)
    _draw_shares(share_axes, tables)
    finite = np.concatenate([np.isfinite(table["residual"]) for table in tables.values()])
    diverged = f"{int((~finite).sum())} diverged before their first checkpoint and are left out."
    figure.supxlabel(f"{int(finite.sum())} models; {diverged}", fontsize=9)
    return figure


def _draw_shares(axes: Axes, tables: Mapping[str, Table]) -> None:
    """Two bars per variant: by the residual of (B, D), and by the residual with norm scales."""
    for i, (name, (color, _)) in enumerate(_styles(tables).items()):
        table = tables[name]
        sound = max(1, int(np.isfinite(table["residual"]).sum()))
        for offset, key, hatch in ((-0.2, "residual", None), (0.2, "scaled_residual", "//")):
            share = float((table[key] < IN_FORM).sum() / sound)
            axes.bar(i + offset, share, 0.38, color=color, hatch=hatch, edgecolor="white")
            at = {"xy": (i + offset, share), "xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
            axes.annotate(f"{share:.0%}", fontsize=7, **at)
    axes.set_xticks(range(len(tables)), list(tables), rotation=20)
    axes.set_ylim(0, 1.08)
    title = f"In form: residual < {IN_FORM:g} (hatched: with norm scales)"
    _describe(axes, title, "variant", "share of models", 11)


@our_style()
def draw_dispersion(tables: Mapping[str, Table], train_length: int) -> Figure:
    """Dispersion, and a norm after attention: amplitude of the attention output and logit gap by length, one column per
    variant.

    Medians and 10-90% bands, compared with the theory, whose kappa is computed from the weights of each model. Only
    models that solve the trained lengths are shown.
    """
    figure = Figure(figsize=(max(6.0, 3.1 * len(tables)), 5.8), layout="constrained", dpi=150)
    grid = figure.subplots(2, len(tables), sharex=True, sharey="row", squeeze=False)
    diverged = 0
    for (name, table), amplitude_axes, gap_axes in zip(tables.items(), *grid, strict=True):
        diverged += int((~np.isfinite(table["residual"])).sum())
        solved = table["tvd"][:, table["lengths"] <= train_length].mean(-1) < SOLVED  # false where it is NaN
        amplitude_axes.set_title(f"{name}: {int(solved.sum())} of {len(solved)} models", fontsize=11)
        if solved.any():
            _dispersion_amplitude(amplitude_axes, table, solved)
            _dispersion_gap(gap_axes, table, solved)
        for axes in (amplitude_axes, gap_axes):
            shade(axes, train_length + 0.5, start=0.8)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(x=0.02)
        gap_axes.set_xlabel(LENGTH)
    grid[0, 0].set_ylabel("amplitude relative to length 1")
    grid[1, 0].set_ylabel("mean gap (logits)")
    # one legend per row, since every column that is not empty has the same entries; where curves leave room
    for row, beside in zip(grid, (grid[0, 0], grid[1, -1]), strict=True):
        handles, labels = next((found for axes in row if any(found := axes.get_legend_handles_labels())), ([], []))
        beside.legend(handles, labels, fontsize=8, loc="upper right")
    figure.suptitle("Dispersion of attention, and what a norm after it restores", fontsize=12)
    figure.supxlabel(
        f"Models with a mean TVD below {SOLVED:g} on the trained lengths (gray); {diverged} diverged before their "
        "first checkpoint.\nLines: medians. Bands: 10-90% of the models. "
        "Theory: also medians, with κ and C computed from each model's weights.",
        fontsize=9,
    )
    return figure


def _dispersion_amplitude(axes: Axes, table: Table, chosen: NDArray[np.bool_]) -> None:
    s = table["lengths"]
    v = len(s) + 1
    for key, label, color, marker in (
        ("amplitude_before", "attention output", VERMILION, "o"),
        ("amplitude_read", "as the unembedding reads it", BLUE, "s"),
    ):
        values = table[key][chosen]
        _band(axes, s, values / values[:, :1], label, color, marker)
    simplex = np.sqrt((v - s) / (s * (v - 1)))
    axes.plot(s, simplex, color=BLACK, linestyle="--", label="simplex: √((v - s) / (s (v - 1)))")


def _dispersion_gap(axes: Axes, table: Table, chosen: NDArray[np.bool_]) -> None:
    s = table["lengths"]
    _band(axes, s, table["gap_mean"][chosen], "trained models", BLUE, "o")
    precise = chosen & np.isfinite(table["gap_bound"]).all(-1)
    curves = {key: table[key][precise if key == "gap_bound" else chosen] for key in THEORY}
    _draw_theory(axes, s, {key: np.median(curve, axis=0) for key, curve in curves.items() if len(curve)})


def _band(axes: Axes, s: NDArray, values_MxS: NDArray, label: str, color: str, marker: str) -> None:
    low, middle, high = np.quantile(values_MxS, [0.1, 0.5, 0.9], axis=0)
    axes.plot(s, middle, color=color, marker=marker, markersize=4.5, label=label)
    axes.fill_between(s, low, high, color=color, alpha=0.2, linewidth=0)
