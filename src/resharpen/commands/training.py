"""Commands that train."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from resharpen.commands.options import (
    Address,
    DeviceName,
    Directory,
    EngineName,
    Job,
    LauncherName,
    Name,
    Number,
    Scale,
    Text,
)
from resharpen.commands.results import save_figures, show_comparison, study
from resharpen.errors import Failed, UserError, unknown
from resharpen.paths import absolute
from resharpen.signals import orderly

if TYPE_CHECKING:
    from rich.console import Console

    from resharpen.experiments.keeping.store import Run
    from resharpen.experiments.running.launchers import Launcher
    from resharpen.experiments.specs.spec import Experiment


THEORY_UP_TO = 7
"""Tokens up to which `reproduce` checks the theory: seconds."""


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
    """What to compare: sums of parts, separated by commas. Your own code is FILE.py:NAME, relative to the working
    directory (in a TOML file: relative to that file)."""
    seed: Number = None
    """Seed of all random streams."""
    engine: EngineName = None
    """auto: native where supported, otherwise torch."""
    device: DeviceName = None
    """Where the torch engine computes. Default: cpu."""
    march: Name = None
    """Instruction set of the native engine: native, this machine's own, or x86-64-v3 say, for a run that moves."""
    trust_code: bool = False
    """Execute code from the run directory where the file that it was copied from is gone or has changed."""

    def _experiment(self) -> tuple[Experiment, Path]:
        from resharpen.experiments.running.runner import load
        from resharpen.experiments.specs.shelf import take
        from resharpen.experiments.specs.spec import roles
        from resharpen.experiments.specs.toml import read_toml

        path = Path(self.target)
        is_run = absolute(path).is_dir()
        if path.suffix == ".toml" or is_run:
            if self.scale is not None:
                raise UserError("--scale goes with a figure's name, not with a file or a run")
            experiment = load(path, self.trust_code).experiment if is_run else read_toml(path)
            # a new run chooses its engines anew
            if is_run and self.out and absolute(self.out).resolve() != absolute(path).resolve():
                experiment = experiment.with_engines(dict.fromkeys(experiment.variants))
        else:
            experiment = take(self.target, self.scale or "laptop")
        variants = None if self.variants is None else [name.strip() for name in self.variants.split(",")]
        options = {name: getattr(self, name) for name, role in roles(experiment).items() if role.option}
        changed = experiment.with_changes(variants, **options)
        return changed, self.out or (path if is_run else Path("runs") / experiment.name)


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
    """Processes. Default: one per core."""
    launcher: LauncherName = "local"
    """Where shards are trained: in processes of this machine, or as Ray tasks (pip install 'resharpen[ray]')."""
    address: Address = None
    """The Ray cluster to use, HOST:PORT or auto. Default: one of this machine alone, for this run."""
    job: Job = None
    """Only the I-th of N jobs that share the run: for job arrays and machines that share a directory."""
    discard: bool = False
    """Throw away finished shards that were trained with another spec than the run's, and train them again."""
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
            study(finished, out, f"{self.target}-{self.scale or 'laptop'}", console)

    def _launcher(self) -> Launcher:
        from resharpen.experiments.running.launchers import launch
        from resharpen.experiments.running.ray_launcher import Ray

        if self.launcher == "ray":
            return Ray(self.address)
        if self.address is not None:
            raise UserError(f"address = {self.address}: only the launcher 'ray' has one")
        return launch

    def _run(self, console: Console, directory: Path | None = None) -> Run | None:
        """The finished run; None if this was to say what it would be, or if there is more of it to come."""
        from resharpen.analysis.claims import of_the_paper, why_no_claims
        from resharpen.experiments.keeping.store import quoted
        from resharpen.experiments.running.estimate import describe
        from resharpen.experiments.running.runner import run, watched, with_engine

        experiment, out = self._experiment()
        out, job = directory or out, _job(self.job)
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers = {self.workers}: must be at least 1")
        if self.dry_run:
            console.print(
                describe(with_engine(experiment), self.workers), soft_wrap=True, highlight=False, markup=False
            )
            return None
        try:
            with _progress(console) as progress, orderly() as asked:
                store = run(
                    experiment,
                    out,
                    workers=self.workers,
                    launcher=self._launcher(),
                    observer=watched(progress, asked),
                    job=job,
                    trust_code=self.trust_code,
                    discard=self.discard,
                )
        except Failed as error:
            raise Failed(f"{error}; what is done is kept. Continue with: resharpen run {quoted(out)}") from error
        if asked.is_stopping():
            console.print(f"Stopped; nothing is lost. Continue with: {store.command}", soft_wrap=True)
            sys.exit(128 + asked.number)
        if self.job is not None:
            console.print(f"Job {self.job} is done. When all are: resharpen figure {quoted(out)}", soft_wrap=True)
            return None
        if left := len(store.shards()) - len(store.done()):
            console.print(
                f"{left} shards are with other processes. Then: resharpen figure {quoted(out)}", soft_wrap=True
            )
            return None
        save_figures(store, out, console)
        if not of_the_paper(store) and len(store.experiment.variants) > 1:
            show_comparison(store, out, console)
        claims = "" if why_no_claims(store) else f"resharpen claims {quoted(out)}, "
        look = f"resharpen results {quoted(out)}, resharpen report {quoted(out)} --open"
        console.print(f"Next: {claims}{look}", soft_wrap=True)
        return store


