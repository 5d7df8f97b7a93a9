"""Commands that need no run: figures, parts, theory, and the state of this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resharpen.commands.options import Name
from resharpen.errors import unknown

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ListFigures:
    """List the figures with their estimated times on this machine.

    The first call measures the speed of this machine, in about a minute. Later calls use the stored times.

    For example: resharpen list
    """

    again: bool = False
    """Measure again, for example if the machine was busy."""

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.keeping.machine import cores
        from resharpen.experiments.running.estimate import time_figures
        from resharpen.views.listings import print_shelf

        with console.status("timing a few steps of every setting ..."):
            seconds, engine = time_figures(self.again)
        print_shelf(seconds, engine, cores(), console)


@dataclass(frozen=True)
class ListParts:
    """List the parts of a variant: formula, source, the models each works with, and whether the native engine
    supports it there.

    For example:
        resharpen parts
        resharpen parts --kind positions
        resharpen run fig1 --variants pre,peri+ssmax,pre+layer+sgd
    """

    kind: Name = None
    """Only parts of this kind: placement, norm, attention, positions, dropout, optimizer or schedule."""

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.running.support import engine_of_part, usual_settings
        from resharpen.experiments.specs.variant import PARTS
        from resharpen.views.listings import print_parts

        if self.kind is not None and self.kind not in PARTS:
            raise unknown("kind of part", self.kind, PARTS)
        print_parts(usual_settings(), engine_of_part, (self.kind,) if self.kind else PARTS, console)


@dataclass(frozen=True)
class Theory:
    """Check every statement of the theory by computation.

    For example: resharpen theory --v 6
    """

    v: int = 7
    """Check for all numbers of tokens from 4 to this one, at most 9."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.theory.checks import check_all
        from resharpen.views.listings import print_checks

        checks = check_all(self.v)
        print_checks(checks, console)
        if not all(check.holds for check in checks):
            sys.exit(1)


@dataclass(frozen=True)
class Doctor:
    """Check this machine: versions, processor, compiler, optional packages.

    For example: resharpen doctor
    """

    def __call__(self, console: Console) -> None:
        from resharpen.engines.choose import describe_compiler
        from resharpen.views.listings import print_diagnosis

        print_diagnosis(*describe_compiler(), console)
