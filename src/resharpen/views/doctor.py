"""`resharpen doctor`: what is there, what is missing, what that means."""

from __future__ import annotations

import importlib.util
import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.engines.choose import SLOWER
from resharpen.engines.native.compiler import find_compiler
from resharpen.errors import Failed
from resharpen.experiments.keeping import machine


def print_diagnosis(console: Console) -> None:
    table = Table(show_header=False, box=None)
    for name, version in machine.versions().items():
        table.add_row(name, version)
    table.add_row("source", machine.git_revision() or "not a checkout")
    table.add_row("CPU", f"{machine.cpu()}, {machine.cores()} cores")
    table.add_row("CPU features", " ".join(machine.cpu_features()) or "unknown")
    table.add_row("compiler", _compiler())
    has_jax = importlib.util.find_spec("jax") is not None
    table.add_row("jax", "there" if has_jax else "missing: only benchmarks against it need it")
    console.print(table)


def _compiler() -> str | Text:
    """As the native engine finds it."""
    try:
        compiler = find_compiler()
        return f"{compiler} ({shlex.join(compiler.command)})"
    except Failed as error:
        slower = ", ".join(f"{factor} for a {family}" for family, factor in SLOWER.items())
        without = f"{error}. The torch engine takes over, so many times as slow: {slower}"
        return Text("missing", "red").append(f": {without}", "default")
