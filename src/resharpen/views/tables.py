"""What the terminal shows: claims, results, the state of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resharpen.analysis.claims.finding import Claim
from resharpen.analysis.inspection import Inspection
from resharpen.analysis.statistics import quantile
from resharpen.experiments.keeping.store import Run, code_lines, quoted
from resharpen.streams import GROUP
from resharpen.tasks import Metric

if TYPE_CHECKING:
    import polars as pl

_STYLE = {
    "holds": "green",
    "holds as far as tested": "green dim",
    "does not hold": "red",
    "undecided at this scale": "yellow",
    "not tested": "dim",
}


def print_claims(claims: Sequence[Claim], console: Console) -> None:
    summary = Table(
        "claim", "verdict", "findings", title="Claims of the paper, and ours from 8 on", title_justify="left"
    )
    for claim in claims:
        counts = Counter(finding.verdict for finding in claim.findings)
        parts = ", ".join(f"{n} {verdict.removesuffix(' at this scale')}" for verdict, n in counts.most_common())
        summary.add_row(f"{claim.number}. {claim.text}", Text(claim.verdict, _STYLE[claim.verdict]), parts)
    console.print(summary)
    details = Table(
        "", "finding", "value", "95% interval", "claimed", "p (Holm)", "verdict", title="Findings", title_justify="left"
    )
    for claim in claims:
        for f in claim.findings:
            interval = f"{f.interval.low:.4f} .. {f.interval.high:.4f}"
            claimed = f"{f.says} {f.threshold:g}"
            verdict = Text(f.verdict, _STYLE[f.verdict])
            details.add_row(
                str(claim.number), f.what, f"{f.interval.estimate:.4f}", interval, claimed, f"{f.p:.2g}", verdict
            )
        details.add_section()
    if details.row_count:
        console.print(details)
    for claim in claims:
        if claim.lacks:
            named = f"{', '.join(claim.lacks[:8])}{' and more' if len(claim.lacks) > 8 else ''}"
            console.print(f"Of claim {claim.number} this run does not have all: {named}.", style="dim")
    console.print(
        "Best: the 10% quantile over models at their best checkpoint (of an AUC the 90% quantile), training weights "
        "unless BEMA is named. Intervals are over draws. Of one quantile or paired median: order statistics, exact, "
        "with no end where draws are too few. Of sums of quantiles: the standard error under reweighted draws.",
        style="dim",
    )
    correlation = claims[0].correlation
    alike = f"{correlation.estimate:.3f} (0 ± {correlation.error:.3f} if there is none)"
    worth = correlation.worth(GROUP)
    console.print(
        f"Intraclass correlation of scores in groups of {GROUP} draws: "
        f"{'unknown, there is one group' if isnan(correlation.estimate) else alike}. "
        f"{'Draws count as independent' if worth == 1 else f'Each draw counts as {worth:.2g} independent ones'}.",
        style="dim",
    )


def print_scores(scores: pl.DataFrame, metric: Metric, console: Console) -> None:
    """The best tenth and the median of a metric by setting and variant."""
    import polars as pl

    best = metric.best_quantile
    lost = f" (a model without a score counts as {metric.worst:g})" if scores["score"].has_nulls() else ""
    title = f"{metric.label} over all lengths{lost}"
    table = Table("setting", "variant", "models", "diverged", title=title, title_justify="left")
    for weights in ("train", "bema"):
        for name in (f"{best:.0%}", "median"):
            table.add_column(f"{weights} {name}", justify="right")
    for (setting, variant), rows in scores.group_by("setting", "variant", maintain_order=True):
        by_weights = {weights: rows.filter(weights=weights)["score"] for weights in ("train", "bema")}
        ranked = [score.fill_null(metric.worst) for score in by_weights.values()]
        cells = [f"{quantile(x.to_numpy(), q):.4f}" if len(x) else "-" for x in ranked for q in (best, 0.5)]
        diverged = rows.filter(pl.col("weights") == "train")["diverged_at"].is_not_null().sum()
        table.add_row(str(setting), str(variant), str(len(by_weights["train"])), str(diverged), *cells)
    console.print(table)


def print_status(run: Run, console: Console) -> None:
    """How far a run is, and what continues it."""
    experiment, shards = run.experiment, run.shards()
    done = {shard.name for shard in run.done()}
    started = [s for s in shards if s.name not in done and run.files(s).state.exists()]
    models = sum(shard.count for shard in shards if shard.name in done)
    table = Table(show_header=False, box=None)
    table.add_row("run", f"{experiment.name} in {run.directory}")
    table.add_row("started", f"{run.provenance['started']} on {run.provenance['cpu']}")
    engines = ", ".join(f"{name} {variant.engine}" for name, variant in experiment.variants.items())
    table.add_row("engine", f"{engines}; {experiment.steps:,} steps, seed {experiment.seed}")
    for line in code_lines(experiment):
        table.add_row("your code", line)
    table.add_row("shards", f"{len(done)} of {len(shards)} finished, {len(started)} under way")
    table.add_row("models", f"{models:,} of {sum(shard.count for shard in shards):,} finished")
    next_steps = f"resharpen figure {quoted(run.directory)}" if len(done) == len(shards) else run.command
    table.add_row("finished: draw it with" if len(done) == len(shards) else "continue with", next_steps)
    console.print(table)


def print_inspection(inspection: Inspection, console: Console) -> None:
    """One column per variant: what the circuits of its models have in common."""
    summary = inspection.summary()
    table = Table("", title=f"Inside the models of {inspection.setting.name}", title_justify="left")
    for variant in summary["variant"]:
        table.add_column(variant, justify="right")
    for name in summary.columns[1:]:
        cells = ["-" if x is None else f"{x:.3f}" if isinstance(x, float) else str(x) for x in summary[name]]
        table.add_row(name, *cells)
    console.print(table)
