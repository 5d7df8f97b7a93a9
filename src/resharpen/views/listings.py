"""Terminal output of `resharpen list`, `parts`, `theory` and `doctor`."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.experiments.keeping import machine
from resharpen.experiments.specs.shelf import SCALES, SHELF
from resharpen.experiments.specs.spec import Setting
from resharpen.experiments.specs.variant import CATALOGS, DEFAULTS, placement_name
from resharpen.parts import PLACEMENT_SOURCES
from resharpen.views.columns import Column, print_table
from resharpen.words import duration

if TYPE_CHECKING:
    from resharpen.analysis.theory.checks import Check

WIDE = 110
"""Minimum width of a terminal at which the list of figures shows the numbers of models and steps."""
CITATION = re.compile(r"\s*\(([^()]*\b\d{4})\)")


def print_shelf(seconds: Mapping[tuple[str, str], float], engine: str, workers: int, console: Console) -> None:
    """The figures of the package; `seconds` are estimates by figure and scale."""
    columns = [Column("figure"), Column("what it shows", wraps=26)]
    columns += [Column(scale, right=True) for scale in SCALES]
    rows = []
    for name, entry in SHELF.items():
        cells = []
        for scale, size in zip(SCALES, entry.sizes, strict=True):
            cell = Text(duration(seconds[name, scale]))
            cells.append(cell.append(f"\n{size.models:,} x {size.steps:,}", "dim") if console.width >= WIDE else cell)
        rows.append((name, entry.title, *cells))
    print_table(console, columns, rows, "Figures")
    sizes = "; below them models per violin x steps" if console.width >= WIDE else ""
    console.print(
        f"Times are estimates for this machine with {workers} workers ({engine} engine){sizes}.\n"
        "Run one with: resharpen run fig1 --scale smoke",
        style="dim",
    )


def print_parts(
    settings: Sequence[Setting], engine: Callable[[Setting, str, str], str], kinds: Sequence[str], console: Console
) -> None:
    """One column per setting's model, or for several with equal entries; `engine` names the engine that trains a part
    there, "" if none does."""
    table = Table("part", "what it is", box=box.SIMPLE_HEAD, title="Parts of a variant", title_justify="left")
    table.columns[0].no_wrap, table.columns[1].ratio = True, 1
    parts = [(kind, name) for kind in kinds for name in CATALOGS[kind]]
    columns: dict[tuple[str, ...], list[str]] = {}
    for setting in settings:
        cells = tuple(engine(setting, kind, name) or "-" for kind, name in parts)
        columns.setdefault(cells, []).append(setting.model.kind)
    for models in columns.values():
        table.add_column("\n".join(models), no_wrap=True)
    for kind in kinds:
        table.add_row(Text(kind, "bold"))
        for name, part in CATALOGS[kind].items():
            what, source = described(kind, name, part)
            cells = [column[parts.index((kind, name))] for column in columns]
            styled = [Text(cell, "green" if cell.startswith("native") else "") for cell in cells]
            table.add_row(f"  {name}", Text.assemble(what, (f" ({source})" if source else "", "dim")), *styled)
        table.add_section()
    console.print(table)
    usual = ", ".join(dict.fromkeys((*DEFAULTS.values(), *(type(setting.model).positions for setting in settings))))
    console.print(
        "native: trained by the native engine; torch: by torch only; *: with d_k = 2, not with the default 1; "
        f"-: not applicable.\nDefaults: {usual}. For example: resharpen run fig1 --variants "
        "pre,peri+ssmax,pre+layer+sgd",
        style="dim",
        soft_wrap=True,
        highlight=False,
    )


def described(kind: str, name: str, part: Any) -> tuple[str, str]:
    """Description and source of a part: the first paragraph of its function's docstring, or else of its file, and the
    citation in it."""
    if kind == "placement":
        return placement_name(part), PLACEMENT_SOURCES[name]
    function = part.update if kind == "optimizer" else part.function
    text = " ".join((function.__doc__ or sys.modules[function.__module__].__doc__ or "").split("\n\n")[0].split())
    cited = CITATION.search(text)
    rows = [f"; {row}: {r.low:g} to {r.high:g}" for row, r in part.hyperparameters.items()]
    return CITATION.sub("", text).removesuffix(".") + "".join(rows), cited[1] if cited else ""


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """Statements of the theory: how each was checked, and the result."""
    table = Table(title="Theory of Set Complement under constant attention", title_justify="left", show_lines=True)
    for heading, ratio in (("statement", 4), ("checked by", 4), ("result", 3)):
        table.add_column(heading, ratio=ratio, overflow="fold")
    table.add_column("holds", justify="center")
    for check in checks:
        verdict = Text("yes", "green") if check.holds else Text("NO", "bold red")
        table.add_row(*(Text(text) for text in (check.statement, check.method, check.result)), verdict)
    console.print(table)


def print_diagnosis(has_compiler: bool, compiler: str, console: Console) -> None:
    """State of this machine; `compiler` names the compiler of native kernels, or the reason why there is none."""
    table = Table(show_header=False, box=None)
    for name, version in machine.versions().items():
        table.add_row(name, version)
    table.add_row("source", machine.git_revision() or "not a checkout")
    table.add_row("CPU", f"{machine.cpu()}, {machine.cores()} cores")
    table.add_row("CPU features", " ".join(machine.cpu_features()) or "unknown")
    table.add_row("compiler", compiler if has_compiler else Text("missing", "red").append(f": {compiler}", "default"))
    has_jax = importlib.util.find_spec("jax") is not None
    table.add_row("jax", "installed" if has_jax else "missing: needed only for benchmarks against it")
    console.print(table)
