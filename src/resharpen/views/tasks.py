"""Terminal output of `resharpen tasks`: a description of every task, and a sequence of one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.experiments.specs.shelf import take
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.tasks import TASKS, Task

SHOWN, PLACES, TOKENS = 40, 8, 4
"""Limits on tokens, scored places, and next tokens per place that are shown in an example."""
SIZES = ("sequences", "selection_sequences")
"""Parameters that size the validation sets."""
Engine = Callable[[Experiment], str]
"""Why the native engine does not train an experiment; empty if it does."""


def print_tasks(why_not_native: Engine, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="Tasks with exact next-token distributions", title_justify="left")
    for heading in ("task", "what to predict; p*; published results", "parameters", "default model, lengths, engine"):
        table.add_column(heading)
    table.columns[0].no_wrap, table.columns[1].ratio = True, 1
    for name, kind in TASKS.items():
        what = Text.assemble(kind.asked, f"\np*: {kind.answer}\n", (kind.published, "dim"))
        if not kind.usual_fields and any(_needed(field) for field in fields(kind)):  # pyright: ignore[reportArgumentType]
            table.add_row(name, what, "your own", "as given")
        else:
            table.add_row(name, what, "\n".join(parameters(kind)), usually(name, why_not_native))
    console.print(table)
    console.print(
        f"Parameters {' and '.join(SIZES)} (not shown) set the sizes of validation sets.\nOne task in detail: "
        "resharpen tasks flip-flop. Train it: resharpen run flip-flop --scale smoke; with parameters: resharpen run "
        "dyck,k=2,m=3",
        style="dim",
        soft_wrap=True,
        highlight=False,
    )


def usually(name: str, why_not_native: Engine) -> Text:
    """Model, trained and validated lengths and engine of a task with its default parameters."""
    experiment = take(name, "smoke")
    setting = experiment.settings[0]
    said = f"{setting.model.kind}\n{lengths(setting, experiment.seed)}\n"
    engine = "torch" if why_not_native(experiment) else "native"
    return Text(said).append(engine, "green" if engine == "native" else "")


def lengths(setting: Setting, seed: int) -> str:
    task = setting.task
    reported = task.reported_lengths or task.validation(seed, "report").length_P
    return f"{setting.train_length:,} {task.unit}, scored to {max(reported):,}"


def parameters(kind: type[Task]) -> Iterator[str]:
    """The fields of a task with their default values."""
    for field in (field for field in fields(kind) if field.name not in SIZES):  # pyright: ignore[reportArgumentType]
        usual = kind.usual_fields.get(field.name, MISSING) if _needed(field) else field.default
        yield field.name if usual is MISSING else f"{field.name} = {usual}"


def _needed(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def print_task(experiment: Experiment, why_not_native: Engine, console: Console) -> None:
    setting = experiment.settings[0]
    task, kind = setting.task, type(setting.task)
    table = Table(show_header=False, box=None, title=task.title, title_justify="left")
    reason = why_not_native(experiment)
    described = (sys.modules[kind.__module__].__doc__ or kind.__doc__ or "").split("\n\n")[0]
    given = ", ".join(f"{name} = {value}" for name, value in task.as_data().items())
    rows = {
        "what": " ".join(described.split()),
        "predict": kind.asked,
        "p*": kind.answer,
        "published": kind.published,
        "parameters": given,
        "tests": "; ".join(f"{name}: {_said(changes)}" for name, changes in task.tests.items()),
        "model": repr(setting.model),
        "lengths": f"trained up to {lengths(setting, experiment.seed)}",
        "vocabulary": f"{task.vocabulary}: {_shortened(task.token_names)}" if task.reads == "tokens" else "",
        "metrics": ", ".join(task.metrics),
        "engine": f"torch: {reason}" if reason else "native",
    }
    for name, text in rows.items():
        if text:
            table.add_row(Text(name, "bold"), Text(text))
    console.print(table)
    if task.reads == "tokens":
        print_example(task, experiment.seed, console)


def print_example(task: Task, seed: int, console: Console) -> None:
    """A sequence of the report set: its tokens, and the likeliest next tokens at its scored places."""
    validation = task.validation(seed, "report")
    length_N = (np.arange(1, validation.scored_NxL.shape[1] + 1) * validation.scored_NxL).max(1)
    row = int(np.where(length_N <= SHOWN, length_N, 0).argmax())  # the longest that can be shown completely
    inputs_NxL, scored_NxL, truth = task.examples(validation.take(slice(row, row + 1)))
    names = [task.token_names[token] for token in inputs_NxL[0, : max(1, length_N[row])]]
    console.print(Text(f"A sequence: {' '.join(names[:SHOWN])}{' ...' if len(names) > SHOWN else ''}"))
    table = Table("scored after", "p*", box=box.SIMPLE_HEAD)
    for i, p_V in list(zip(np.flatnonzero(scored_NxL[0]), truth["p_star"], strict=True))[:PLACES]:
        likely = [f"{task.token_names[t]} {p_V[t]:.3g}" for t in np.argsort(-p_V, kind="stable") if p_V[t] > 0]
        more = f" and {len(likely) - TOKENS} more" if len(likely) > TOKENS else ""
        table.add_row(Text(" ".join(names[: i + 1][-12:])), Text(", ".join(likely[:TOKENS]) + more))
    console.print(table)


def _said(changes: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in changes.items())


def _shortened(names: tuple[str, ...]) -> str:
    return " ".join(names if len(names) <= 24 else (*names[:10], "...", *names[-10:]))
