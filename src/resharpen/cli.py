"""The command line: parse, call, print."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import re
import sys
import warnings
import webbrowser
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import tyro
from tyro.conf import Positional, arg, subcommand

from resharpen.errors import Failed, UserError
from resharpen.signals import end_at_once, orderly

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from resharpen.experiments.keeping.store import Run
    from resharpen.experiments.specs.spec import Experiment

# Without these the help would show "{None}|INT" and "(default: None)".
Number = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
Text = Annotated[str | None, arg(metavar="A,B,...", help_behavior_hint="")]
Directory = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
RunDirectories = Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")]
RunDirectory = Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
Scale = Annotated[
    Literal["smoke", "laptop", "overnight", "paper"] | None,
    arg(metavar="{smoke,laptop,overnight,paper}", help_behavior_hint=""),
]
Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Launcher = Annotated[Literal["local", "ray"], arg(metavar="{local,ray}")]
Address = Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")]
Part = Annotated[str | None, arg(metavar="I/N", help_behavior_hint="")]
EngineName = Annotated[
    Literal["auto", "torch", "native"] | None, arg(metavar="{auto,torch,native}", help_behavior_hint="")
]


DeviceName = Annotated[Literal["cpu", "cuda", "mps"] | None, arg(metavar="{cpu,cuda,mps}", help_behavior_hint="")]


@dataclass(frozen=True)
class ListFigures:
    """Show the figures that can be made, and how long each takes on this machine.

    For example: resharpen list
    """

    def __call__(self, console: Console) -> None:
        from resharpen.views.shelf import print_shelf

        print_shelf(console)


@dataclass(frozen=True)
class Training:
    """What to train."""

    target: Annotated[Positional[str], arg(metavar="TARGET", help_behavior_hint="")]
    """A figure of `resharpen list`, a TOML file, or a run directory."""
    scale: Scale = None
    """How many models and steps: a minute, minutes, a night, or the full protocol; see `list`. Default: laptop."""
    out: Directory = None
    """The run directory. Default: runs/NAME."""
    models: Number = None
    """Models per setting and variant. More than before extends a run."""
    steps: Number = None
    """Training steps of each model."""
    variants: Text = None
    """What to compare: sums of parts, or of your own as FILE.py:NAME, separated by commas."""
    seed: Number = None
    """Seed of all random streams."""
    engine: EngineName = None
    """auto takes native for every variant that it can run."""
    device: DeviceName = None
    """Where the torch engine computes. Default: cpu."""
    march: Name = None
    """Instruction set of the native engine: native, this machine's own, or x86-64-v3 say, for a run that moves."""
    trust_code: bool = False
    """Execute code from the run directory where the file that it was copied from is gone or has changed."""

    def _experiment(self) -> tuple[Experiment, Path]:
        from resharpen.experiments.running.runner import load
        from resharpen.experiments.specs.shelf import take
        from resharpen.experiments.specs.toml import read_toml

        path = Path(self.target)
        if path.suffix == ".toml" or path.is_dir():
            if self.scale is not None:
                raise UserError("--scale goes with a figure's name, not with a file or a run")
            experiment = load(path, self.trust_code).experiment if path.is_dir() else read_toml(path)
        else:
            experiment = take(self.target, self.scale or "laptop")
        variants = None if self.variants is None else [name.strip() for name in self.variants.split(",")]
        changed = experiment.with_changes(
            self.models, self.steps, self.seed, variants, self.engine, self.device, self.march
        )
        return changed, self.out or (path if path.is_dir() else Path("runs") / experiment.name)


