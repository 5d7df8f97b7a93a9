"""`resharpen list`: the figures that can be made, and how long each takes."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.experiments.specs.shelf import SCALES, SHELF
from resharpen.views.progress import duration


def print_shelf(seconds: Mapping[tuple[str, str], float], engine: str, workers: int, console: Console) -> None:
    """`seconds` are estimates by figure and scale."""
    table = Table("figure", "what it shows", title="Figures", title_justify="left")
    for scale in SCALES:
        table.add_column(scale, justify="right")
    for name, entry in SHELF.items():
        cells = [
            Text(f"{duration(seconds[name, scale])}\n").append(f"{size.models:,} x {size.steps:,}", "dim")
            for scale, size in zip(SCALES, entry.sizes, strict=True)
        ]
        table.add_row(name, entry.title, *cells)
    console.print(table)
    console.print(
        f"Times are estimates for this machine with {workers} workers ({engine} engine); "
        "below them models per violin x steps.\nRun one with: resharpen run fig1 --scale smoke",
        style="dim",
    )
