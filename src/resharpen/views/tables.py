"""Terminal tables of a run: claims, scores, status, circuits, comparisons of variants and with a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from resharpen.analysis.compare import CHOSEN, Comparison
from resharpen.analysis.statistics import quantile
from resharpen.analysis.verify import Summary
from resharpen.experiments.keeping.store import Run, code_lines, quoted
from resharpen.experiments.specs.counts import side_by_side
from resharpen.lazy import pl
from resharpen.streams import GROUP
from resharpen.tasks import Metric
from resharpen.views.columns import Column, print_table
from resharpen.words import duration

if TYPE_CHECKING:
    from resharpen.analysis.claims.finding import Claim
    from resharpen.analysis.inspection import Inspection
    from resharpen.analysis.verdict import Gain
    from resharpen.analysis.verify import Check
    from resharpen.experiments.keeping.reference import Reference
    from resharpen.experiments.running.quick import Quick

_STYLE = {
    "holds": "green",
    "holds as far as tested": "green dim",
    "does not hold": "red",
    "undecided at this scale": "yellow",
    "not tested": "dim",
    "helps": "green",
    "hurts": "red",
    "no difference": "cyan",
    "undecided": "yellow",
}
WIDE = 112
"""Minimum width of a terminal at which a comparison is one table."""
NAMED = 5
"""Limit on the differences of one kind that are listed."""


def print_result(lines: Sequence[str], warnings: Sequence[str], console: Console) -> None:
    """The result of a run: one line per claim or variant."""
    console.print(Text("Result", "bold"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True, highlight=False)
    for line in warnings:
        console.print(Text(f"  Warning: {line}", "yellow"), soft_wrap=True, highlight=False)


def print_claims(claims: Sequence[Claim], console: Console) -> None:
    console.print(Text("Claims of the paper, and ours from 8 on", "italic"))
    for claim in claims:
        line = Text(f"{claim.number}. {claim.text}: ").append(claim.verdict, _STYLE[claim.verdict])
        line.append(f" ({claim.counts})")
        console.print(Padding(line, (0, 0, 0, 2)), highlight=False)
    headings = (
        Column(""),
        Column("finding", wraps=24),
        Column("value", right=True),
        Column("95% interval", right=True),
        Column("claimed", goes=1),
        Column("p (Holm)", right=True, goes=2),
        Column("verdict"),
    )
    rows: list[Sequence[str | Text]] = []
    for claim in claims:
        for f in claim.findings:
            value, interval = f"{f.interval.estimate:.4f}", f"{f.interval.low:.4f} .. {f.interval.high:.4f}"
            claimed, verdict = f"{f.says} {f.threshold:g}", f.verdict.removesuffix(" at this scale")
            rows.append(
                (str(claim.number), f.what, value, interval, claimed, f"{f.p:.2g}", Text(verdict, _STYLE[f.verdict]))
            )
        rows.append(())
    if any(rows):
        console.print()
        print_table(console, headings, rows, "Findings")
    for claim in claims:
        if claim.lacks:
            named = f"{', '.join(claim.lacks[:8])}{' and more' if len(claim.lacks) > 8 else ''}"
            console.print(f"Claim {claim.number} is only partly tested; missing: {named}.", style="dim")
    console.print(
        "Best: the 10% quantile over models at their best checkpoint (90% of an AUC), training weights unless BEMA is "
        "named. Intervals are over draws: for a quantile or a paired median exact, from order statistics, and "
        "unbounded if there are too few draws; for sums of quantiles from the standard error of a Bayesian bootstrap.",
        style="dim",
    )
    correlation = claims[0].correlation
    alike = f"{correlation.estimate:.3f} (0 ± {correlation.error:.3f} under independence)"
    worth = correlation.worth(GROUP)
    console.print(
        f"Intraclass correlation of scores in groups of {GROUP} draws: "
        f"{'unknown, there is one group' if isnan(correlation.estimate) else alike}. "
        f"{'Draws count as independent' if worth == 1 else f'Each draw counts as {worth:.2g} independent ones'}.",
        style="dim",
    )


def print_scores(
    scores: pl.DataFrame, metric: Metric, labels: Mapping[str, str], console: Console, test: str = ""
) -> None:
    """Best tenth and median of a metric, by setting and variant; `labels` name the settings."""
    best = metric.best_quantile
    lost = f"; a model without a score counts as {metric.worst:g}" if scores["score"].has_nulls() else ""
    better = "lower is better" if metric.lower_is_better else "higher is better"
    of_test = f" of test {test}" if test else ""
    title = f"{metric.label} over all lengths{of_test} ({better}; quantile over models at {best:.0%}, and median{lost})"
    columns = [Column("setting"), Column("variant"), Column("models", right=True, goes=1)]
    columns += [Column("diverged", right=True, goes=2)]
    for weights in ("training", "BEMA"):
        columns += [Column(f"{weights} {name}", right=True) for name in (f"{best:.0%}", "median")]
    rows: list[Sequence[str]] = []
    order = list(labels)
    cells_of = scores.group_by("setting", "variant", maintain_order=True)
    for (setting, variant), of_cell in sorted(cells_of, key=lambda cell: order.index(str(cell[0][0]))):
        by_weights = {weights: of_cell.filter(weights=weights)["score"] for weights in ("train", "bema")}
        ranked = [score.fill_null(metric.worst) for score in by_weights.values()]
        cells = [f"{quantile(x.to_numpy(), q):.4f}" if len(x) else "-" for x in ranked for q in (best, 0.5)]
        diverged = of_cell.filter(pl.col("weights") == "train")["diverged_at"].is_not_null().sum()
        rows.append((labels[str(setting)], str(variant), str(len(by_weights["train"])), str(diverged), *cells))
    print_table(console, columns, rows, title)


def print_status(run: Run, console: Console) -> None:
    """Progress of a run, and the next command."""
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
    table.add_row("shards", f"{len(done)} of {len(shards)} finished, {len(started)} in progress")
    table.add_row("models", f"{models:,} of {sum(shard.count for shard in shards):,} finished")
    if len(done) == len(shards):
        table.add_row("finished: draw it with", f"resharpen figure {quoted(run.directory)}")
    else:
        table.add_row("continue with", run.command)
    console.print(table)


def print_inspection(inspection: Inspection, console: Console) -> None:
    """Summary of the circuits of the models, one column per variant."""
    summary = inspection.summary()
    variants = [Column(variant, right=True, goes=i) for i, variant in enumerate(summary["variant"])]
    rows = [
        (name, *("-" if x is None else f"{x:.3f}" if isinstance(x, float) else str(x) for x in summary[name]))
        for name in summary.columns[1:]
    ]
    print_table(console, [Column(""), *variants], rows, f"Inside the models of {inspection.setting.name}")


def print_comparison(found: Comparison, console: Console) -> None:
    better = "lower is better" if found.metric.lower_is_better else "higher is better"
    on = f" on test {found.test}" if found.test else ""
    title = f"Gain in {found.metric.label} over '{found.baseline}'{on}, pair by pair ({better}; above 0 is better)"
    console.print(Text(title))
    median, best = ["median gain", "verdict", "wins"], ["best tenth", "verdict"]
    for columns in [[*median, *best]] if console.width >= WIDE else [median, best]:
        _print_effects(found, columns, console)
    for line in found.sentences():
        console.print(Text(f"  {line}"), soft_wrap=True, highlight=False)
    for line in side_by_side(found.parameters):
        console.print(Text(f"  Parameters: {line}"), soft_wrap=True, highlight=False)
    for line in found.size_warnings():
        console.print(Text(f"  Warning: {line}", "yellow"), soft_wrap=True, highlight=False)
    _print_importance(found, console)
    pairs = "-".join(map(str, sorted({models.models for models in found.models})))
    diverged, total = (sum(getattr(models, name) for models in found.models) for name in ("diverged", "models"))
    weights = "BEMA" if found.weights == "bema" else "Training"
    console.print(
        f"95% intervals over {pairs} draws per setting and the sequences of the report set; helps and hurts "
        f"after Holm's correction; no difference: the interval is within {found.margin:g}; undecided +n: about n more "
        "models per setting would decide; not trained: fewer than a tenth of the models beat the best constant "
        f"distribution. {weights} weights, {CHOSEN[found.selection]}. "
        f"{diverged} of {total:,} models diverged; without a checkpoint they get the worst value.",
        style="dim",
    )


def _print_effects(found: Comparison, columns: list[str], console: Console) -> None:
    """These columns of all effects, one group of rows per variant."""
    rows: list[Sequence[str | Text]] = []
    for variant in found.variants:
        rows.append((Text(variant, "bold"), *[""] * (len(columns) + 1)))
        for effect in (effect for effect in found.effects if effect.variant == variant):
            wins = f"{effect.wins.estimate:.0%} ({100 * effect.wins.low:.0f}-{effect.wins.high:.0%})"
            median = [*_gain(effect.median), wins] if "wins" in columns else []
            best = _gain(effect.best) if "best tenth" in columns else ()
            rows.append((f"  {found.labels.get(effect.setting, effect.setting)}", effect.lengths, *median, *best))
        rows.append(())
    cells = [Column(name, right=name != "verdict", goes=int(name == "wins")) for name in columns]
    print_table(console, [Column(""), Column("over"), *cells], rows)


def _gain(gain: Gain) -> tuple[str, Text]:
    """The estimate with its interval, and the verdict."""
    interval, more = gain.interval, f" +{gain.more:,}" if gain.more else ""
    short = gain.verdict.removesuffix(" enough to tell")
    verdict = Text(short, _STYLE.get(gain.verdict, "magenta")).append(more, "dim")
    return f"{interval.estimate:+.3f} ({interval.low:.3f}..{interval.high:.3f})", verdict


def _print_importance(found: Comparison, console: Console) -> None:
    """The hyperparameters with a significant effect; a variant without any has the row `none`."""
    title = "Importance of hyperparameters for the best tenth (0: none; 4: the best are within a fifth of the range)"
    columns = [Column("variant"), Column("hyperparameter"), Column("importance", right=True)]
    columns += [Column("95% interval", right=True, goes=2), Column("p (Holm)", right=True, goes=1)]
    columns += [Column("middle 80% of the best", right=True)]
    rows: list[Sequence[str | Text]] = []
    for variant in (found.baseline, *found.variants):
        of_variant = [i for i in found.importance if i.variant == variant]
        sure = [i for i in of_variant if i.p < 0.05]
        for i in sure:
            interval = f"{i.divergence.low:.2f} to {i.divergence.high:.2f}"
            cells = (f"{i.divergence.estimate:.2f}", interval, f"{i.p:.1g}", f"{i.low:.2g} to {i.high:.2g}")
            rows.append((variant, i.hyperparameter, *cells))
        if of_variant and not sure:
            rows.append((variant, Text(f"none ({of_variant[0].best} models in the best tenth)", "dim"), *[""] * 4))
    if rows:
        print_table(console, columns, rows, title)


def print_verification(checks: Sequence[Check], reference: Reference, console: Console) -> None:
    columns = [Column("what"), Column("compared", right=True), Column("result", wraps=20)]
    rows = [(check.what, f"{check.compared:,}", _result(check)) for check in checks]
    print_table(console, columns, rows, f"Compared with {reference.name}")


def print_quick_plan(plans: Sequence[Quick], console: Console) -> None:
    """What will be trained, with estimated times."""
    columns = [Column("reference"), Column("setting"), Column("variants", wraps=12)]
    columns += [Column("models each", right=True, goes=1), Column("steps", right=True, goes=2), Column("time")]
    rows = []
    for plan in plans:
        cut = plan.experiment
        sizes = (", ".join(cut.variants), str(cut.models), f"{cut.steps:,}")
        time = "skipped" if plan.why_not else duration(plan.seconds)
        rows.append((plan.reference.name, cut.settings[0].name, *sizes, time))
    total = duration(sum(plan.seconds for plan in plans if not plan.why_not))
    print_table(console, columns, rows, f"First draws to train, about {total} on this machine")


def print_quick_results(plans: Sequence[Quick], results: Mapping[str, Summary | str], console: Console) -> None:
    """One line per reference: what was compared, from which models; or why it was skipped."""
    rows = []
    for plan in plans:
        name, found = plan.reference.name, results[plan.reference.name]
        if isinstance(found, str):
            rows.append((name, "-", Text(f"not compared: {found}", "yellow")))
            continue
        cut = plan.experiment
        models = f"{len(cut.variants)} x {cut.models} models, {cut.steps:,} steps"
        rests_on = f"{cut.settings[0].name}: {models}, {found.values:,} values"
        rows.append((name, rests_on, Text(found.result, "green" if found.agrees else "red")))
    columns = [Column("reference"), Column("rests on", wraps=24), Column("result", wraps=20)]
    print_table(console, columns, rows, "Compared with the references")


def _result(check: Check) -> Text:
    for named, result, style in (
        (check.faulty, "not compared", "yellow"),
        (check.differs, "differs", "red"),
        (check.unclear, "too few models to tell", "yellow"),
    ):
        if named:
            more = [f"and {len(named) - NAMED} more"] if len(named) > NAMED else []
            return Text(result, style).append(f": {'; '.join([*named[:NAMED], *more])}", "default")
    return Text("agrees", "green") if check.compared else Text("nothing to compare", "dim")
