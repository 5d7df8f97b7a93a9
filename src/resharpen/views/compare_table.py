"""`resharpen compare` in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.compare import CHOSEN, Comparison, Effect
from resharpen.analysis.verdict import Gain

STYLE = {"helps": "green", "hurts": "red", "no difference": "cyan", "undecided": "yellow"}
WIDE = 112
"""Columns of a terminal from which everything is in one table."""


def print_comparison(found: Comparison, console: Console) -> None:
    better = "lower is better" if found.metric.lower_is_better else "higher is better"
    title = f"Gain in {found.metric.label} over '{found.baseline}', pair by pair ({better}; a gain above 0 is better)"
    console.print(Text(title))
    median, best = ["median gain", "verdict", "wins"], ["best tenth", "verdict"]
    for columns in [[*median, *best]] if console.width >= WIDE else [median, best]:
        console.print(_table(found, columns))
    for line in found.sentences():
        console.print(Text(f"  {line}"), soft_wrap=True, highlight=False)
    _print_importance(found, console)
    lost = sum(models.diverged for models in found.models)
    weights = "BEMA" if found.weights == "bema" else "Training"
    console.print(
        f"95% intervals over {_pairs(found)} draws per setting and the sequences that they are scored on; helps and "
        f"hurts after Holm's correction; no difference: the interval is within {found.margin:g}; undecided +n: about n "
        "more models per setting would decide; not trained: of neither variant a tenth of the models is better than "
        "the best constant distribution. "
        f"{weights} weights, {CHOSEN[found.selection]}. "
        f"{lost} of {sum(models.models for models in found.models):,} models diverged; "
        "without a checkpoint they count as the worst.",
        style="dim",
    )


def _pairs(found: Comparison) -> str:
    return "-".join(map(str, sorted({models.models for models in found.models})))


def _table(found: Comparison, columns: list[str]) -> Table:
    table = Table("", "over", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    longest = max(map(len, (*found.variants, *(f"  {effect.setting}" for effect in found.effects))))
    table.columns[0].overflow, table.columns[0].min_width = "fold", min(longest, 16)
    for name in columns:
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for variant in found.variants:
        table.add_row(Text(variant, "bold"))
        for effect in (effect for effect in found.effects if effect.variant == variant):
            table.add_row(Text(f"  {effect.setting}"), effect.lengths, *_cells(effect, columns))
        table.add_section()
    return table


def _cells(effect: Effect, columns: list[str]) -> list[str | Text]:
    found: list[str | Text] = []
    if "wins" in columns:
        wins = f"{effect.wins.estimate:.0%} ({100 * effect.wins.low:.0f}-{effect.wins.high:.0%})"
        found += [_numbers(effect.median), _verdict(effect.median), wins]
    if "best tenth" in columns:
        found += [_numbers(effect.best), _verdict(effect.best)]
    return found


def _numbers(gain: Gain) -> str:
    interval = gain.interval
    return f"{interval.estimate:+.3f} ({interval.low:.3f}..{interval.high:.3f})"


def _verdict(gain: Gain) -> Text:
    short = "not trained" if gain.verdict.startswith("not trained") else gain.verdict
    return Text(short, STYLE.get(gain.verdict, "magenta")).append(f" +{gain.more:,}" if gain.more else "", "dim")


def _print_importance(found: Comparison, console: Console) -> None:
    """The hyperparameters that matter; where none is sure to, the variant has a row that says so."""
    title = "What it takes to get into the best tenth (4: the best fill a fifth of the range)"
    table = Table("variant", "hyperparameter", title=title, title_justify="left")
    for name in ("importance", "95% interval", "p (Holm)", "middle of the best"):
        table.add_column(name, justify="right")
    for variant in (found.baseline, *found.variants):
        of_variant = [i for i in found.importance if i.variant == variant]
        sure = [i for i in of_variant if i.p < 0.05]
        for i in sure:
            interval = f"{i.divergence.low:.2f} to {i.divergence.high:.2f}"
            middle = f"{i.low:.2g} to {i.high:.2g}"
            cells = (f"{i.divergence.estimate:.2f}", interval, f"{i.p:.1g}", middle)
            table.add_row(Text(variant), Text(i.hyperparameter), *cells)
        if of_variant and not sure:
            best = of_variant[0].best
            none = Text(f"none is sure to matter ({best} models in the best tenth)", "dim")
            table.add_row(Text(variant), none)
    if table.row_count:
        console.print(table)
