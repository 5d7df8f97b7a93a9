"""Write the numbers of README.md, docs/ and reference/README.md from `reference/`: python tools/pages.py [--check]

The text between `<!-- NAME -->` and `<!-- end -->` of a page is generated here, never edited by hand. NAME is `claims`,
the name of a reference for a table of its results, or `tasks` or `positions` for one of these studies, from the tables
that `resharpen run tasks` and `resharpen run positions` save; `anchors` compares published numbers with
references. `docs/findings.md` is generated as a whole. Text between `<!--NAME-->` and `<!---->` in a sentence is a
fact of `facts.py`.
The exit code is 1 if a statement is not true or a mark is wrong. With --check nothing is written, and the exit code is
also 1 if a page is not up to date.
"""

import re
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from math import isinf
from pathlib import Path
from typing import Any

from facts import FACTS
from results import (
    CLAIMS,
    OURS,
    by_reading,
    per_cell,
    published,
    query_spec,
    read_study,
    reference,
    span,
    summary,
    tested,
    with_their_query,
)

import resharpen as rs
from resharpen.analysis.anchors import Compared
from resharpen.analysis.claims.finding import Claim, Finding
from resharpen.analysis.claims.positions import BASE, SPLIT, losses, positions_claims
from resharpen.analysis.claims.sensitivity import LEGEND, READINGS, cell, estimates
from resharpen.analysis.dispersion import gains_from
from resharpen.analysis.published import MAXIMUM, SOURCES
from resharpen.analysis.samples import MEDIAN
from resharpen.analysis.statistics import Interval, quantile_interval
from resharpen.analysis.verdict import MARGIN
from resharpen.experiments.keeping.reference import Reference
from resharpen.views.anchors import section

ROOT = Path(__file__).parent.parent
CLAIMS_HEAD = ("| claim | verdict | holds | undecided or contrary | from |", "|---|---|---|---|---|")
SHOWN = 3
"""Findings of either kind that the claims table shows per claim; findings.md has all."""
PLACE = re.compile(r"<!-- ([\w-]+) -->\n\n.*?<!-- end -->", re.DOTALL)
MARK = re.compile(r"<!--[\w-]*-->")
FACT = re.compile(r"<!--([\w-]+)-->((?:(?!<!--).)*)<!---->", re.DOTALL)
BEGINS = re.compile(rf"^(?: |[-*+>] |\d+\. )*{MARK.pattern}.*", re.MULTILINE)


def main(*options: str) -> int:
    check, wrong, used = "--check" in options, [], set()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "reference" / "README.md"]:
        text, problems = path.read_text(), []
        new = findings() if path.name == "findings.md" else PLACE.sub(_filled, text)
        new = FACT.sub(partial(_stated, problems), new)
        problems += [f"a mark begins a line, which is then HTML: {line}" for line in BEGINS.findall(new)]
        problems += [f"a mark without its other end: {mark}" for mark in MARK.findall(FACT.sub("", new))]
        used |= {mark[1] for mark in FACT.finditer(new)}
        page = path.relative_to(ROOT)
        if new != text and check:
            problems.append("not up to date")
        elif new != text:
            path.write_text(new)
            print(f"{page}: written")
        wrong += [f"{page}: {problem}" for problem in problems]
    wrong += [f"tools/facts.py: no page has the fact '{name}'" for name in FACTS if name not in used]
    for problem in wrong:
        print(problem)
    return int(bool(wrong))


def _stated(problems: list[str], mark: re.Match[str]) -> str:
    """A fact with its present text. A statement stays as it is; if it is not true that is a problem."""
    name, stated = mark.groups()
    fact = FACTS[name]() if name in FACTS else None
    if fact is None:
        problems.append(f"there is no fact '{name}' in tools/facts.py")
    elif fact is False:
        problems.append(f"no longer true, to be rewritten: {' '.join(stated.split())} ({name} in tools/facts.py)")
    return f"<!--{name}-->{fact}<!---->" if isinstance(fact, str) else mark[0]


def _filled(place: re.Match[str]) -> str:
    name = place[1]
    tables = {"claims": claims_table, "tasks": tasks_table, "positions": positions_table}
    tables |= {"anchors": anchors}
    numbers = tables[name]() if name in tables else results_table(name)
    return f"<!-- {name} -->\n\n{numbers}\n\n<!-- end -->"


