"""The HTML file: page, charting library and runs in one."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from resharpen.analysis.claims import claims
from resharpen.analysis.claims.finding import Finding
from resharpen.analysis.compare import CHOSEN, EVERY, Comparison, compare
from resharpen.analysis.headline import described, headline
from resharpen.analysis.scores import constants, task_of
from resharpen.analysis.theory.checks import Check
from resharpen.analysis.verdict import Gain
from resharpen.errors import UserError
from resharpen.experiments.keeping.machine import versions
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.keeping.outputs import write_output
from resharpen.experiments.specs.spec import Setting
from resharpen.views.palette import ON_DARK, variant_colors
from resharpen.views.report.about import about, task_in_words
from resharpen.views.report.gather import Gathered
from resharpen.views.report.inside import inside
from resharpen.views.report.pack import compressed, pack

SCRIPTS = (
    "data.js",
    "state.js",
    "charts.js",
    "headline.js",
    "violins.js",
    "marks.js",
    "selection.js",
    "parallel.js",
    "model.js",
    "compare.js",
    "about.js",
    "front.js",
    "address.js",
    "page.js",
)
"""Scripts in the order of the page; each registers its panels."""


Tell = Callable[[str], None]


def write_report(
    runs: Sequence[RunOrReference],
    path: Path,
    theory: Sequence[Check] = (),
    tell: Tell = lambda _: None,
    test: str = "",
) -> None:
    """Write one HTML file of all runs, and of the theory if it was checked; UserError if a run has nothing to show.
    `tell` is called with the current stage. With `test` values are those on that test distribution."""
    write_output(path, report(runs, theory, tell, test).encode("utf-8", "surrogateescape"))


def report(
    runs: Sequence[RunOrReference], theory: Sequence[Check] = (), tell: Tell = lambda _: None, test: str = ""
) -> str:
    name = runs[0].experiment.name if len(runs) == 1 else f"{len(runs)} runs"
    script = page_script()
    filled = {
        "title": escape(f"{name} - resharpen"),
        "policy": escape(_policy(script, _library().decode())),
        "style": _page("report.css"),
        "theory": _theory(theory),
        "library": _packed_library(),
        "runs": "\n".join(_block("run", _packed(run, tell, test)) for run in runs),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: filled[slot[1]], _page("report.html"))


def page_script() -> str:
    """All scripts of the page as one function, so that their names are shared but not global."""
    return '"use strict";\n(() => {\n' + "\n".join(_page(file) for file in SCRIPTS) + "\n})();"


def _packed(run: RunOrReference, tell: Tell, test: str) -> str:
    facts, arrays = run_data(run, tell, test)
    tell(f"{run.experiment.name}: packing {sum(array.nbytes for array in arrays.values()) / 1e6:.0f} MB")
    return pack(facts, arrays)


def run_data(run: RunOrReference, tell: Tell = lambda _: None, test: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """(facts, arrays) of one run. Claims are about the task itself, not about a further test of it."""

    def stage(text: str) -> None:
        tell(f"{run.experiment.name}: {text}")

    stage("reading tables")
    gathered = Gathered(run, stage, test)
    arrays = gathered.arrays()
    experiment, task = run.experiment, task_of(run)
    lower_is_better = arrays["mean"][gathered.metrics.index(task.metric), 0] * (1 if task.lower_is_better else -1)
    stage("matrices")
    opened = inside(gathered, lower_is_better)
    stage("testing claims")
    claimed = {"claims": [], "alike": None} if test else claims_data(run)
    found = _comparison(run, test, stage)
    colors = variant_colors(experiment.variants)
    facts = {
        "name": f"{experiment.name}, test {test}" if test else experiment.name,
        "models": len(gathered.models),
        "asked": experiment.models * len(experiment.settings) * len(experiment.variants),
        "headline": headline(run, found, test),
        "variants": list(experiment.variants),
        "described": [described(run, variant) for variant in experiment.variants],
        "colors": [{"light": color, "dark": ON_DARK.get(color, color)} for color in colors.values()],
        "settings": [_setting(setting, gathered) for setting in experiment.settings],
        "metrics": [
            {"name": name, "label": m.label, "lowerIsBetter": m.lower_is_better, "best": m.best_quantile}
            for name, m in ((name, task.metrics[name]) for name in gathered.metrics)
        ],
        "metric": gathered.metrics.index(task.metric),
        "by": task.shown_by,
        "unit": task.unit,
        "hyperparameters": [{"name": n, "log": row.scale == "log"} for n, row in gathered.hyperparameters.items()],
        "cells": gathered.cells,
        "checkpoints": gathered.checkpoints,
        "inside": opened.groups,
        "insideSaid": opened.said,
        "about": about(run),
        "task": task_in_words(run),
        "made": ", ".join(f"{library} {version}" for library, version in versions().items()),
        **claimed,
        "comparison": found and comparison_data(found),
    }
    return facts, arrays | opened.arrays


def _setting(setting: Setting, gathered: Gathered) -> dict[str, Any]:
    described = [setting.task.metrics[name] for name in gathered.metrics]
    return {
        "name": setting.name,
        "title": setting.task.title,
        "label": f"s = {setting.train_length:,}",
        "trainLength": setting.train_length,
        "lengths": gathered.lengths_of[setting.name],
        "marks": setting.task.marks(setting.train_length),
        "guess": [_guess(setting, name, gathered) for name in gathered.metrics],
        "bin": [metric.bin for metric in described],
    }


def _guess(setting: Setting, metric: str, gathered: Gathered) -> dict[str, Any] | None:
    """The score of the best constant prediction, at each length and in the mean: for the metric that selects
    checkpoints, and for metrics with a declared guess. For others it would take too long to compute."""
    task = setting.task
    if metric != task.metric and task.metrics[metric].guess is None:
        return None
    known = constants(gathered.run, metric, [setting.name], gathered.test).get(setting.name, {})
    at = [known.get(length) for length in gathered.lengths_of[setting.name]]
    new = [x for length, x in known.items() if length > setting.train_length]
    return {"at": at, "all": fmean(known.values()), "new": fmean(new) if new else None} if known else None


def claims_data(run: RunOrReference) -> dict[str, Any]:
    found = claims(run)
    if not found:
        return {"claims": [], "alike": None}
    data = [
        {
            **{name: getattr(claim, name) for name in ("number", "text", "verdict", "counts", "lacks")},
            "findings": [
                _flat(finding) | {"verdict": finding.verdict, "bounded": finding.bounded} for finding in claim.findings
            ],
        }
        for claim in found
    ]
    return {"claims": data, "alike": found[0].correlation.estimate}


def _comparison(run: RunOrReference, test: str, tell: Tell) -> Comparison | None:
    """The comparison of all variants with the baseline; None if there are no pairs."""
    try:
        return compare(run, test=test, tell=tell)
    except UserError:
        return None


def comparison_data(found: Comparison) -> dict[str, Any]:
    return {
        "baseline": found.baseline,
        "every": EVERY,
        "label": found.metric.label,
        "margin": found.margin,
        "chosen": CHOSEN[found.selection],
        "warnings": found.size_warnings(),
        "headlines": [found.effects.index(effect) for effect in found.headlines()],
        "effects": [
            asdict(e)
            | {"median": _flat(e.median), "best": _flat(e.best)}
            | {"way": e.constant and e.constant.share(e.median.interval.estimate)}
            for e in found.effects
        ],
        "bestOf": [asdict(curve) for curve in found.best_of],
        "importance": [asdict(importance) for importance in found.importance],
    }


def _flat(found: Finding | Gain) -> dict[str, Any]:
    """The fields of the interval among the others."""
    data = asdict(found)
    return data.pop("interval") | data


def _theory(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    said = ([c.statement, c.method, c.result, "holds" if c.holds else "does not hold"] for c in checks)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in said)
    head = "".join(f"<th>{name}</th>" for name in ("statement", "checked by", "result", ""))
    return f'<h2>Theory</h2><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _policy(*scripts: str) -> str:
    """Allow only these scripts, by their hashes, and no loading from anywhere. plotly needs unsafe-eval to draw with
    WebGL."""
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
