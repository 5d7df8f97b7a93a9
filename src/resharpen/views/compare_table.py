"""`resharpen compare` in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.compare import Comparison, Effect
from resharpen.analysis.verdict import Gain
from resharpen.experiments.specs.counts import side_by_side

STYLE = {"helps": "green", "hurts": "red", "no difference": "cyan", "undecided": "yellow"}


def print_comparison(found: Comparison, console: Console) -> None:
    better = "lower is better" if found.metric.lower_is_better else "higher is better"
    title = f"Gain in {found.metric.label} over '{found.baseline}', pair by pair ({better}; a gain above 0 is better)"
    table = Table("", "over", title=Text(title), title_justify="left", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.columns[0].overflow = "fold"
    for name in ("median gain", "verdict", "wins", "best tenth", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for variant in found.variants:
        effects = [effect for effect in found.effects if effect.variant == variant]
        table.add_row(Text(variant, "bold"))
        for effect in effects:
            table.add_row(*_cells(effect))
        table.add_section()
    console.print(table)
    for line in found.sentences():
        console.print(Text(f"  {line}"), soft_wrap=True, highlight=False)
    for line in side_by_side(found.parameters):
        console.print(Text(f"  Parameters: {line}"), soft_wrap=True, highlight=False)
    for line in found.size_warnings():
        console.print(Text(f"  Warning: {line}", "yellow"), soft_wrap=True, highlight=False)
    _print_importance(found, console)
    lost = sum(models.diverged for models in found.models)
    weights = "BEMA" if found.weights == "bema" else "Training"
    console.print(
        f"95% intervals over {_pairs(found)} draws per setting; helps and hurts after Holm's correction; no "
        f"difference: the interval is within {found.margin:g}; undecided +n: about n more models per setting would "
        f"decide. {weights} weights at the best checkpoint. "
        f"{lost} of {sum(models.models for models in found.models):,} models diverged; "
        "without a checkpoint they count as the worst.",
        style="dim",
    )


def _pairs(found: Comparison) -> str:
    return "-".join(map(str, sorted({models.models for models in found.models})))


def _cells(effect: Effect) -> list[str | Text]:
    wins = f"{effect.wins.estimate:.0%} ({100 * effect.wins.low:.0f}-{effect.wins.high:.0%})"
    median, best = ([_numbers(gain), _verdict(gain)] for gain in (effect.median, effect.best))
    return [Text(f"  {effect.setting}"), effect.lengths, *median, wins, *best]


def _numbers(gain: Gain) -> str:
    interval = gain.interval
    return f"{interval.estimate:+.3f} ({interval.low:.3f}..{interval.high:.3f})"


def _verdict(gain: Gain) -> Text:
    return Text(gain.verdict, STYLE[gain.verdict]).append(f" +{gain.more:,}" if gain.more else "", "dim")


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
