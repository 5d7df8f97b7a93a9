"""What the terminal shows of claims under several readings."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.claims.sensitivity import LEGEND, READINGS, cell, estimates, sensitivity
from resharpen.experiments.keeping.opening import RunOrReference


def print_sensitivity(run: RunOrReference, console: Console) -> None:
    found = sensitivity(run)
    verdicts = Table("", *READINGS, title="Claims by reading", title_justify="left")
    sides = Table("", "finding", "claimed", "default", "other side", title_justify="left")
    sides.title = "Findings whose estimate changes sides"
    for of in found:
        verdicts.add_row(str(of.claim.number), *(Text(cell(claim)) for claim in of.by_reading.values()))
        for default, other in of.changing():
            claimed, number = f"{default.says} {default.threshold:g}", f"{default.interval.estimate:.3f}"
            sides.add_row(str(of.claim.number), Text(default.what), claimed, number, Text(estimates(other)))
    console.print(verdicts)
    if sides.row_count:
        console.print(sides)
    for of in found:
        console.print(Text(of.depends()))
    console.print(Text(LEGEND, "dim"))
