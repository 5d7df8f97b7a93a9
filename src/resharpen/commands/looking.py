"""Commands that read runs: figures, tables, claims, comparisons, reports."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from resharpen.commands.options import Directory, File, Name, RunDirectory, RunOrReference, Text, TrustCode, Weights
from resharpen.commands.results import FORMATS, check_file, load, look, place_for, save, save_figures, show_comparison
from resharpen.errors import UserError, unknown
from resharpen.paths import absolute

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Status:
    """Show the progress of a run and the command that continues it.

    For example: resharpen status runs/fig1-laptop
    """

    run: RunDirectory
    trust_code: TrustCode = False

    def __call__(self, console: Console) -> None:
        from resharpen.views.tables import print_status

        print_status(load(self.run, self.trust_code), console)


@dataclass(frozen=True)
class DrawFigure:
    """Draw the figures of a run, finished or not, for a screen or a paper.

    For example:
        resharpen figure runs/fig1-laptop
        resharpen figure fig1-overnight --width 7 --format pdf,svg --no-title
        resharpen figure runs/fig1-laptop --selection best-trained --out other
        resharpen figure runs/fig2-laptop --attention adaptive-temperature
    """

    run: RunOrReference
    trust_code: TrustCode = False
    selection: Literal["best", "best-trained", "last"] = "best"
    """Which checkpoint: the best over all lengths, the best over trained lengths only, or the last."""
    attention: Name = None
    """Score the stored models with this attention, without training: adaptive-temperature, log-n, FILE.py:NAME."""
    metric: Name = None
    """Draw only this metric, such as kl, illegal, error or exact. Default: the figures of the task."""
    test: Name = None
    """A further test distribution of the spec. Default: the task itself."""
    width: Annotated[float | None, arg(metavar="INCHES", help_behavior_hint="")] = None
    """Width in inches, from 3. Text has at least 7 points at that width. Default: wide enough for a screen."""
    format: Text = None
    """Formats, separated by commas: png, svg, pdf. Text in svg and pdf stays text. Default: png,svg."""
    no_title: bool = False
    """Leave out the title, for a figure with a caption."""
    out: Directory = None
    """The output directory. Default: the run directory; for a reference, runs/NAME."""

    def __call__(self, console: Console) -> None:
        from resharpen.views.violins import Look

        if self.out is not None and self.out.suffix in (".png", ".svg", ".pdf"):
            raise UserError(f"--out {self.out}: must be a directory, not a file: there are several figures")
        formats = [name.strip() for name in (self.format or ",".join(FORMATS)).split(",")]
        for name in formats:
            if name not in (*FORMATS, "pdf"):
                raise unknown("format", name, (*FORMATS, "pdf"))
        if self.width is not None and not 3 <= self.width <= 40:
            raise UserError(f"--width {self.width:g}: must be from 3 to 40 inches")
        run = look(self.run, self.trust_code)
        drawn = Look(self.width, not self.no_title)
        what = (self.selection, self.attention, self.metric, self.test or "")
        save_figures(run, place_for(run, self.out), console, *what, formats, drawn)


@dataclass(frozen=True)
class Results:
    """Summarize a run, or export all its values: one row per value, with all hyperparameters.

    For example:
        resharpen results runs/fig1-laptop
        resharpen results runs/fig1-laptop --csv > results.csv
        resharpen results runs/fig1-laptop --parquet results.parquet
    """

    run: RunOrReference
    trust_code: TrustCode = False
    csv: bool = False
    """Write CSV to standard output."""
    parquet: File = None
    """Write a Parquet file."""
    test: Name = None
    """A further test distribution of the spec. Default: the task itself; exports contain all, in the column `test`."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.scores import lengths_of, reported_metrics, scores, task_of, tidy_results
        from resharpen.experiments.keeping.files import parquet
        from resharpen.experiments.keeping.outputs import write_output
        from resharpen.experiments.specs.spec import labels
        from resharpen.views.tables import print_scores

        if self.parquet is not None:
            check_file(self.parquet, ".parquet")
        run = look(self.run, self.trust_code)
        if self.parquet is not None:
            write_output(self.parquet, parquet(tidy_results(run, self.test)))
            if not self.csv:
                console.print(f"wrote {self.parquet}", soft_wrap=True)
        if self.csv:
            sys.stdout.write(tidy_results(run, self.test).write_csv())
        elif self.parquet is None:
            task, lengths, names = task_of(run), lengths_of(run, self.test or ""), labels(run.experiment.settings)
            reported = reported_metrics(run, lengths)
            for metric in dict.fromkeys([task.metric, *task.metrics]):
                if metric in reported:
                    found = scores(run, lengths=lengths, metric=metric)
                    print_scores(found, task.metrics[metric], names, console, self.test or "")