@dataclass(frozen=True)
class RunFigure(Training):
    """Train the models of a figure, of a TOML file, or what is left of an existing run; then draw.

    For example:
        resharpen run fig1 --scale smoke
        resharpen run fig1 --models 192 --variants pre,peri,pre+log-n --out runs/more
        resharpen run fig1 --variants pre,pre+examples/my_attention.py:my_ssmax --out runs/mine
        resharpen run examples/my_norm.toml
        resharpen run runs/fig1-laptop          (continues)
        resharpen run remedies --scale smoke    (a study of three figures)
        resharpen run fig1 --launcher ray --address auto
    """

    workers: Number = None
    """Processes. Default: one a core."""
    launcher: Launcher = "local"
    """Where shards are trained: in processes of this machine, or as Ray tasks (pip install 'resharpen[ray]')."""
    address: Address = None
    """The Ray cluster to use, HOST:PORT or auto. Default: one of this machine alone, for this run."""
    part: Part = None
    """Only the I-th of N parts of the run: for job arrays and machines that share a directory."""
    dry_run: bool = False
    """Say what would be done, how long it would take and how much disk it needs; train nothing."""

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.specs.shelf import STUDIES

        if self.target not in STUDIES:
            self._run(console)
            return
        if self.variants is not None:
            raise UserError(f"--variants goes with one of {', '.join(STUDIES[self.target])}, not with all of them")
        out = self.out or Path("runs")
        figures = [replace(self, target=name) for name in STUDIES[self.target]]
        runs = [figure._run(console, out / figure._experiment()[0].name) for figure in figures]
        if finished := [run for run in runs if run]:
            _study(finished, out, f"{self.target}-{self.scale or 'laptop'}", console)

    def _run(self, console: Console, directory: Path | None = None) -> Run | None:
        """The finished run; None if this was to say what it would be, or if there is more of it to come."""
        from resharpen.analysis.claims import has_claims, of_the_paper
        from resharpen.experiments.keeping.store import quoted
        from resharpen.experiments.running.estimate import describe
        from resharpen.experiments.running.runner import run, with_engine

        experiment, out = self._experiment()
        out, part = directory or out, _part(self.part)
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers = {self.workers}: must be at least 1")
        if self.dry_run:
            console.print(describe(with_engine(experiment), self.workers))
            return None
        try:
            with _progress(console) as progress, orderly() as asked:
                see, follow, stop = progress.plan, progress.update, asked.is_stopping
                how = {"launcher": self.launcher, "address": self.address, "part": part}
                store = run(
                    experiment, out, self.workers, see, follow, stop, self.trust_code, lambda: asked.saves, **how
                )
        except Failed as error:
            raise Failed(f"{error}; what is done is kept. Continue with: resharpen run {quoted(out)}") from error
        if asked.is_stopping():
            console.print(f"Stopped; nothing is lost. Continue with: {store.command}", soft_wrap=True)
            sys.exit(128 + asked.number)
        if self.part is not None:
            console.print(f"Part {self.part} is done. When all are: resharpen figure {quoted(out)}", soft_wrap=True)
            return None
        if left := len(store.shards()) - len(store.done()):
            console.print(
                f"{left} shards are with other processes. Then: resharpen figure {quoted(out)}", soft_wrap=True
            )
            return None
        _save_figures(store, out, console)
        if not of_the_paper(store) and len(store.experiment.variants) > 1:
            _compare(store, out, console)
        claims = f"resharpen claims {quoted(out)}, " if has_claims(store) else ""
        console.print(f"Next: {claims}resharpen compare {quoted(out)}, resharpen results {quoted(out)}", soft_wrap=True)
        return store


@dataclass(frozen=True)
class Submit(Training):
    """Give a run to a batch system, as a job array with a part of the run in every job; the options are those of `run`.

    For example:
        resharpen submit fig1 --scale paper --out /scratch/me/fig1 --slurm --jobs 64 --hours 12 --dry-run
    """

    slurm: bool = False
    """To SLURM, with sbatch."""
    jobs: int = 64
    """Jobs in the array, one core each; there are never more than shards."""
    hours: float = 24.0
    """Time limit of a job. What is not done by then goes on in the next."""
    dry_run: bool = False
    """Print the script; submit nothing."""

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.keeping.store import quoted
        from resharpen.experiments.running.slurm import script, submit

        if not self.slurm:
            raise UserError("say to what: --slurm")
        experiment, out = self._experiment()
        kinds = len(experiment.settings) * len(experiment.variants)
        jobs = min(self.jobs, kinds * sum(experiment.shard_sizes().values()))
        text = script(self._arguments(), experiment.name, jobs, self.hours)
        if self.dry_run:
            sys.stdout.write(text)
            return
        job = submit(text)
        look = f"resharpen status {quoted(out)}"
        console.print(f"Submitted as job {job}, an array of {jobs}. Look with: {look}", soft_wrap=True)

    def _arguments(self) -> list[str]:
        """The `run` that was asked for."""
        arguments = ["run", self.target]
        for name in (field.name for field in fields(Training) if field.name != "target"):
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if value is True:
                arguments.append(option)
            elif value not in (None, False):
                arguments += [option, str(value)]
        return arguments


