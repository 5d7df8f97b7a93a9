"""`resharpen list`."""

from __future__ import annotations

import warnings

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.running.estimate import calibrate, estimate
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.views.progress import duration


def print_shelf(console: Console) -> None:
    table = Table("figure", "what it shows", title="The shelf", title_justify="left")
    for scale in SCALES:
        table.add_column(scale, justify="right")
    engine = next(iter(with_engine(take("fig1", "paper")).variants.values())).engine
    asked = "torch" if engine == "torch" else "auto"
    with console.status("timing a few steps of every setting ..."), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what runs on torch, and why, is said by `run`
        for name, entry in SHELF.items():
            experiments = {scale: with_engine(take(name, scale).with_changes(engine=asked)) for scale in SCALES}
            pace = calibrate(experiments["laptop"])
            cells = []
            for scale, experiment in experiments.items():
                size = entry.sizes[scale]
                seconds = estimate(experiment, pace).seconds
                below = Text(f"{size.models:,} x {size.steps:,}", "dim")
                cells.append(Text(f"{duration(seconds)}\n").append_text(below))
            table.add_row(name, entry.title, *cells)
    console.print(table)
    console.print(
        f"Times are estimates for this machine with {cores()} workers ({engine} engine); "
        "below them models per violin x steps.\nRun one with: resharpen run fig1 --scale smoke",
        style="dim",
    )