def claims_table() -> str:
    head = list(CLAIMS_HEAD)
    rows = [_claim_row(claim, _source(run, claim)) for run in map(reference, CLAIMS) for claim in tested(run.name)]
    return "\n".join(head + rows)


def tasks_table() -> str:
    """On how many tasks each variant helps; then kinds of dispersion, and gains on new lengths, one row per task."""
    found = gains_from(read_study("tasks-laptop-gains"))
    gains = {(g.task, g.variant): g for g in found if g.lengths == "new"}
    variants = list(dict.fromkeys(variant for _, variant in gains))
    counts = ["| | helps on | of these by more than 0.02 | hurts on |", "|---|---|---|---|"]
    for lengths in ("trained", "new"):
        for variant in variants:
            of = [g for g in found if (g.variant, g.lengths) == (variant, lengths)]
            helps, clearly = (sum(g.interval.low > least for g in of) for least in (0.0, MARGIN))
            hurts = "; ".join(g.task for g in of if g.interval.high < 0) or "none"
            counts.append(f"| {variant}, {lengths} lengths | {helps} of {len(of)} tasks | {clearly} | {hurts} |")
    head = ["task", "largest weight", "its slope", "slope of amplitude", "kind", *variants, "as predicted"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in read_study("tasks-laptop-dispersion").iter_rows(named=True):
        numbers = [f"{row[name]:.2f}" for name in head[1:4]]
        shown = [_gain(gains[row["task"], variant].interval) for variant in variants]
        predicted = {True: "yes", False: "no", None: "neither helps"}[row["as predicted"]]
        lines.append(f"| {' | '.join([row['task'], *numbers, row['kind'], *shown, predicted])} |")
    return "\n".join([*counts, "", *lines])


def positions_table() -> str:
    """The loss of `pre` on longer inputs of each task and what recovers it, then our claims."""
    found = losses(read_study("positions-laptop-distances"))
    head = ["", *(of.title for of in found)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    medians = {
        f"{BASE}: distance on trained lengths": [of.trained[BASE] for of in found],
        f"{BASE}: loss on longer inputs": [of.lost(BASE) for of in found],
    }
    for base, name in ((BASE, "rope"), (f"{BASE}+nope", "no positions")):
        medians |= {f"{name}: recovered by {what}": [of.recovered(what, base) for of in found] for what in SPLIT}
    for what, samples in medians.items():
        shown = ["" if x is None else _gain(quantile_interval(x, MEDIAN, 0.0)) for x in samples]
        lines.append(f"| {' | '.join([what, *shown])} |")
    claimed = [_claim_row(claim, "`positions`") for claim in positions_claims(found)]
    return "\n".join([*lines, "", CLAIMS_HEAD[0], CLAIMS_HEAD[1], *claimed])


def _gain(interval: Interval) -> str:
    return f"{interval.estimate:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


def anchors() -> str:
    """A section for every source of published numbers."""
    sections = []
    for source in SOURCES:
        trained, found = [], []
        for name in source.runs:
            run, draws = published().get(f"{name}-{source.scale}", (None, []))
            experiment = rs.figure(name, source.scale) if run is None else run.experiment
            missing = ", not run yet" if run is None else _without(run, draws)
            rows = [f"{row} {_row(given)}" for row, given in experiment.hyperparameters.items()]
            details = ", ".join([f"{experiment.steps:,} steps", f"minibatches of {experiment.batch}", *rows])
            trained.append(f"`{experiment.name}` ({details}{missing})")
            found += draws
        if source is MAXIMUM and (draws := with_their_query()):
            spec = query_spec()
            trained.append(f"`examples/random_query.toml` ({spec.steps:,} steps, minibatches of {spec.batch})")
            found += draws
        sections.append(section(source, found, trained))
    return "\n\n".join(sections)


def _without(run: Reference, draws: list[Compared]) -> str:
    """How many models have the metric of a table, unless all: some were trained before it was added."""
    there, most = max((len(each.sample.values_N) for each in draws), default=0), per_cell(run)[1]
    return "" if there == most else f"; {there} of {most} models per cell have this metric"


def _row(given: Any) -> str:
    """What a spec says of a hyperparameter: a number, or a range."""
    return f"{given[0]:g} to {given[1]:g}" if isinstance(given, tuple) else f"{given:g}"


def findings() -> str:
    """The page of every finding."""
    lines = [
        "# Every finding",
        "",
        "A claim is tested by its findings. A finding is one number with a 95% interval over draws; the claim says on",
        "which side of a threshold it is. p-values are Holm-corrected for the number of findings of the claim.",
        "[paper.md](paper.md) has the definitions. `tools/pages.py` generates this page from `reference/`.",
    ]
    for run in map(reference, (*CLAIMS, *OURS)):
        steps = f"{run.experiment.steps:,} steps, {span(*per_cell(run))} models per cell"
        lines += ["", f"## `{run.directory.name}`: {steps}"]
        for claim in tested(run.name):
            lines += ["", f"**Claim {claim.number}. {claim.text}**: {claim.verdict}.", ""]
            lines += ["| finding | value | 95% interval | claimed | p | verdict |", "|---|---|---|---|---|---|"]
            lines += [
                f"| {_cell(f.what)} | {f.interval.estimate:.3f} | {_interval(f)} "
                f"| {f.says} {f.threshold:g} | {f.p:.2g} | {f.verdict} |"
                for f in claim.findings
            ]
    return "\n".join([*lines, *other_readings()]) + "\n"


def other_readings() -> list[str]:
    """The section on how verdicts depend on the reading."""
    lines = ["", "## Other readings", "", *textwrap.wrap(LEGEND, 120), ""]
    lines += [f"| claim | {' | '.join(READINGS)} |", "|---" * (len(READINGS) + 1) + "|"]
    found = [of for name in (*CLAIMS, *OURS) for of in by_reading(name)]
    lines += [
        f"| {of.claim.number}. {of.claim.text} | {' | '.join(cell(claim) for claim in of.by_reading.values())} |"
        for of in found
    ]
    lines += ["", *(f"- {of.depends()}" for of in found)]
    lines += ["", "Findings whose estimate changes sides:", ""]
    lines += ["| claim | finding | claimed | default | other side |", "|---|---|---|---|---|"]
    lines += [
        f"| {of.claim.number}. {of.claim.text.partition(':')[0]} | {_cell(default.what)} "
        f"| {default.says} {default.threshold:g} | {default.interval.estimate:.3f} | {estimates(other)} |"
        for of in found
        for default, other in of.changing()
    ]
    return lines


def _source(run: Reference, claim: Claim) -> str:
    missing = f"; {len(claim.lacks)} of its settings are missing" if claim.lacks else ""
    return f"`{run.directory.name}`, {span(*per_cell(run))} models per cell{missing}"


def _claim_row(claim: Claim, source: str) -> str:
    holds = [f for f in claim.findings if f.verdict == "holds"]
    others = [f for f in claim.findings if f.verdict != "holds"]
    verdict = f"{claim.verdict.removesuffix(' at this scale')}: {len(holds)} of {len(claim.findings)} findings hold"
    return f"| {claim.number}. {claim.text} | {verdict} | {_numbers(holds)} | {_numbers(others)} | {source} |"


def _numbers(findings: Sequence[Finding]) -> str:
    """The first findings, those of one kind side by side: "median TVD difference: peri - pre: -0.061 (...); ..."."""
    kinds: dict[str, list[str]] = {}
    for f in findings[:SHOWN]:
        of, _, kind = _cell(f.what).rpartition(": ")
        kinds.setdefault(kind, []).append(f"{of + ': ' if of else ''}{f.interval.estimate:.3f} ({_interval(f)})")
    more = [f"{len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
    return ". ".join([*(f"{kind}: {'; '.join(numbers)}" for kind, numbers in kinds.items()), *more])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _interval(finding: Finding) -> str:
    """No interval is what one without ends is, or one over all values that a share can have."""
    low, high = finding.interval.low, finding.interval.high
    if (isinf(low) and isinf(high)) or (low, high) == (0.0, 1.0):
        return "no interval"
    return f"up to {high:.3f}" if isinf(low) else f"{low:.3f} or more" if isinf(high) else f"{low:.3f} to {high:.3f}"


def results_table(name: str) -> str:
    """The best tenth of the models and, in brackets, the median."""
    columns, cells = summary(name)
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in dict.fromkeys(row for row, _ in cells):
        shown = [cells.get((row, column)) for column in columns]
        lines.append(f"| {row} | {' | '.join(f'{of[0]:.3f} ({of[1]:.3f})' if of else '' for of in shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