@dataclass(frozen=True)
class Status:
    """Show how far a run is and what continues it.

    For example: resharpen status runs/fig1-laptop
    """

    run: RunDirectory
    """The run directory."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""

    def __call__(self, console: Console) -> None:
        from resharpen.views.tables import print_status

        print_status(_load(self.run, self.trust_code), console)


@dataclass(frozen=True)
class DrawFigure:
    """Draw the figure of a run, as far as it is, as PNG and SVG.

    For example:
        resharpen figure runs/fig1-laptop
        resharpen figure runs/fig1-laptop --selection best-trained --out other
        resharpen figure runs/fig2-laptop --attention adaptive-temperature
    """

    run: RunDirectory
    """The run directory."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""
    selection: Literal["best", "best-trained", "last"] = "best"
    """Which checkpoint: the best over all lengths, the best judged on trained lengths only, the last."""
    attention: Name = None
    """Read the kept models with this attention, without training again: adaptive-temperature, log-n, FILE.py:NAME."""
    out: Directory = None
    """Where the pictures go. Default: the run directory."""

    def __call__(self, console: Console) -> None:
        _save_figures(_load(self.run, self.trust_code), self.out or self.run, console, self.selection, self.attention)


@dataclass(frozen=True)
class Results:
    """Summarise a run, or export every measured value with every hyperparameter, one value a row.

    For example:
        resharpen results runs/fig1-laptop
        resharpen results runs/fig1-laptop --csv > results.csv
        resharpen results runs/fig1-laptop --parquet results.parquet
    """

    run: RunDirectory
    """The run directory."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""
    csv: bool = False
    """Write CSV to standard output."""
    parquet: File = None
    """Write a Parquet file."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.scores import scores, task_of, tidy_results
        from resharpen.views.tables import print_scores

        run = _load(self.run, self.trust_code)
        if self.parquet is not None:
            try:
                tidy_results(run).write_parquet(self.parquet)
            except OSError as error:
                raise UserError(f"cannot write {self.parquet}: {error.strerror}") from error
            console.print(f"wrote {self.parquet}")
        if self.csv:
            tidy_results(run).write_csv(sys.stdout)
        elif self.parquet is None:
            print_scores(scores(run), task_of(run), console)


@dataclass(frozen=True)
class Claims:
    """Test the claims of the paper on a run: estimates, intervals, verdicts.

    For example: resharpen claims runs/fig1-laptop
    """

    run: RunDirectory
    """The run directory."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.claims import claims
        from resharpen.views.tables import print_claims

        found = claims(_load(self.run, self.trust_code))
        if not found:
            raise UserError(f"{self.run}: there are no claims to test on this kind of task yet")
        print_claims(found, console)


@dataclass(frozen=True)
class Compare:
    """Compare variants with a baseline, pair by pair over the same draws: does the idea help, at which lengths, at
    which budget of models, and which hyperparameters matter.

    For example:
        resharpen compare runs/my_norm
        resharpen compare runs/fig1-laptop peri post --baseline pre-final --margin 0.01
        resharpen compare runs/fig1-laptop --with runs/mine
    """

    run: RunDirectory
    """The run directory."""
    variants: Annotated[Positional[tuple[str, ...]], arg(metavar="VARIANT ...", help_behavior_hint="")] = ()
    """What to compare. Default: all variants."""
    with_run: Annotated[Directory, arg(name="with")] = None
    """Another run over the same draws, whose variants are compared too; one of a name that is taken is NAME@DIR."""
    baseline: Name = None
    """The variant to compare with. Default: that of the spec, or else the first."""
    margin: float = 0.02
    """The difference up to which nobody would care, in the unit of the metric."""
    weights: Literal["train", "bema"] = "train"
    """Training weights or BEMA, at the best checkpoint."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""
    out: Directory = None
    """Where the picture goes. Default: the run directory."""

    def __call__(self, console: Console) -> None:
        run = _load(self.run, self.trust_code)
        other = None if self.with_run is None else _load(self.with_run, self.trust_code)
        _compare(run, self.out or self.run, console, self.variants, other, self.baseline, self.margin, self.weights)


