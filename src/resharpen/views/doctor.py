"""`resharpen doctor`: what is there, what is missing, what that means."""

from __future__ import annotations

import importlib.util

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.experiments.keeping import machine


def print_diagnosis(has_compiler: bool, compiler: str, console: Console) -> None:
    """`compiler` says which one builds native kernels, or why none does."""
    table = Table(show_header=False, box=None)
    for name, version in machine.versions().items():
        table.add_row(name, version)
    table.add_row("source", machine.git_revision() or "not a checkout")
    table.add_row("CPU", f"{machine.cpu()}, {machine.cores()} cores")
    table.add_row("CPU features", " ".join(machine.cpu_features()) or "unknown")
    table.add_row("compiler", compiler if has_compiler else Text("missing", "red").append(f": {compiler}", "default"))
    has_jax = importlib.util.find_spec("jax") is not None
    table.add_row("jax", "there" if has_jax else "missing: only benchmarks against it need it")
    console.print(table)