@dataclass(frozen=True)
class Reproduce:
    """Make every figure, test every claim, check the theory, run the study of remedies; then one report of it all.

    Stopped or killed at any time, the same command goes on where it was.

    For example:
        resharpen reproduce --scale smoke
        resharpen reproduce --only fig1,fig2,theory --out runs/mine
    """

    scale: Scale = None
    """How many models and steps; see `list`. Default: laptop."""
    only: Text = None
    """Some of it: names of figures, remedies, theory."""
    out: Directory = None
    """The directory of the runs and the report. Default: runs/reproduce-SCALE."""
    workers: Number = None
    """Processes. Default: one per core."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.theory import check_all
        from resharpen.experiments.keeping.store import quoted
        from resharpen.experiments.specs.shelf import STUDIES
        from resharpen.views.report.write import write_report

        scale = self.scale or "laptop"
        out, names = self.out or Path("runs") / f"reproduce-{scale}", self._names()
        runs: dict[str, Run] = {}
        try:
            for name in names:
                if name != "theory":
                    figure = RunFigure(name, scale=scale, workers=self.workers)
                    found = figure._run(console, out / figure._experiment()[0].name)
                    runs |= {name: found} if found else {}
        except SystemExit:
            console.print(f"All of it goes on with: {self._command()}", soft_wrap=True)
            raise
        if missing := [name for name in names if name not in (*runs, "theory")]:
            console.print(f"With other processes: {', '.join(missing)}. Then: {self._command()}", soft_wrap=True)
            return
        for name, parts in STUDIES.items():
            if set(parts) <= set(runs):
                study([runs[part] for part in parts], out, f"{name}-{scale}", console)
        checks = check_all(THEORY_UP_TO) if "theory" in names else []
        write_report(list(runs.values()), absolute(out / "report.html"), checks)
        console.print(f"All is done. Look at it: {quoted(out / 'report.html')}", soft_wrap=True)
        if not all(check.holds for check in checks):
            raise Failed("a statement of the theory does not hold: the report says which")

    def _names(self) -> list[str]:
        """In the order of the shelf; figures of the same models are one run."""
        from resharpen.experiments.specs.shelf import SHELF, STUDIES

        of_run: dict[str, str] = {}
        for name, entry in SHELF.items():
            of_run.setdefault(entry.run or name, name)
        every = [*of_run.values(), "theory"]
        if self.only is None:
            return every
        asked: set[str] = set()
        for name in (name.strip() for name in self.only.split(",")):
            if name in STUDIES:
                asked |= set(STUDIES[name])
            elif name in SHELF:
                asked.add(of_run[SHELF[name].run or name])
            elif name == "theory":
                asked.add(name)
            else:
                raise unknown("figure", name, (*SHELF, *STUDIES, "theory"))
        if asked == {"theory"}:
            raise UserError("a report is about runs: for the theory alone there is `resharpen theory`")
        return [name for name in every if name in asked]

    def _command(self) -> str:
        options = {"--scale": self.scale, "--only": self.only, "--out": self.out, "--workers": self.workers}
        words = [word for option, value in options.items() if value is not None for word in (option, str(value))]
        return shlex.join(["resharpen", "reproduce", *words])


@dataclass(frozen=True)
class Submit(Training):
    """Give a run to a batch system, as a job array of which every job trains a share; the options are `run`'s.

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
        from resharpen.experiments.specs.shelf import STUDIES

        if not self.slurm:
            raise UserError("choose a scheduler: --slurm")
        if self.target in STUDIES:
            raise UserError(f"submit one of {', '.join(STUDIES[self.target])}: each is a run of its own")
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
            elif value is not None and value is not False:
                arguments += [option, str(value)]
        return arguments


def _job(text: str | None) -> tuple[int, int]:
    """(i, n) of `I/N`; the whole where nothing is said."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", "1/1" if text is None else text, re.ASCII)
    if found is None:
        raise UserError(f"job '{text}': must be I/N, from 1/N to N/N")
    return int(found[1]), int(found[2])


def _progress(console: Console):
    from resharpen.views.progress import LiveProgress, PlainProgress

    return LiveProgress(console) if console.is_terminal else PlainProgress(console)
