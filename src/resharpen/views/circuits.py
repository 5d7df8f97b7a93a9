"""Pictures of what is inside trained minimal transformers, from the tables of `analysis/circuits`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from resharpen.analysis.circuits import IN_FORM, Table
from resharpen.errors import UserError

# The palette of Okabe and Ito, which the color-blind can tell apart; markers differ too, for print in gray.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
PLACEMENT_STYLE = {
    "pre": (VERMILION, "o"),
    "post": (PURPLE, "s"),
    "peri": (BLUE, "^"),
    "peri-init": (SKY, "v"),
    "none": (BLACK, "x"),
    "out": (GREEN, "D"),
    "pre-final": (ORANGE, "P"),
}
OTHER_STYLE = ("#777777", "*")
LENGTH = "length s (tokens)"


def _styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Color and marker by variant; others than the placements take those that no placement here has."""
    names = list(names)
    spare = iter([style for name, style in PLACEMENT_STYLE.items() if name not in names])
    return {name: PLACEMENT_STYLE.get(name) or next(spare, OTHER_STYLE) for name in names}


def draw_model(table: Table, model: int, name: str) -> Figure:
    """One model: B, D and the attention table; delta and eps; entropy, amplitude and gap by length."""
    if not np.isfinite(table["residual"][model]):
        raise UserError(f"model {name}: its weights are not finite, there is nothing to draw")
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=(1.15, 1)))
    upper, lower = above.subplots(1, 3), below.subplots(1, 4)
    largest = max(np.abs(table[key][model]).max() for key in ("B", "D"))
    for axes, key, title in zip(upper, ("B", "D"), ("B: from the last token", "D: moved by attention"), strict=False):
        image = _heat(axes, table[key][model], title, cmap="RdBu_r", vmin=-largest, vmax=largest)
        above.colorbar(image, ax=axes, label="logits", shrink=0.85)
        axes.set_xlabel("logit of token")
        axes.set_ylabel("last token" if key == "B" else "token attended to")
    distance = float(table["attention_distance"][model])
    title = f"A, rows normalized: {distance:.3f} from constant"
    image = _heat(upper[2], table["A_normalized"][model], title, cmap="cividis", vmin=0)
    above.colorbar(image, ax=upper[2], label="share of attention", shrink=0.85)
    upper[2].set_xlabel("token attended to")
    upper[2].set_ylabel("last token")
    _draw_form(lower[0], table, model)
    _draw_entropy(lower[1], table, model)
    _draw_amplitude(lower[2], table, model)
    _draw_gap(lower[3], table, model)
    figure.suptitle(f"{name}: mean TVD over lengths {float(table['tvd'][model].mean()):.4f}", fontsize=13)
    return figure


