"""Terminal output of claims under several readings."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from resharpen.analysis.claims.sensitivity import LEGEND, READINGS, cell, estimates, sensitivity
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.views.columns import Column, print_table


def print_sensitivity(run: RunOrReference, console: Console) -> None:
    found = sensitivity(run)
    verdicts = [[Text(cell(claim)) for claim in of.by_reading.values()] for of in found]
    rows = [(reading, *column) for reading, column in zip(READINGS, zip(*verdicts, strict=True), strict=True)]
    claims = [Column(f"claim {of.claim.number}", wraps=12) for of in found]
    print_table(console, [Column("reading"), *claims], rows, "Claims by reading")
    sides = [
        (
            str(of.claim.number),
            default.what,
            f"{default.says} {default.threshold:g}",
            f"{default.interval.estimate:.3f}",
            estimates(other),
        )
        for of in found
        for default, other in of.changing()
    ]
    if sides:
        columns = [Column(""), Column("finding", wraps=24), Column("claimed"), Column("default", right=True)]
        title = "Findings whose estimate changes sides"
        print_table(console, [*columns, Column("other side", wraps=20)], sides, title)
    for of in found:
        console.print(Text(of.depends()))
    console.print(Text(LEGEND, "dim"))