@dataclass(frozen=True)
class Inspect:
    """Look inside trained models: of minimal transformers B, D, attention and what those of a run share; of full
    transformers the attention maps on a prefix and their entropy by length.

    For example:
        resharpen inspect runs/fig1-laptop
        resharpen inspect runs/fig1-laptop --model sct-v9-s3/peri/7 --weights bema
        resharpen inspect runs/my_language --prefix BOS,heads,tails,heads
    """

    run: RunDirectory
    """The run directory."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""
    model: str = "best"
    """A model's id, SETTING/VARIANT/DRAW, or the best of the run. Its setting is the one that is compared."""
    weights: Literal["train", "bema"] = "train"
    """Training weights or BEMA, at the best checkpoint."""
    prefix: Text = None
    """For a full transformer: tokens to read. Default: a sequence of the language, longer than those in training."""
    out: Directory = None
    """Where the pictures go. Default: the run directory."""

    def __call__(self, console: Console) -> None:
        from resharpen.views.inspection import draw_inspection

        pictures = draw_inspection(_load(self.run, self.trust_code), self.model, self.weights, self.prefix, console)
        for name, picture in pictures.items():
            _save(picture, self.out or self.run, name, console)


@dataclass(frozen=True)
class Verify:
    """Hold a run against the results that this package keeps of it, or others: the same draws, numbers, distributions?

    A run may have fewer models, settings or variants than its reference. Exit code 1 if anything differs.

    For example:
        resharpen verify runs/fig1-overnight
        resharpen verify runs/mine --reference reference/fig1-overnight
    """

    run: RunDirectory
    """The run directory."""
    reference: Directory = None
    """The directory of the reference. Default: the one of the run's name."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.verify import verify
        from resharpen.experiments.keeping.reference import Reference, find_reference
        from resharpen.views.verify import print_verification

        run = _load(self.run, self.trust_code)
        reference = Reference(self.reference) if self.reference else find_reference(run.experiment.name)
        checks = verify(run, reference)
        print_verification(checks, reference, console)
        if any(check.differs for check in checks):
            sys.exit(1)


@dataclass(frozen=True)
class Report:
    """Put runs into one HTML file to look at, offline: violins whose dots are models to click on, hyperparameters,
    claims, comparisons.

    For example:
        resharpen report runs/demo --open
        resharpen report runs/fig1-laptop runs/fig2-laptop --out both.html
    """

    runs: RunDirectories
    """Run directories; several get a front page."""
    open: bool = False
    """Show it in the browser."""
    out: File = None
    """The file. Default: report.html in the run directory; of several runs, in the current one."""
    trust_code: bool = False
    """Execute code of your own from the run directory where its file is gone or has changed."""

    def __call__(self, console: Console) -> None:
        from resharpen.views.report.write import write_report

        if not self.runs:
            raise UserError("report needs at least one run directory, such as runs/demo")
        runs = [_load(run, self.trust_code) for run in self.runs]
        out = self.out or (self.runs[0] if len(runs) == 1 else Path()) / "report.html"
        with console.status("gathering ..."):
            write_report(runs, out)
        console.print(f"Report: {out}", soft_wrap=True)
        if self.open:
            webbrowser.open(out.resolve().as_uri())


@dataclass(frozen=True)
class Theory:
    """Check the theory of the task by computation: each statement, how it was checked, what came out.

    For example: resharpen theory --v 6
    """

    v: int = 7
    """Check for every number of tokens from 4 to this one, at most 9."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.theory import check_all
        from resharpen.views.theory import print_checks

        checks = check_all(self.v)
        print_checks(checks, console)
        if not all(check.holds for check in checks):
            sys.exit(1)