def _heat(axes: Axes, matrix: NDArray, title: str, **style: object):
    image = axes.imshow(matrix, interpolation="nearest", **style)  # pyright: ignore[reportArgumentType]
    axes.set_title(title, fontsize=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    return image


def _draw_form(axes: Axes, table: Table, model: int) -> None:
    tokens = np.arange(table["delta"].shape[1])
    axes.bar(tokens - 0.2, table["delta"][model], 0.4, color=BLUE, label=r"$\delta$")
    axes.bar(tokens + 0.2, table["eps"][model], 0.4, color=ORANGE, hatch="//", edgecolor="white", label=r"$\epsilon$")
    axes.axhline(0, color=BLACK, linewidth=0.6)
    verdict = "in form" if table["in_form"][model] else "not in form"
    residual, scaled = (float(table[key][model]) for key in ("residual", "scaled_residual"))
    axes.set_title(f"{verdict}: residual {residual:.3f} (scaled {scaled:.3f})", fontsize=10)
    axes.set_xlabel("token")
    axes.set_ylabel(r"$\delta$, $\epsilon$ (logits, before norm scales)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.18)  # room for the legend
    axes.legend(fontsize=8, ncols=2, loc="upper center")


def _draw_entropy(axes: Axes, table: Table, model: int) -> None:
    s = table["lengths"]
    axes.plot(s, table["entropy"][model], color=BLUE, marker="o", label="model")
    axes.plot(s, np.log(s), color=BLACK, linestyle="--", label="constant attention: log s")
    _by_length(axes, "attention entropy (nats)", "attention entropy")


def _draw_amplitude(axes: Axes, table: Table, model: int) -> None:
    s = table["lengths"]
    for key, label, color, marker in (
        ("amplitude_before", "attention output", VERMILION, "o"),
        ("amplitude_after", "after its norm", BLUE, "s"),
        ("amplitude_read", "as the unembedding reads it", GREEN, "x"),
    ):
        if not any(np.array_equal(table[key][model], line.get_ydata()) for line in axes.get_lines()):
            axes.plot(s, table[key][model], color=color, marker=marker, label=label)  # else there is no norm between
    axes.set_yscale("log")
    _by_length(axes, "amplitude (root mean square)", "amplitude of the attention output")


def _draw_gap(axes: Axes, table: Table, model: int) -> None:
    s = table["lengths"]
    axes.plot(s, table["gap_mean"][model], color=BLUE, marker="o", label="mean over states")
    axes.plot(s, table["gap_min"][model], color=BLUE, marker="v", linestyle=":", label="smallest")
    _draw_theory(axes, s, {key: table[key][model] for key in THEORY})
    axes.axhline(0, color=BLACK, linewidth=0.6)
    _by_length(axes, "gap (logits)", "logit gap, absent minus present")


THEORY = {
    "gap_bound": ("$2C/s$", BLACK, ":"),
    "gap_plain": (r"$\kappa v/((v-1)s)$", ORANGE, "--"),
    "gap_resharpened": (r"$\kappa v/\sqrt{s(v-s)}$", PURPLE, "-."),
}


def _draw_theory(axes: Axes, s: NDArray, curves: Mapping[str, NDArray]) -> None:
    for key, curve in curves.items():
        label, color, line = THEORY[key]
        shown = s >= (2 if key == "gap_bound" else 1)  # C is a gap at length 1 or 2: 2C/s says nothing about length 1
        if np.isfinite(curve).all():  # it is undefined for a model that is wrong at length 1 or 2
            axes.plot(s[shown], curve[shown], color=color, linestyle=line, linewidth=1.8, label=label)


def _by_length(axes: Axes, ylabel: str, title: str) -> None:
    axes.set_xlabel(LENGTH)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=7.5, framealpha=0.6)


def draw_run(tables: Mapping[str, Table], weight_decay: Mapping[str, NDArray]) -> Figure:
    """Across a run, by variant: attention against weight decay, share of models in form, residual and merged tokens
    against TVD."""
    figure = Figure(figsize=(13, 9), layout="constrained")
    decay_axes, share_axes, residual_axes, merged_axes = (figure.add_subplot(2, 2, i) for i in (1, 2, 3, 4))
    styles = _styles(tables)
    for i, (name, table) in enumerate(tables.items()):
        color, marker = styles[name]
        sound = np.isfinite(table["residual"])
        style = {"color": color, "marker": marker, "s": 16, "alpha": 0.6, "linewidths": 0.8}
        distance = table["attention_distance"][sound]
        decay_axes.scatter(weight_decay[name][sound], np.maximum(distance, FLOOR), label=name, **style)
        tvd = table["tvd"][sound].mean(-1)
        residual_axes.scatter(table["residual"][sound], tvd, label=name, **style)
        beside = 0.7 * ((i + 0.5) / len(tables) - 0.5)  # variants next to each other
        merged_axes.scatter(np.minimum(table["merged"][sound], MANY_PAIRS) + beside, tvd, label=name, **style)
    decay_axes.set(xscale="log", yscale="log", xlabel="weight decay", ylabel="distance of A from constant (mean TVD)")
    decay_axes.set_title("Is attention constant?", fontsize=11)
    figure.legend(*decay_axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(tables), fontsize=8)
    residual_axes.axvline(IN_FORM, color=BLACK, linestyle=":", linewidth=1)
    residual_axes.set(xscale="log", yscale="log", xlabel="residual of the normal form (relative)")
    residual_axes.set_ylabel("mean TVD over lengths")
    residual_axes.set_title(f"Form and error (in form: left of {IN_FORM:g})", fontsize=11)
    merged_axes.set(yscale="log", xlabel="pairs of tokens that attention does not tell apart")
    merged_axes.set_ylabel("mean TVD over lengths")
    merged_axes.set_xticks(range(MANY_PAIRS + 1), [*map(str, range(MANY_PAIRS)), f"{MANY_PAIRS} or more"])
    merged_axes.set_xlim(-0.6, MANY_PAIRS + 0.6)
    merged_axes.set_title("Merged tokens and error", fontsize=11)
    v = len(next(iter(tables.values()))["lengths"]) + 1
    merged_axes.axhline(1 / (2 * (v - 1)), color=BLACK, linestyle=":", linewidth=1, label="least with one pair")
    merged_axes.legend(handles=merged_axes.get_lines(), loc="lower right", fontsize=8)
    _draw_shares(share_axes, tables)
    figure.supxlabel(_caption(tables), fontsize=9)
    return figure


MANY_PAIRS = 4
"""From here on pairs are not counted on the axis: four tokens in one are six."""
FLOOR = 1e-6
"""Attention closer to constant than this is drawn here: strong decay takes it to exactly constant, log 0."""


def _draw_shares(axes: Axes, tables: Mapping[str, Table]) -> None:
    """Two bars a variant: by the residual of (B, D), and by that of B and D as the norms scale them."""
    for i, (name, (color, _)) in enumerate(_styles(tables).items()):
        table = tables[name]
        sound = max(1, int(np.isfinite(table["residual"]).sum()))
        for offset, key, hatch in ((-0.2, "residual", None), (0.2, "scaled_residual", "//")):
            share = float((table[key] < IN_FORM).sum() / sound)
            axes.bar(i + offset, share, 0.38, color=color, hatch=hatch, edgecolor="white")
            at = (i + offset, share)
            axes.annotate(f"{share:.0%}", at, xytext=(0, 3), textcoords="offset points", ha="center", fontsize=6.5)
    axes.set_xticks(range(len(tables)), list(tables), rotation=20)
    axes.set_ylim(0, 1.08)
    axes.set_xlabel("variant")
    axes.set_ylabel("share of models")
    axes.set_title(f"In form: residual < {IN_FORM:g} (hatched: with norm scales)", fontsize=11)


def _caption(tables: Mapping[str, Table]) -> str:
    sound = sum(int(np.isfinite(table["residual"]).sum()) for table in tables.values())
    diverged = sum(len(table["residual"]) for table in tables.values()) - sound
    return f"{sound} models; {diverged} diverged before their first checkpoint and are left out."


SOLVED = 0.05
"""Mean TVD over the trained lengths below which a model has learnt its training task."""


def draw_cure(tables: Mapping[str, Table], train_length: int) -> Figure:
    """Dispersion and its cure: amplitude of the attention output and logit gap by length, one column per variant.

    Medians and 10-90% bands beside the theory, whose kappa is read off the weights of each model. Only models that
    solve the lengths they were trained on: the picture is about what then happens beyond them.
    """
    figure = Figure(figsize=(4.1 * len(tables), 7), layout="constrained")
    grid = figure.subplots(2, len(tables), sharex=True, sharey="row", squeeze=False)
    diverged = 0
    for (name, table), amplitude_axes, gap_axes in zip(tables.items(), *grid, strict=True):
        diverged += int((~np.isfinite(table["residual"])).sum())
        solved = table["tvd"][:, table["lengths"] <= train_length].mean(-1) < SOLVED  # false where it is NaN
        amplitude_axes.set_title(f"{name}: {int(solved.sum())} of {len(solved)} models", fontsize=11)
        if solved.any():
            _cure_amplitude(amplitude_axes, table, solved)
            _cure_gap(gap_axes, table, solved)
        for axes in (amplitude_axes, gap_axes):
            axes.axvspan(0.8, train_length + 0.5, color="#DDDDDD", alpha=0.5, linewidth=0, zorder=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(x=0.02)
        gap_axes.set_xlabel(LENGTH)
    grid[0, 0].set_ylabel("amplitude relative to length 1")
    grid[1, 0].set_ylabel("mean gap (logits)")
    for row in grid:  # every column has the same entries: one legend a row, in the first column that has any
        handles, labels = next((found for axes in row if any(found := axes.get_legend_handles_labels())), ([], []))
        row[-1].legend(handles, labels, fontsize=8)
    figure.suptitle("Dispersion and its cure", fontsize=14)
    figure.supxlabel(
        f"Models with a mean TVD below {SOLVED:g} on the trained lengths (gray); {diverged} diverged before their "
        "first checkpoint.\nLines: medians. Bands: 10-90% of the models. "
        r"Theory: medians too, with $\kappa$ and $C$ read off each model.",
        fontsize=9,
    )
    return figure


def _cure_amplitude(axes: Axes, table: Table, chosen: NDArray[np.bool_]) -> None:
    s = table["lengths"]
    v = len(s) + 1
    for key, label, color, marker in (
        ("amplitude_before", "attention output", VERMILION, "o"),
        ("amplitude_read", "as the unembedding reads it", BLUE, "s"),
    ):
        values = table[key][chosen]
        _band(axes, s, values / values[:, :1], label, color, marker)
    simplex = np.sqrt((v - s) / (s * (v - 1)))
    axes.plot(s, simplex, color=BLACK, linestyle="--", label=r"simplex: $\sqrt{(v-s)/(s(v-1))}$")


def _cure_gap(axes: Axes, table: Table, chosen: NDArray[np.bool_]) -> None:
    s = table["lengths"]
    _band(axes, s, table["gap_mean"][chosen], "trained models", BLUE, "o")
    precise = chosen & np.isfinite(table["gap_bound"]).all(-1)
    curves = {key: table[key][precise if key == "gap_bound" else chosen] for key in THEORY}
    _draw_theory(axes, s, {key: np.median(curve, axis=0) for key, curve in curves.items() if len(curve)})
    axes.axhline(0, color=BLACK, linewidth=0.6)


def _band(axes: Axes, s: NDArray, values_MxS: NDArray, label: str, color: str, marker: str) -> None:
    low, middle, high = np.quantile(values_MxS, [0.1, 0.5, 0.9], axis=0)
    axes.plot(s, middle, color=color, marker=marker, markersize=4.5, label=label)
    axes.fill_between(s, low, high, color=color, alpha=0.2, linewidth=0)
