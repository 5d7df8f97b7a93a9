"""Functions shared by commands: open a run, draw it, save figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resharpen.errors import UserError
from resharpen.lazy import pl
from resharpen.paths import absolute

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from resharpen.experiments.keeping.opening import RunOrReference
    from resharpen.experiments.keeping.store import Run
    from resharpen.experiments.specs.spec import Shard
    from resharpen.views.violins import Look

FORMATS = ("png", "svg")
"""Default formats of figures."""


def load(directory: Path, trust_code: bool) -> Run:
    """Open a run, for commands that do not work with references."""
    from resharpen.experiments.keeping.store import REFERENCE
    from resharpen.experiments.running.runner import load

    if absolute(directory / REFERENCE).exists():
        raise UserError(f"{directory} is a reference: use it with report, figure, results, claims or compare")
    return load(directory, trust_code)


def look(directory: Path, trust_code: bool) -> RunOrReference:
    """Open a run or a reference."""
    from resharpen.experiments.keeping.opening import open_run_or_reference

    return open_run_or_reference(directory, trust_code)


def check_file(path: Path, ending: str) -> None:
    """UserError unless the path has this ending, so that no other file is overwritten."""
    from resharpen.experiments.keeping.outputs import check_output

    if path.suffix != ending:
        raise UserError(f"{path}: the name must end in {ending}")
    check_output(path)


def place_for(run: RunOrReference, out: Path | None) -> Path:
    """Directory for output. Default: the run itself; not a reference, which may be part of an installed package."""
    from resharpen.experiments.keeping.outputs import check_output
    from resharpen.experiments.keeping.reference import Reference

    if out is not None:
        check_output(out)
        return out
    return Path("runs") / run.experiment.name if isinstance(run, Reference) else run.directory


def save_figures(
    run: RunOrReference,
    out: Path,
    console: Console,
    selection: str = "best",
    attention: str | None = None,
    metric: str | None = None,
    test: str = "",
    formats: Sequence[str] = FORMATS,
    look: Look | None = None,
) -> None:
    from rich.progress import track

    from resharpen.notebook import draw
    from resharpen.own import short
    from resharpen.views.violins import Look

    def reading(shards: Sequence[Shard]) -> Iterable[Shard]:
        return track(shards, f"scoring with {short(attention or '')}", console=console, transient=True)

    suffix = "".join(f"-{short(part)}" for part in (selection, attention, test) if part not in ("best", None, ""))
    for name, figure in draw(run, selection, attention, reading, metric, test, look or Look()).items():
        save(figure, out, f"{name}{suffix}", console, formats)


def show_comparison(run: RunOrReference, out: Path, console: Console, *what: Any) -> None:
    """Print and draw a comparison; `what` are the arguments of `analysis.compare.compare` after the run."""
    from resharpen.analysis.compare import compare
    from resharpen.views.compare_figure import draw_comparison
    from resharpen.views.tables import print_comparison

    found = compare(run, *what)
    print_comparison(found, console)
    save(draw_comparison(found), out, f"comparison-{found.test}" if found.test else "comparison", console)


def show_result(run: Run, out: Path, console: Console) -> str:
    """Print the verdict on every claim, or on every variant if there are no claims; return the command for details."""
    from resharpen.analysis.claims import claims, of_the_paper
    from resharpen.analysis.compare import compare
    from resharpen.experiments.keeping.store import quoted
    from resharpen.views.compare_figure import draw_comparison
    from resharpen.views.tables import print_result

    if of_the_paper(run) and (found := claims(run)):
        print_result(
            [f"Claim {claim.number}. {claim.text}: {claim.verdict} ({claim.counts})" for claim in found], (), console
        )
        return f"resharpen claims {quoted(out)}"
    if len(run.experiment.variants) == 1:
        return f"resharpen results {quoted(out)}"
    comparison = compare(run)
    save(draw_comparison(comparison), out, "comparison", console)
    print_result(comparison.results(), comparison.size_warnings(), console)
    return f"resharpen compare {quoted(out)}"


def study(target: str, runs: Sequence[Run], out: Path, scale: str, console: Console) -> None:
    """Print our own claims on the runs of a study, and save one figure of all runs."""
    if further := {"positions": _study_positions, "tasks": _study_tasks, "anchors": _study_anchors}.get(target):
        further(runs, out, f"{target}-{scale}", console)
        return
    from resharpen.analysis.claims import claims
    from resharpen.analysis.claims.remedies import NUMBERS
    from resharpen.analysis.compare import compare
    from resharpen.views.compare_figure import draw_remedies
    from resharpen.views.tables import print_claims

    if ours := [claim for run in runs for claim in claims(run) if claim.number in NUMBERS]:
        print_claims(ours, console)
    save(draw_remedies([compare(run) for run in runs]), out, f"{target}-{scale}", console)


def _study_tasks(runs: Sequence[Run], out: Path, name: str, console: Console) -> None:
    """Print the kind of dispersion of each task, save one figure of the gains on all tasks, and both as tables."""
    from resharpen.analysis.dispersion import agreement, dispersion, gains, gains_table
    from resharpen.views.tasks_study import draw_tasks, print_dispersion

    found = [gain for run in runs for gain in gains(run)]
    table = agreement([dispersion(run) for run in runs], found)
    print_dispersion(table, console)
    _save_table(gains_table(found), out, f"{name}-gains", console)
    _save_table(table, out, f"{name}-dispersion", console)
    experiment = runs[0].experiment
    save(draw_tasks(found, f"{experiment.models} draws, {experiment.steps:,} steps"), out, name, console)


def _study_positions(runs: Sequence[Run], out: Path, name: str, console: Console) -> None:
    """Print our claims on positions, and save one figure and the distances of all models. Models are also scored with
    keys masked that are further away than in training."""
    from rich.progress import track

    from resharpen.analysis.claims.positions import distances, losses, positions_claims
    from resharpen.experiments.running.rescoring import read_near
    from resharpen.views.positions_figure import draw_positions
    from resharpen.views.tables import print_claims

    found = []
    for run in runs:

        def reading(shards: Sequence[Shard], name: str = run.experiment.name) -> Iterable[Shard]:
            return track(shards, f"reading {name} without far keys", console=console, transient=True)

        found.append(distances(run, read_near(run, track=reading)))
    table = pl.concat(found)
    _save_table(table, out, f"{name}-distances", console)
    of_tasks = losses(table)
    print_claims(positions_claims(of_tasks), console)
    save(draw_positions(of_tasks), out, name, console)


def _save_table(table: pl.DataFrame, out: Path, name: str, console: Console) -> None:
    from resharpen.experiments.keeping.outputs import write_output

    write_output(out / f"{name}.csv", table.write_csv().encode())
    console.print(f"Table: {out / f'{name}.csv'}", soft_wrap=True)


def _study_anchors(runs: Sequence[Run], out: Path, name: str, console: Console) -> None:
    """Print and draw published numbers beside our draws."""
    from resharpen.analysis.anchors import compared
    from resharpen.views.anchors import draw_anchors, print_anchors

    found = [each for run in runs for each in compared(run)]
    print_anchors(found, console)
    save(draw_anchors(found), out, name, console)


def save(figure: Figure, out: Path, name: str, console: Console, formats: Sequence[str] = FORMATS) -> None:
    from resharpen.experiments.keeping.outputs import write_output
    from resharpen.views.style import picture

    for kind in formats:
        write_output(out / f"{name}.{kind}", picture(figure, kind))
    more = f" (and {', '.join(f'.{suffix}' for suffix in formats[1:])})" if formats[1:] else ""
    console.print(f"Figure: {out / f'{name}.{formats[0]}'}{more}", soft_wrap=True)