@dataclass(frozen=True)
class ListParts:
    """Show what a variant can be made of: what each part is, whose, which models it has a meaning for, and whether the
    native engine knows it there.

    For example:
        resharpen parts
        resharpen run fig1 --variants pre,peri+ssmax,pre+layer+sgd
    """

    def __call__(self, console: Console) -> None:
        from resharpen.views.parts import print_parts

        print_parts(console)


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has and what is missing.

    For example: resharpen doctor
    """

    def __call__(self, console: Console) -> None:
        from resharpen.views.doctor import print_diagnosis

        print_diagnosis(console)


Command = (
    Annotated[ListFigures, subcommand("list")]
    | Annotated[RunFigure, subcommand("run")]
    | Annotated[Submit, subcommand("submit")]
    | Annotated[Status, subcommand("status")]
    | Annotated[DrawFigure, subcommand("figure")]
    | Annotated[Results, subcommand("results")]
    | Annotated[Claims, subcommand("claims")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Inspect, subcommand("inspect")]
    | Annotated[Verify, subcommand("verify")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Theory, subcommand("theory")]
    | Annotated[ListParts, subcommand("parts")]
    | Annotated[Doctor, subcommand("doctor")]
)


def main(args: list[str] | None = None) -> None:
    """Run a command. Bad input gives one line and exit code 2, a machine that fails one line and 1."""
    with end_at_once():
        _prepare_output()
        try:
            try:
                _command(args)
            finally:
                sys.stdout.flush()  # a disk that is full or a reader that is gone shows here, not when Python ends
        except UserError as error:
            _end(2, str(error))
        except Failed as error:
            _end(1, str(error))
        except MemoryError:
            _end(1, "this needs more memory than there is")
        except BrokenPipeError:  # `resharpen results --csv | head`: what a shell says of who is ended by SIGPIPE
            _end(141)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
            _end(1 if full else 2, f"{error.filename or 'cannot write the output'}: {error.strerror}")


def _command(args: list[str] | None) -> None:
    description = (
        "Ensembles of tiny attention models that show what carries over to longer inputs.\n\n"
        "Start with: resharpen run fig1 --scale smoke"
    )
    command = tyro.cli(Command, prog="resharpen", description=description, args=args)  # pyright: ignore[reportArgumentType, reportCallIssue]
    from rich.console import Console

    # Names and paths may hold what looks like markup: what is styled here says so with `style` or `Text`.
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False, emoji=False)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"resharpen: {message}", file=sys.stderr)
        command(console)


def _prepare_output() -> None:
    """Somewhere to write to even if the caller closed it, and in an encoding that takes every name."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:  # so that no file of a run becomes standard output
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    codecs.register_error("as-it-came", _as_it_came)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="as-it-came")  # pyright: ignore[reportAttributeAccessIssue]


def _as_it_came(error: UnicodeError) -> tuple[str | bytes, int]:
    """A path that is not UTF-8 as its bytes; what the terminal does not have as an escape."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def _end(code: int, message: str = "") -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        if message:
            print(f"resharpen: {message}", file=sys.stderr)
        if message == "" or code == 1:  # whatever is still to be written has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _part(text: str | None) -> tuple[int, int]:
    """(i, n) of `I/N`; the whole where nothing is said."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", "1/1" if text is None else text, re.ASCII)
    if found is None:
        raise UserError(f"part '{text}': must be I/N, from 1/N to N/N")
    return int(found[1]), int(found[2])


def _load(directory: Path, trust_code: bool) -> Run:
    from resharpen.experiments.running.runner import load

    return load(directory, trust_code)


def _save_figures(run: Run, out: Path, console: Console, selection: str = "best", attention: str | None = None) -> None:
    from resharpen.own import short
    from resharpen.views.figures import draw

    suffix = "".join(f"-{short(part)}" for part in (selection, attention) if part not in ("best", None))
    for name, figure in draw(run, selection, attention).items():
        _save(figure, out, f"{name}{suffix}", console)


def _compare(run: Run, out: Path, console: Console, *what: Any) -> None:
    """`what` is what `compare` takes after the run."""
    from resharpen.analysis.compare import compare
    from resharpen.views.compare_figure import draw_comparison
    from resharpen.views.compare_table import print_comparison

    found = compare(run, *what)
    print_comparison(found, console)
    _save(draw_comparison(found), out, "comparison", console)


def _study(runs: list[Run], out: Path, name: str, console: Console) -> None:
    from resharpen.analysis.compare import compare
    from resharpen.views.remedies import draw_remedies

    _save(draw_remedies([compare(run) for run in runs]), out, name, console)


def _save(figure: Figure, out: Path, name: str, console: Console) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for suffix in ("png", "svg"):
            figure.savefig(out / f"{name}.{suffix}")
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from error
    console.print(f"Figure: {out / f'{name}.png'} (and .svg)", soft_wrap=True)


def _progress(console: Console):
    from resharpen.views.progress import LiveProgress, PlainProgress

    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


if __name__ == "__main__":
    main()
