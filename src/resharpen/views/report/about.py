"""Where a run comes from: what was trained, what was cut against the paper, what makes it again."""

from __future__ import annotations

import shlex
from typing import Any

from resharpen.experiments.keeping.store import Run
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.experiments.specs.spec import Experiment
from resharpen.experiments.specs.toml import to_data
from resharpen.views.progress import duration

_COMMAND = ("models", "steps", "seed")
_COMPARED = {
    "models": "models a violin",
    "steps": "training steps",
    "batch": "sequences in a minibatch",
    "checkpoints": "checkpoints",
}


def about(run: Run) -> dict[str, Any]:
    experiment, provenance = run.experiment, run.provenance
    shards, done = run.shards(), run.done()
    figure, scale = on_the_shelf(experiment)
    checkpoints = len(experiment.checkpoint_steps())
    seconds = sum(run.files(shard).told("seconds") for shard in done)
    versions = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    facts = {
        "run": str(run.directory),
        "shards": f"{len(done):,} of {len(shards):,} finished",
        "time": f"{duration(seconds)} of one core's time in all",
        "steps": f"{experiment.steps:,} of {experiment.batch:,} sequences, {checkpoints} checkpoints",
        "seed": str(experiment.seed),
        "engine": ", ".join(f"{name}: {variant.engine}" for name, variant in experiment.variants.items()),
        "started": str(provenance["started"]),
        "machine": f"{provenance['cpu']}, {provenance['cores']} cores, {provenance['platform']}",
        "versions": versions,
        "git": provenance["git"] or "not a checkout",
    }
    return {
        "facts": facts,
        "seconds": seconds,
        "time": duration(seconds),
        "command": command(run),
        "continue": None if len(done) == len(shards) else run.command,
        "figure": figure,
        "scale": scale,
        "cut": cut(experiment),
        "spec": to_data(experiment),
    }


def on_the_shelf(experiment: Experiment) -> tuple[str | None, str | None]:
    """The figure and scale that an experiment was taken from, by its name."""
    for figure, entry in SHELF.items():
        for scale in SCALES:
            if experiment.name == f"{entry.run or figure}-{scale}":
                return figure, scale
    return None, None


def command(run: Run) -> str:
    """From nothing, where the run is a figure of the shelf; else what continues it."""
    figure, scale = on_the_shelf(run.experiment)
    if figure is None or scale is None:
        return run.command
    usual = take(figure, scale)
    words = ["resharpen", "run", figure, "--scale", scale]
    for name in _COMMAND:
        if getattr(run.experiment, name) != getattr(usual, name):
            words += [f"--{name}", str(getattr(run.experiment, name))]
    if list(run.experiment.variants) != list(usual.variants):
        words += ["--variants", ",".join(run.experiment.variants)]
    return shlex.join([*words, "--out", str(run.directory)])


def cut(experiment: Experiment) -> list[dict[str, str]] | None:
    """What differs from the full protocol of the figure; None where there is no such protocol."""
    figure, _ = on_the_shelf(experiment)
    if figure is None:
        return None
    paper = take(figure, "paper")
    rows = [
        {"what": what, "here": f"{getattr(experiment, name):,}", "paper": f"{getattr(paper, name):,}"}
        for name, what in _COMPARED.items()
        if getattr(experiment, name) != getattr(paper, name)
    ]
    here, there = (set(to_data(x)["variants"]) for x in (experiment, paper))
    if here != there:
        rows.append({"what": "variants", "here": ", ".join(sorted(here)), "paper": ", ".join(sorted(there))})
    task, full = (x.settings[0].task.as_data() for x in (experiment, paper))
    rows += [
        {"what": f"{name.replace('_', ' ')} (validation)", "here": f"{task[name]:,}", "paper": f"{full[name]:,}"}
        for name in full
        if isinstance(full[name], int) and name in task and task[name] != full[name]
    ]
    return rows
