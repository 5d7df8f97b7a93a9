"""What several commands do with a run: open it, draw it, save pictures of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resharpen.errors import UserError
from resharpen.paths import absolute

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from resharpen.experiments.keeping.opening import RunOrReference
    from resharpen.experiments.keeping.store import Run
    from resharpen.experiments.specs.spec import Shard


def load(directory: Path, trust_code: bool) -> Run:
    """Open a run, for a command that needs more than a reference has."""
    from resharpen.experiments.keeping.store import REFERENCE
    from resharpen.experiments.running.runner import load

    if absolute(directory / REFERENCE).exists():
        raise UserError(f"{directory} is a reference: use it with report, figure, results, claims or compare")
    return load(directory, trust_code)


def look(directory: Path, trust_code: bool) -> RunOrReference:
    """Open a run or a reference."""
    from resharpen.experiments.keeping.opening import open_run_or_reference

    return open_run_or_reference(directory, trust_code)


def check_ending(path: Path, ending: str) -> None:
    """So that no other file is overwritten, least of all one of a run."""
    if path.suffix != ending:
        raise UserError(f"{path}: the name must end in {ending}")


def beside(run: RunOrReference) -> Path:
    """Default directory for output: the run itself; a reference may be part of an installed package."""
    from resharpen.experiments.keeping.reference import Reference

    return Path("runs") / run.experiment.name if isinstance(run, Reference) else run.directory


def save_figures(
    run: RunOrReference, out: Path, console: Console, selection: str = "best", attention: str | None = None
) -> None:
    from rich.progress import track

    from resharpen.notebook import draw
    from resharpen.own import short

    def reading(shards: Sequence[Shard]) -> Iterable[Shard]:
        return track(shards, f"scoring with {short(attention or '')}", console=console, transient=True)

    suffix = "".join(f"-{short(part)}" for part in (selection, attention) if part not in ("best", None))
    for name, figure in draw(run, selection, attention, reading).items():
        save(figure, out, f"{name}{suffix}", console)


def show_comparison(run: RunOrReference, out: Path, console: Console, *what: Any) -> None:
    """Print and draw a comparison; `what` are the arguments of `analysis.compare.compare` after the run."""
    from resharpen.analysis.compare import compare
    from resharpen.views.compare_figure import draw_comparison
    from resharpen.views.compare_table import print_comparison

    found = compare(run, *what)
    print_comparison(found, console)
    save(draw_comparison(found), out, "comparison", console)


def study(runs: Sequence[RunOrReference], out: Path, name: str, console: Console) -> None:
    """Print our own claims on the runs of a study, and save one figure of all runs."""
    from resharpen.analysis.claims import claims
    from resharpen.analysis.claims.remedies import NUMBERS
    from resharpen.analysis.compare import compare
    from resharpen.views.remedies import draw_remedies
    from resharpen.views.tables import print_claims

    if ours := [claim for run in runs for claim in claims(run) if claim.number in NUMBERS]:
        print_claims(ours, console)
    save(draw_remedies([compare(run) for run in runs]), out, name, console)


def save(figure: Figure, out: Path, name: str, console: Console) -> None:
    absolute(out).mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "svg"):
        figure.savefig(absolute(out / f"{name}.{suffix}"))
    console.print(f"Figure: {out / f'{name}.png'} (and .svg)", soft_wrap=True)
