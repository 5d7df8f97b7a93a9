"""What the terminal shows of a run compared with a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.verify import Check, Summary
from resharpen.experiments.keeping.reference import Reference
from resharpen.views.progress import duration

if TYPE_CHECKING:
    from resharpen.experiments.running.quick import Quick

NAMED = 5
"""Differences of a kind that are shown one by one."""


def print_verification(checks: Sequence[Check], reference: Reference, console: Console) -> None:
    table = Table("what", "compared", "result", title=Text(f"Compared with {reference.name}"), title_justify="left")
    for check in checks:
        table.add_row(check.what, f"{check.compared:,}", _result(check))
    console.print(table)


def print_quick_plan(plans: Sequence[Quick], console: Console) -> None:
    """What will be trained, and how long that takes."""
    table = Table("reference", "setting", "variants", "models each", "steps", "time", title_justify="left")
    for plan in plans:
        cut = plan.experiment
        skipped = "skipped" if plan.why_not else duration(plan.seconds)
        variants = ", ".join(cut.variants)
        table.add_row(
            plan.reference.name, cut.settings[0].name, variants, str(cut.models), f"{cut.steps:,}", Text(skipped)
        )
    total = duration(sum(plan.seconds for plan in plans if not plan.why_not))
    table.title = Text(f"First draws to train, about {total} on this machine")
    console.print(table)


def print_quick_results(results: Mapping[str, Summary | str], console: Console) -> None:
    """One line per reference: what was compared, or why nothing was."""
    table = Table("reference", "values", "result", title=Text("Compared with the references"), title_justify="left")
    for name, found in results.items():
        if isinstance(found, str):
            table.add_row(name, "-", Text(f"not compared: {found}", "yellow"))
        else:
            table.add_row(name, f"{found.values:,}", Text(found.result, "green" if found.agrees else "red"))
    console.print(table)


def _result(check: Check) -> Text:
    if check.faulty:
        return Text("not compared", "yellow").append(_some(check.faulty), "default")
    if check.differs:
        return Text("differs", "red").append(_some(check.differs), "default")
    if check.unclear:
        return Text("too few models to tell", "yellow").append(_some(check.unclear), "default")
    return Text("agrees", "green") if check.compared else Text("nothing to compare", "dim")


def _some(named: Sequence[str]) -> str:
    more = len(named) - NAMED
    return f": {'; '.join([*named[:NAMED], *([f'and {more} more'] if more > 0 else [])])}"
