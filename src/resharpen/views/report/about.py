"""Provenance of a run for the report: what was trained, what differs from the paper, how to repeat it."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from typing import Any

from resharpen.analysis.scores import not_recorded, task_of
from resharpen.errors import UserError
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.specs.counts import parameter_counts, side_by_side
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.experiments.specs.spec import Experiment, roles
from resharpen.experiments.specs.toml import differences, to_data
from resharpen.tasks import TASKS
from resharpen.words import duration

NOT_RECORDED = "not recorded"


EXPLAINED = {
    "tvd": "TVD: total variation distance from the exact next-token distribution; 0 is perfect, 1 is worst.",
    "auc": "AUC: how well the model ranks legal above illegal continuations; 1 is perfect, 0.5 is a random guess.",
}
"""Metrics whose label does not explain them."""


def task_in_words(run: RunOrReference) -> str:
    """The task and its metric: the first line of the task's file, and an explanation of the metric."""
    task = task_of(run)
    text = sys.modules[type(task).__module__].__doc__ if TASKS.get(task.kind) is type(task) else type(task).__doc__
    said = [(text or "").strip().split("\n\n")[0].replace("\n", " "), EXPLAINED.get(task.metric, "")]
    return " ".join(filter(None, said))


def about(run: RunOrReference) -> dict[str, Any]:
    experiment = run.experiment
    checkpoints = len(experiment.checkpoint_steps())
    shards = len(run.shards())
    if isinstance(run, Reference):
        done, time = len(run.built), "stored without weights and curves"
        where = {"reference": run.name, "shards": f"{done:,} of {shards:,} stored"}
        made = [(len(made["built"]), made["provenance"]) for made in run.header["made"]]
    else:
        seconds = [run.files(shard).told("seconds") for shard in run.done()]
        done, time = len(seconds), NOT_RECORDED if None in seconds else duration(sum(seconds))
        where = {"run": str(run.directory), "shards": f"{done:,} of {shards:,} finished"}
        where |= {"time": time if time == NOT_RECORDED else f"{time} of CPU time"}
        made = [(done, run.provenance)]
    facts = {
        **where,
        "steps": f"{experiment.steps:,} of {experiment.batch:,} sequences, {checkpoints} checkpoints",
        "seed": str(experiment.seed),
        "engine": ", ".join(f"{name}: {variant.engine}" for name, variant in experiment.variants.items()),
        "parameters": "; ".join(side_by_side(parameter_counts(experiment))),
    }
    if missing := not_recorded(run):
        facts[NOT_RECORDED] = ", ".join(name.replace("_", " ") for name in missing)
    same, origins = _origins(made)
    return {
        "facts": facts | same,
        "origins": origins,
        "time": time,
        "command": command(run),
        "continue": None if done == shards or isinstance(run, Reference) else run.command,
        "cut": cut(experiment),
        "spec": to_data(experiment),
    }


def _origins(made: list[tuple[int, dict[str, Any]]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all shards have in common, and one row per machine, versions and commit where they differ."""
    origins: dict[tuple[str, ...], dict[str, str]] = {}
    shards: Counter[tuple[str, ...]] = Counter()
    for count, provenance in sorted(made, key=lambda each: each[1]["started"]):
        origin = _origin(provenance)
        where = tuple(value for name, value in origin.items() if name != "started")
        origins.setdefault(where, origin)
        shards[where] += count
    first, *others = origins.values()
    same = {name: value for name, value in first.items() if all(other[name] == value for other in others)}
    rows = [
        {"shards": f"{shards[where]:,}"} | {k: v for k, v in o.items() if k not in same} for where, o in origins.items()
    ]
    return same, rows if others else []


def _origin(provenance: dict[str, Any]) -> dict[str, str]:
    """When and where a run was started; older runs record less."""
    versions = (provenance.get("versions") or {}).items()
    cores = f"{provenance.get('cores') or 'an unknown number of'} cores"
    return {
        "started": provenance["started"].replace("T", " ")[:16],
        "machine": ", ".join(x for x in (provenance["cpu"], cores, provenance.get("platform")) if x),
        "versions": ", ".join(f"{name} {version}" for name, version in versions) or NOT_RECORDED,
        "git": re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", provenance.get("git") or "not a checkout"),
    }


def on_the_shelf(experiment: Experiment) -> tuple[str | None, str | None]:
    """The figure and scale that an experiment's name refers to."""
    for figure, entry in SHELF.items():
        for scale in SCALES:
            if experiment.name == f"{entry.run or figure}-{scale}":
                return figure, scale
    return None, None


def command(run: RunOrReference) -> str:
    """The command that repeats a run of a figure from scratch; for other runs the one that continues it."""
    experiment, (figure, scale) = run.experiment, on_the_shelf(run.experiment)
    if figure is None or scale is None:
        return run.command
    usual = take(figure, scale)
    options = [name for name, role in roles(experiment).items() if role.option and role.kind is int]
    changes = {name: x for name in options if (x := getattr(experiment, name)) != getattr(usual, name)}
    words = [word for name, x in changes.items() for word in (f"--{name}", str(x))]
    if (variants := list(experiment.variants)) != list(usual.variants):
        changes["variants"] = variants
        words += ["--variants", ",".join(variants)]
    # the trained models must agree, on any engine
    how = "|".join(name for name, role in roles(experiment).items() if role.kind is str and name != "name")
    try:
        found = differences(to_data(usual.with_changes(**changes)), to_data(experiment))
    except UserError:  # variants without a name on the command line
        return run.command
    if not all(re.match(rf"(variant\..*\.engine|{how}): ", line) for line in found):
        return run.command
    words = ["resharpen", "run", figure, "--scale", scale, *words]
    return shlex.join(words if isinstance(run, Reference) else [*words, "--out", str(run.directory)])


def cut(experiment: Experiment) -> list[dict[str, str]] | None:
    """Differences from the full protocol of the figure; None if there is no such protocol."""
    figure, _ = on_the_shelf(experiment)
    if figure is None:
        return None
    here, paper = _protocol(experiment), _protocol(take(figure, "paper"))
    rows = [(what, _text(here[what]), _text(x)) for what, x in paper.items() if what in here and here[what] != x]
    for name, narrowed in to_data(experiment)["hyperparameters"].items():
        rows.append((name.replace("_", " "), str(narrowed), "the whole range"))
    return [dict(zip(("what", "here", "paper"), row, strict=True)) for row in rows]


def _protocol(experiment: Experiment) -> dict[str, int | set[str]]:
    task = experiment.settings[0].task.as_data()
    return {
        **{role.shown: getattr(experiment, name) for name, role in roles(experiment).items() if role.shown},
        "variants": set(to_data(experiment)["variants"]),
        "settings": {setting.name for setting in experiment.settings},
        **{f"{name.replace('_', ' ')} (validation)": n for name, n in task.items() if isinstance(n, int)},
    }


def _text(value: int | set[str]) -> str:
    return ", ".join(sorted(value)) if isinstance(value, set) else f"{value:,}"
