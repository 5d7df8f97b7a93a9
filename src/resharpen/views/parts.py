"""`resharpen parts`: what a variant can be made of, and where each part has a meaning.

What a part is and whose it is stands at the top of its file: the first paragraph, and the names and year in it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.experiments.specs.spec import Setting
from resharpen.experiments.specs.variant import CATALOGS, DEFAULTS, PARTS, placement_name
from resharpen.parts import PLACEMENT_SOURCES

NOWHERE = "-"
CITATION = re.compile(r"\s*\(([^()]*\b\d{4})\)")


def print_parts(settings: Sequence[Setting], engine: Callable[[Setting, str, str], str], console: Console) -> None:
    """A column for the model of each setting; `engine` says what trains a part of some kind there, if anything."""
    table = Table("part", "what it is", box=box.SIMPLE_HEAD, title="Parts of a variant", title_justify="left")
    table.columns[0].no_wrap, table.columns[1].ratio = True, 1
    for setting in settings:
        table.add_column(setting.model.kind, no_wrap=True)
    for kind in PARTS:
        table.add_row(Text(kind, "bold"))
        for name, part in CATALOGS[kind].items():
            what, source = described(kind, name, part)
            cells = [engine(setting, kind, name) or NOWHERE for setting in settings]
            styled = [Text(cell, "green" if cell.startswith("native") else "") for cell in cells]
            table.add_row(f"  {name}", Text.assemble(what, (f" ({source})" if source else "", "dim")), *styled)
        table.add_section()
    console.print(table)
    usual = ", ".join(dict.fromkeys((*DEFAULTS.values(), *(type(setting.model).positions for setting in settings))))
    console.print(
        f"native: the fast engine has it; torch: the other one alone; *: with d_k = 2, not with the usual 1; "
        f"{NOWHERE}: no meaning there.\nWhere a sum names none: {usual}. For example: resharpen run fig1 --variants "
        "pre,peri+ssmax,pre+layer+sgd",
        style="dim",
        soft_wrap=True,
        highlight=False,
    )


def described(kind: str, name: str, part: Any) -> tuple[str, str]:
    """What a part is, and its source."""
    if kind == "placement":
        return placement_name(part), PLACEMENT_SOURCES[name]
    function = part.update if kind == "optimizer" else part.function
    text = " ".join((sys.modules[function.__module__].__doc__ or "").split("\n\n")[0].split())
    cited = CITATION.search(text)
    rows = [f"; {row}: {r.low:g} to {r.high:g}" for row, r in part.hyperparameters.items()]
    return CITATION.sub("", text).removesuffix(".") + "".join(rows), cited[1] if cited else ""
