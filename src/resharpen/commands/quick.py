"""`verify --quick`: train a few draws of references on this machine, and compare them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from resharpen.errors import UserError
from resharpen.paths import absolute
from resharpen.signals import Orderly, orderly, say

if TYPE_CHECKING:
    from rich.console import Console

    from resharpen.analysis.verify import Summary
    from resharpen.experiments.keeping.reference import Reference


class Patient(Orderly):
    """A second signal does not end the process immediately: that would leave the temporary directory behind."""

    def stop(self, number: int, _frame: object) -> None:
        if not self.number:
            self.number = number
            say("stopping after the current chunk\n")


def verify_quickly(references: Sequence[Reference], out: Path | None, console: Console) -> None:
    """Runs are trained in a temporary directory, which is always removed, or in `out`, where they stay.
    Exit code 1 if anything differs."""
    from resharpen.analysis.verify import summarize, verify
    from resharpen.experiments.running.quick import plan_quick
    from resharpen.experiments.running.runner import run, watched
    from resharpen.views.progress import view_of
    from resharpen.views.tables import print_quick_plan, print_quick_results

    with console.status("compiling kernels and measuring the speed of this machine ..."):
        plans = plan_quick(references, workers=None)
    print_quick_plan(plans, console)
    results: dict[str, Summary | str] = {}
    with ExitStack() as stack:
        asked = stack.enter_context(orderly(Patient()))  # outside, because it must outlive every run
        directory = (
            absolute(out) if out else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="resharpen-")))
        )
        for plan in sorted(plans, key=lambda plan: plan.seconds):
            name = plan.reference.name
            if plan.why_not or asked.is_stopping():
                results[name] = plan.why_not or "stopped"
                continue
            with view_of(console) as progress:
                store = run(plan.experiment, directory / name, observer=watched(progress, asked))
            if asked.is_stopping():
                results[name] = "stopped"
                continue
            try:
                results[name] = summarize(verify(store, plan.reference))
            except UserError as error:
                results[name] = str(error)
    print_quick_results(plans, results, console)
    if asked.is_stopping():
        sys.exit(128 + asked.number)
    if any(not isinstance(found, str) and not found.agrees for found in results.values()):
        sys.exit(1)