@dataclass(frozen=True)
class Claims:
    """Test the claims of the paper on a run: estimates, intervals, verdicts. Of a run of the study `anchors`, compare
    its draws with published numbers.

    For example:
        resharpen claims runs/fig1-laptop
        resharpen claims runs/anchors-sort-laptop
        resharpen claims fig1-overnight         (a reference that comes with the package)
        resharpen claims fig1-overnight --sensitivity
    """

    run: RunOrReference
    trust_code: TrustCode = False
    sensitivity: bool = False
    """Also test every claim with other quantiles, checkpoints and thresholds, and list the verdicts that change."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.anchors import compared
        from resharpen.analysis.claims import claims, why_no_claims
        from resharpen.views.anchors import print_anchors
        from resharpen.views.sensitivity import print_sensitivity
        from resharpen.views.tables import print_claims

        run = look(self.run, self.trust_code)
        published, reason = compared(run), why_no_claims(run)
        if reason and not published:
            raise UserError(f"{self.run}: {reason}")
        if not reason:
            if not (found := claims(run)):
                raise UserError(f"{self.run}: no draw is finished in all variants yet; continue with: {run.command}")
            if self.sensitivity:
                print_sensitivity(run, console)
            else:
                print_claims(found, console)
            if published:
                console.print()
        if published:
            print_anchors(published, console)


@dataclass(frozen=True)
class Compare:
    """Compare variants with a baseline, paired by draw: gains at each length, the best of k models, and the importance
    of hyperparameters.

    For example:
        resharpen compare runs/my_norm
        resharpen compare runs/fig1-laptop peri post --baseline pre-final --margin 0.01
        resharpen compare runs/fig1-laptop --with runs/mine
        resharpen compare fig1-laptop --with runs/mine
        resharpen compare runs/mine --metric kl --selection best-trained
        resharpen compare runs/seed0 --pool runs/seed1 runs/seed2
    """

    run: RunOrReference
    variants: Annotated[Positional[tuple[str, ...]], arg(metavar="VARIANT ...", help_behavior_hint="")] = ()
    """Variants to compare. Default: all."""
    with_run: Annotated[Directory, arg(name="with")] = None
    """Another run or reference with the same draws, whose variants are added. Equal names become NAME@DIR."""
    baseline: Name = None
    """The variant to compare with. Default: the one in the spec, or else the first."""
    margin: float = 0.02
    """The smallest difference that matters, in the unit of the metric."""
    weights: Weights = "train"
    selection: Literal["best", "best-trained", "last"] = "best"
    """Which checkpoint: the best over all lengths, the best over trained lengths only, or the last."""
    metric: Name = None
    """The metric to compare, such as tvd, kl, illegal, error or exact. Default: the one that selects checkpoints."""
    pool: Annotated[tuple[Path, ...], arg(metavar="RUN...", help_behavior_hint="")] = ()
    """Further runs of the same spec with other seeds; their pairs are added."""
    test: Name = None
    """A further test distribution of the spec to compare on. Default: the task itself."""
    trust_code: TrustCode = False
    out: Directory = None
    """The output directory. Default: the run directory; for a reference, runs/NAME."""

    def __call__(self, console: Console) -> None:
        run = look(self.run, self.trust_code)
        other = None if self.with_run is None else look(self.with_run, self.trust_code)
        show_comparison(
            run,
            place_for(run, self.out),
            console,
            self.variants,
            other,
            self.baseline,
            self.margin,
            self.weights,
            self.selection,
            self.metric,
            [look(more, self.trust_code) for more in self.pool],
            self.test or "",
        )


@dataclass(frozen=True)
class Inspect:
    """Inspect trained models. Minimal transformers: the matrices B and D (docs/theory.md) and attention of a model, and
    statistics over the run. Full transformers: attention maps on a prefix, and their entropy by length.

    For example:
        resharpen inspect runs/fig1-laptop
        resharpen inspect runs/fig1-laptop --model sct-v9-s3/peri/7 --weights bema
        resharpen inspect runs/my_language --prefix BOS,heads,tails,heads
    """

    run: RunDirectory
    trust_code: TrustCode = False
    model: str = "best"
    """A model id, SETTING/VARIANT/DRAW, or best. Statistics are over the setting of this model."""
    weights: Weights = "train"
    prefix: Text = None
    """For a full transformer: input tokens. Default: a sequence of the language, longer than in training."""
    out: Directory = None
    """The output directory. Default: the run directory."""

    def __call__(self, console: Console) -> None:
        run = load(self.run, self.trust_code)
        out = place_for(run, self.out)
        from resharpen.views.inspection import draw_inspection  # with matplotlib: a bad argument does not wait for it

        for name, figure in draw_inspection(run, self.model, self.weights, self.prefix, console).items():
            save(figure, out, name, console)


@dataclass(frozen=True)
class Verify:
    """Compare a run with its reference results: draws, values and distributions of scores.

    A run may have fewer models, settings or variants than its reference. Exit code 1 if anything differs. With --quick
    no run is needed: a few draws of the references are trained on this machine, in about ten minutes on two cores, and
    deleted afterwards.

    For example:
        resharpen verify runs/fig1-overnight
        resharpen verify runs/mine --reference reference/fig1-overnight
        resharpen verify --all --quick
        resharpen verify --quick --reference fig2-overnight
    """

    run: Annotated[Positional[Path | None], arg(metavar="[RUN]", help="The run directory.", help_behavior_hint="")] = (
        None
    )
    reference: Directory = None
    """The directory of the reference, or its name. Default: the reference with the name of the run."""
    quick: bool = False
    """Train the first draws of a reference on this machine and compare them, instead of an existing run."""
    all: bool = False
    """With --quick: every reference, one line each."""
    out: Directory = None
    """With --quick: keep the runs in this directory. The same command continues them."""
    trust_code: TrustCode = False

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.verify import verify
        from resharpen.commands.quick import verify_quickly
        from resharpen.experiments.keeping.reference import Reference, find_reference, references
        from resharpen.views.tables import print_verification

        self._check()
        if self.all:
            verify_quickly([Reference(path) for path in references().values()], self.out, console)
            return
        run = None if self.run is None else load(self.run, self.trust_code)
        name = str(self.reference or (run and run.experiment.name))
        by_name = self.reference is None or not absolute(self.reference).exists()
        reference = find_reference(name) if by_name else Reference(Path(name))
        if run is None:
            verify_quickly([reference], self.out, console)
            return
        checks = verify(run, reference)
        print_verification(checks, reference, console)
        if any(check.differs or check.faulty for check in checks):
            sys.exit(1)

    def _check(self) -> None:
        if not self.quick:
            if self.run is None or self.all or self.out is not None:
                raise UserError("verify needs a run directory, or --quick with --all or --reference NAME")
        elif self.run is not None:
            raise UserError(f"--quick trains its own draws: omit {self.run}")
        elif self.all == (self.reference is not None):
            raise UserError("--quick needs either --all or --reference NAME")


@dataclass(frozen=True)
class Report:
    """Write an interactive HTML report of runs, which works offline: scores of all models, hyperparameters, claims,
    comparisons.

    For example:
        resharpen report runs/demo --open
        resharpen report runs/fig1-laptop runs/fig2-laptop --out both.html
        resharpen report fig1-overnight --open          (a reference that comes with the package)
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")]
    """Run directories or references; a report of several has a front page."""
    open: bool = False
    """Open it in the browser."""
    out: File = None
    """The output file. Default: report.html in the run directory; for a reference in runs/NAME; for several runs in
    the working directory."""
    test: Name = None
    """A further test distribution of the spec to report on. Default: the task itself."""
    trust_code: TrustCode = False

    def __call__(self, console: Console) -> None:
        from rich.text import Text

        from resharpen.views.report.write import write_report

        if not self.runs:
            raise UserError("report needs at least one run directory, such as runs/demo")
        if self.out is not None:
            check_file(self.out, ".html")
        runs = [look(run, self.trust_code) for run in self.runs]
        name = f"report-{self.test}.html" if self.test else "report.html"
        out = self.out or (place_for(runs[0], None) if len(runs) == 1 else Path()) / name
        with console.status("writing the report ...") as status:
            write_report(runs, out, tell=lambda x: status.update(Text(x)), test=self.test or "")
        console.print(f"Report: {out}", soft_wrap=True)
        if self.open:
            webbrowser.open(absolute(out).resolve().as_uri())
