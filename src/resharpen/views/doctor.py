"""`resharpen doctor`: what is there, what is missing, what that means."""

from __future__ import annotations

import importlib.util
import subprocess

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.engines.native import build
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
    if reason := build.why_not_here():
        return Text("missing", "red").append(f": {reason}", "default")
    compiler = build.find_compiler()
    found = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace", timeout=20)
    return found.stdout.splitlines()[0] if found.stdout else compiler
