"""Results of references that the tables and sentences of the pages share: claims, models per cell, best and median."""

from functools import cache
from pathlib import Path

import polars as pl

import resharpen as rs
from resharpen.analysis.anchors import Compared, compared, constant_value, values
from resharpen.analysis.claims.finding import Claim
from resharpen.analysis.claims.sensitivity import Sensitivity, sensitivity
from resharpen.analysis.published import MAXIMUM, SOURCES, THEIR_QUERY
from resharpen.analysis.scores import scored_lengths, worst_values
from resharpen.analysis.statistics import Sample, quantile
from resharpen.experiments.keeping.reference import Reference, references
from resharpen.experiments.specs.spec import Experiment

CLAIMS = (*(f"fig{n}-overnight" for n in (1, 5, 2, 3)), "fig6-7-overnight", "fig4-overnight")
"""References that the claims table is made from, in the order of the claims."""
OURS = ("remedies-sct-laptop", "remedies-max-laptop")
RANGES = {
    "fig2-overnight": [(n, n) for n in (16, 64, 256, 1024, 4096)],
    "fig3-overnight": [(1, 175), *((start + 1, start + 175) for start in range(525, 1400, 175))],
    "fig4-overnight": [(1, 100), (101, 300), (301, 460)],
}
"""Reference -> ranges of lengths of its table. Others have a column per training length or, if a row is a language, per
variant."""
LANGUAGES = ("fig6-7-overnight",)
"""References with a row per language."""
STUDIES = Path(__file__).parent.parent / "reference" / "studies"
"""The tables that the studies saved beside their figures."""

reference = cache(rs.reference)


@cache
def tested(name: str) -> tuple[Claim, ...]:
    """The claims that a reference is about: of a study of our own, ours."""
    return tuple(c for c in rs.claims(reference(name)) if c.findings and (c.number >= 8) == (name in OURS))


@cache
def by_reading(name: str) -> tuple[Sensitivity, ...]:
    """The same claims under every reading."""
    return tuple(of for of in sensitivity(reference(name)) if (of.claim.number >= 8) == (name in OURS))


def read_study(name: str) -> pl.DataFrame:
    return pl.read_csv(STUDIES / f"{name}.csv")


@cache
def published() -> dict[str, tuple[Reference, list[Compared]]]:
    """Name of a reference -> it and its draws beside published numbers; those that there are."""
    there = references()
    names = [f"{name}-{source.scale}" for source in SOURCES for name in source.runs]
    runs = [(name, reference(name)) for name in names if name in there]
    return {name: (run, compared(run)) for name, run in runs}


def all_compared() -> list[Compared]:
    """All published numbers beside our draws."""
    return [each for _, of_run in published().values() for each in of_run] + with_their_query()


def query_spec() -> Experiment:
    """What `tools/random_query.py` trains, with fewer models."""
    return rs.read_toml(STUDIES.parents[1] / "examples" / "random_query.toml")


def with_their_query() -> list[Compared]:
    """The draws that `tools/random_query.py` saved; none of them may have diverged."""
    if not (STUDIES / "anchors-query.csv").exists():
        return []
    rows, found = read_study("anchors-query"), []
    assert not rows["value"].null_count()
    task = query_spec().settings[0].task
    for anchor in MAXIMUM.anchors:
        for between in anchor.numbers:
            if len(values_N := values(rows, anchor, between, 0.0)):
                sample = Sample(values_N, float(len(values_N)))
                constant = constant_value(task, 0, anchor, between)
                found.append(Compared(MAXIMUM, anchor, THEIR_QUERY, between, sample, False, "items", constant))
    return found


def per_cell(run: Reference) -> tuple[int, int]:
    """The least and the most models of a setting and variant."""
    counts = run.table("models").group_by("setting", "variant").len()["len"].to_list()
    return min(counts), max(counts)


def span(least: object, most: object) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def percent(low: float, high: float) -> str:
    """`29 to 34%`, or `29%` if both are the same."""
    return f"{span(f'{100 * low:.0f}', f'{100 * high:.0f}')}%"


Cells = tuple[list[str], dict[tuple[str, str], pl.Series]]
"""Names of the columns, and (row, column) -> one value per model."""
Summary = tuple[list[str], dict[tuple[str, str], tuple[float, float]]]
"""Names of the columns, and (row, column) -> the best tenth of the models and the median."""


@cache
def summary(name: str) -> Summary:
    """Training weights, best checkpoint."""
    run = reference(name)
    task = run.experiment.settings[0].task
    metric, worst = task.metrics[task.metric], worst_values(run)[task.metric]
    columns, rows = (_by_range if name in RANGES else _by_language if name in LANGUAGES else _by_train_length)(run)
    ranked = {cell: values.fill_null(worst).to_numpy() for cell, values in rows.items()}
    return columns, {cell: (quantile(x, metric.best_quantile), quantile(x, 0.5)) for cell, x in ranked.items()}


def _by_train_length(run: Reference) -> Cells:
    scores = rs.scores(run).filter(pl.col("weights") == "train", pl.col("has_new"))
    several = scores["task"].n_unique() > 1 or scores["v"].n_unique() > 1
    rows = {}
    for (v, s, variant), models in scores.group_by("v", "train_length", "variant", maintain_order=True):
        rows[f"{variant}, v = {v}" if several else str(variant), f"s = {s}"] = models["score_new"]
    columns = sorted({column for _, column in rows}, key=lambda name: int(name[4:]))
    return columns, rows


def _by_language(run: Reference) -> Cells:
    scores = rs.scores(run).filter(pl.col("weights") == "train", pl.col("has_new"))
    names = {setting.name: f"{setting.task.title}, {setting.train_length}" for setting in run.experiment.settings}
    by_cell = scores.partition_by("setting", "variant", as_dict=True)
    rows = {
        (name, variant): by_cell[setting, variant]["score_new"]
        for setting, name in names.items()
        for variant in run.experiment.variants
        if (setting, variant) in by_cell
    }
    return list(run.experiment.variants), rows


def _by_range(run: Reference) -> Cells:
    metric = run.experiment.settings[0].task.metric
    lengths = scored_lengths(run).filter(pl.col("weights") == "train", pl.col("metric") == metric)
    titles = {setting.name: setting.task.title for setting in run.experiment.settings}
    shown = [name for name in titles if name in set(lengths["setting"])]
    columns, rows = [], {}
    for setting in shown:
        for low, high in RANGES[run.directory.name]:
            of = f"{low:,}" if low == high else f"{low:,}-{high:,}"
            column = f"{titles[setting]}, {of}" if len(shown) > 1 else of
            columns.append(column)
            inside = lengths.filter(pl.col("setting") == setting, pl.col("length").is_between(low, high))
            means = inside.group_by("variant", "model", maintain_order=True).agg(pl.col("value").mean())
            for (variant,), models in means.group_by("variant", maintain_order=True):
                rows[str(variant), column] = models["value"]
    return columns, rows
