"""`resharpen parts`: what a variant can be made of, and where each part has a meaning.

What a part is and whose it is stands at the top of its file: the first paragraph, and the names and year in it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.engines.base import Problem
from resharpen.engines.choose import why_not_native
from resharpen.errors import UserError
from resharpen.experiments.specs.spec import Setting
from resharpen.experiments.specs.variant import CATALOGS, DEFAULTS, PARTS, Variant, placement_name
from resharpen.models import Minimal
from resharpen.optim import find_optimizer
from resharpen.parts import PLACEMENT_SOURCES
from resharpen.tasks import Dyck, MaxRetrieval, SetComplement

SETTINGS = (Setting(SetComplement(9), 8), Setting(Dyck(8, 10), 700), Setting(MaxRetrieval(), 16))
"""One for each model that is built in, at its usual sizes."""
WIDER, NOWHERE = "*", "-"
CITATION = re.compile(r"\s*\(([^()]*\b\d{4})\)")


def print_parts(console: Console) -> None:
    table = Table("part", "what it is", box=box.SIMPLE_HEAD, title="Parts of a variant", title_justify="left")
    table.columns[0].no_wrap, table.columns[1].ratio = True, 1
    for setting in SETTINGS:
        table.add_column(setting.model.kind, no_wrap=True)
    for kind in PARTS:
        table.add_row(Text(kind, "bold"))
        for name, part in CATALOGS[kind].items():
            what, source = described(kind, name, part)
            cells = [where(setting, kind, name) for setting in SETTINGS]
            styled = [Text(cell, "green" if cell.startswith("native") else "") for cell in cells]
            table.add_row(f"  {name}", Text.assemble(what, (f" ({source})" if source else "", "dim")), *styled)
        table.add_section()
    console.print(table)
    usual = ", ".join(dict.fromkeys((*DEFAULTS.values(), *(type(setting.model).positions for setting in SETTINGS))))
    console.print(
        f"native: the fast engine has it; torch: the other one alone; {WIDER}: with d_k = 2, not with the usual 1; "
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


def where(setting: Setting, kind: str, name: str) -> str:
    """`native`, `torch` or neither, for the model of a setting; with a mark if it has to be wider than usual."""
    task, usual = setting.task, setting.model
    wider = [replace(usual, d_k=2)] if isinstance(usual, Minimal) else []
    variant = Variant(**{kind: name})  # pyright: ignore[reportArgumentType]
    trains = getattr(CATALOGS[kind][name], "trains", True)
    for model, mark in [(usual, ""), *((model, WIDER) for model in wider)]:
        try:
            parts = variant.parts(model)
        except UserError:
            continue
        optimizer = find_optimizer(variant.optimizer)
        problem = Problem(task, model, parts, setting.train_length, 1, 1, 0, optimizer)
        return ("torch" if why_not_native(problem, training=trains) else "native") + mark
    return NOWHERE
