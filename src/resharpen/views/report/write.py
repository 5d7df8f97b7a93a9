"""The file: the page's own texts, the charting library and the runs, in one."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from resharpen.analysis.scores import task_of
from resharpen.analysis.theory.checks import Check
from resharpen.experiments.keeping.files import write_text
from resharpen.experiments.keeping.machine import versions
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.views.report.about import about
from resharpen.views.report.gather import Gathered
from resharpen.views.report.inside import inside
from resharpen.views.report.pack import compressed, pack
from resharpen.views.report.verdicts import claims_data, comparison_data

SCRIPTS = ("data.js", "state.js", "violins.js", "parallel.js", "model.js", "verdicts.js", "compare.js", "page.js")


def write_report(runs: Sequence[RunOrReference], path: Path, theory: Sequence[Check] = ()) -> None:
    """One HTML file of all runs, and of the theory where it was checked; UserError where a run has nothing to show."""
    write_text(path, report(runs, theory))


def report(runs: Sequence[RunOrReference], theory: Sequence[Check] = ()) -> str:
    """The page."""
    name = runs[0].experiment.name if len(runs) == 1 else f"{len(runs)} runs"
    script = "\n".join(_page(file) for file in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    filled = {
        "title": escape(f"{name} - resharpen"),
        "policy": escape(_policy(script, _library().decode())),
        "style": _page("report.css"),
        "theory": _theory(theory),
        "library": _packed_library(),
        "runs": "\n".join(_block("run", pack(*run_data(run))) for run in runs),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: filled[slot[1]], _page("report.html"))


def run_data(run: RunOrReference) -> tuple[dict[str, Any], dict[str, Any]]:
    """(facts, arrays) of one run."""
    gathered = Gathered(run)
    arrays = gathered.arrays()
    experiment, task = run.experiment, task_of(run)
    lower = task.lower_is_better
    opened = inside(gathered, arrays["mean"][gathered.metrics.index(task.metric), 0] * (1 if lower else -1))
    asked = experiment.models * len(experiment.settings) * len(experiment.variants)
    facts = {
        "name": experiment.name,
        "models": len(gathered.models),
        "asked": asked,
        "variants": list(experiment.variants),
        "settings": [_setting(setting, gathered) for setting in experiment.settings],
        "metrics": [_metric(name, task) for name in gathered.metrics],
        "metric": gathered.metrics.index(task.metric),
        "by": task.shown_by,
        "unit": task.unit,
        "hyperparameters": [{"name": n, "log": row.scale == "log"} for n, row in gathered.hyperparameters.items()],
        "cells": gathered.cells,
        "checkpoints": gathered.checkpoints,
        "inside": opened.groups,
        "insideSaid": opened.said,
        "about": about(run),
        "made": ", ".join(f"{library} {version}" for library, version in versions().items()),
        **claims_data(run),
        "comparison": comparison_data(run),
    }
    return facts, arrays | opened.arrays


def _setting(setting: Any, gathered: Gathered) -> dict[str, Any]:
    described = [setting.task.metrics[name] for name in gathered.metrics]
    return {
        "name": setting.name,
        "title": setting.task.title,
        "trainLength": setting.train_length,
        "lengths": gathered.lengths_of[setting.name],
        "marks": setting.task.marks(setting.train_length),
        "guess": [metric.guess for metric in described],
        "bin": [metric.bin for metric in described],
    }


def _metric(name: str, task: Any) -> dict[str, Any]:
    metric = task.metrics[name]
    return {
        "name": name,
        "label": metric.label,
        "lowerIsBetter": metric.lower_is_better,
        "best": metric.best_quantile,
    }


def _theory(checks: Sequence[Check]) -> str:
    """A table for the front page."""
    if not checks:
        return ""
    said = ([c.statement, c.method, c.result, "holds" if c.holds else "does not hold"] for c in checks)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in said)
    head = "".join(f"<th>{name}</th>" for name in ("statement", "checked by", "result", ""))
    return f'<h2>Theory</h2><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _policy(*scripts: str) -> str:
    """Only these scripts may run, by their hashes, and nothing may be loaded from anywhere. plotly makes functions of
    text to draw with WebGL; without unsafe-eval it cannot."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _block(kind: str, text: str) -> str:
    return f'<script type="text/plain" class="{kind}">{text}</script>'


def _page(name: str) -> str:
    return (files("resharpen.views.report") / "page" / name).read_text(encoding="utf-8")


def _library() -> bytes:
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


@cache
def _packed_library() -> str:
    return _block("library", compressed(_library()))
