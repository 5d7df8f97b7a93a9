"""Where a run comes from: what was trained, what was cut against the paper, what makes it again."""

from __future__ import annotations

import re
import shlex
from typing import Any

from resharpen.analysis.scores import not_recorded
from resharpen.errors import UserError
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.specs.counts import parameter_counts, side_by_side
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.experiments.specs.spec import Experiment, roles
from resharpen.experiments.specs.toml import differences, to_data
from resharpen.views.progress import duration

NOT_RECORDED = "not recorded"


def about(run: RunOrReference) -> dict[str, Any]:
    experiment = run.experiment
    checkpoints = len(experiment.checkpoint_steps())
    shards = len(run.shards())
    if isinstance(run, Reference):
        done, time = len(run.built), "kept without weights and curves"
        where = {"reference": run.name, "shards": f"{done:,} of {shards:,} kept"}
        made = [(len(made["built"]), made["provenance"]) for made in run.header["made"]]
    else:
        finished = run.done()
        done, time = len(finished), _time([run.files(shard).told("seconds") for shard in finished])
        where = {"run": str(run.directory), "shards": f"{done:,} of {shards:,} finished"}
        where |= {"time": time if time == NOT_RECORDED else f"{time} of one core's time in all"}
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
    for i, (count, provenance) in enumerate(made):
        piece = f", run {i + 1}" if len(made) > 1 else ""
        facts |= {f"{name}{piece}": text for name, text in _origin(provenance).items()}
        facts |= {f"shards{piece}": f"{count:,}"} if piece else {}
    return {
        "facts": facts,
        "time": time,
        "command": command(run),
        "continue": None if done == shards or isinstance(run, Reference) else run.command,
        "cut": cut(experiment),
        "spec": to_data(experiment),
    }


def _time(seconds: list[float | None]) -> str:
    """What shards took together, if all of them say."""
    known = [x for x in seconds if x is not None]
    return duration(sum(known)) if len(known) == len(seconds) else NOT_RECORDED


def _origin(provenance: dict[str, Any]) -> dict[str, str]:
    """What a header says of when and where; older ones say less."""
    versions = (provenance.get("versions") or {}).items()
    cores = f"{provenance.get('cores') or 'an unknown number of'} cores"
    return {
        "started": provenance["started"],
        "machine": ", ".join(x for x in (provenance["cpu"], cores, provenance.get("platform")) if x),
        "versions": ", ".join(f"{name} {version}" for name, version in versions) or NOT_RECORDED,
        "git": provenance.get("git") or "not a checkout",
    }


def on_the_shelf(experiment: Experiment) -> tuple[str | None, str | None]:
    """The figure and scale that an experiment was taken from, by its name."""
    for figure, entry in SHELF.items():
        for scale in SCALES:
            if experiment.name == f"{entry.run or figure}-{scale}":
                return figure, scale
    return None, None


def command(run: RunOrReference) -> str:
    """From nothing, where a figure of the shelf makes this run; else what continues it."""
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
    try:
        if _departures(usual.with_changes(**changes), experiment):
            return run.command
    except UserError:  # variants that the command line does not know by these names
        return run.command
    words = ["resharpen", "run", figure, "--scale", scale, *words]
    return shlex.join(words if isinstance(run, Reference) else [*words, "--out", str(run.directory)])


def _departures(a: Experiment, b: Experiment) -> list[str]:
    """What differs of what is trained, whatever the engine that trains it."""
    texts = [name for name, role in roles(a).items() if role.kind is str and name != "name"]
    how = re.compile(rf"(variant\..*\.engine|{'|'.join(texts)}): ")
    return [line for line in differences(to_data(a), to_data(b)) if not how.match(line)]


def cut(experiment: Experiment) -> list[dict[str, str]] | None:
    """What differs from the full protocol of the figure; None where there is no such protocol."""
    figure, _ = on_the_shelf(experiment)
    if figure is None:
        return None
    paper = take(figure, "paper")
    rows = [
        {"what": role.shown, "here": f"{getattr(experiment, name):,}", "paper": f"{getattr(paper, name):,}"}
        for name, role in roles(experiment).items()
        if role.shown and getattr(experiment, name) != getattr(paper, name)
    ]
    here, there = (set(to_data(x)["variants"]) for x in (experiment, paper))
    if here != there:
        rows.append({"what": "variants", "here": ", ".join(sorted(here)), "paper": ", ".join(sorted(there))})
    settings, full = ({setting.name for setting in x.settings} for x in (experiment, paper))
    if settings != full:
        rows.append({"what": "settings", "here": ", ".join(sorted(settings)), "paper": ", ".join(sorted(full))})
    rows += [
        {"what": name.replace("_", " "), "here": str(narrowed), "paper": "the whole range"}
        for name, narrowed in to_data(experiment)["hyperparameters"].items()
    ]
    task, full = (x.settings[0].task.as_data() for x in (experiment, paper))
    rows += [
        {"what": f"{name.replace('_', ' ')} (validation)", "here": f"{task[name]:,}", "paper": f"{full[name]:,}"}
        for name in full
        if isinstance(full[name], int) and name in task and task[name] != full[name]
    ]
    return rows
