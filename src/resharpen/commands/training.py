"""Commands that train."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from resharpen.commands import options
from resharpen.commands.results import save_figures, show_result, study
from resharpen.errors import Failed, UserError, unknown
from resharpen.paths import absolute
from resharpen.signals import orderly

if TYPE_CHECKING:
    from rich.console import Console

    from resharpen.experiments.keeping.store import Run
    from resharpen.experiments.specs.spec import Experiment


@dataclass(frozen=True)
class Training:
    """Options of `run` and `submit`: what to train."""

    target: Annotated[Positional[str], arg(metavar="TARGET", help_behavior_hint="")]
    """A figure of `resharpen list`, a task of `resharpen tasks`, a TOML file, or a run directory."""
    scale: options.Scale = None
    """Models and steps for a minute, minutes, a night, or the full protocol; see `list`. Default: laptop."""
    out: options.Directory = None
    """The run directory. Default: runs/NAME."""
    models: options.Number = None
    """Models per setting and variant. More than before extends a run."""
    steps: options.Number = None
    """Training steps per model."""
    variants: options.Text = None
    """Variants to compare: sums of parts, separated by commas. Your own code is FILE.py:NAME, relative to the working
    directory (in a TOML file: relative to that file)."""
    seed: options.Number = None
    """Seed of all random streams."""
    engine: options.EngineName = None
    """auto: native where supported, otherwise torch."""
    device: options.DeviceName = None
    """Device of the torch engine. Default: cpu."""
    march: options.Name = None
    """Instruction set of the native engine: native, or for example x86-64-v3 for a run that moves between machines."""
    trust_code: options.TrustCode = False

    def _experiment(self) -> tuple[Experiment, Path]:
        from resharpen.experiments.running.runner import load
        from resharpen.experiments.specs.shelf import take
        from resharpen.experiments.specs.spec import roles
        from resharpen.experiments.specs.toml import read_toml

        path = Path(self.target)
        is_run = absolute(path).is_dir()
        if path.suffix == ".toml" or is_run:
            if self.scale is not None:
                raise UserError("--scale needs the name of a figure or a task, not a file or a run")
            experiment = load(path, self.trust_code).experiment if is_run else read_toml(path)
            # engines are selected again for a new directory
            if is_run and self.out and absolute(self.out).resolve() != absolute(path).resolve():
                experiment = experiment.with_engines(dict.fromkeys(experiment.variants))
        else:
            experiment = take(self.target, self.scale or "laptop")
        variants = None if self.variants is None else [name.strip() for name in self.variants.split(",")]
        given = {name: getattr(self, name) for name, role in roles(experiment).items() if role.option}
        changed = experiment.with_changes(variants, **given)
        return changed, self.out or (path if is_run else Path("runs") / experiment.name)


@dataclass(frozen=True)
class RunFigure(Training):
    """Train models of a figure, a task or a TOML file, or continue a run; then draw.

    For example:
        resharpen run fig1 --scale smoke
        resharpen run fig1 --models 192 --variants pre,peri,pre+log-n --out runs/more
        resharpen run fig1 --variants pre,pre+examples/my_attention.py:my_ssmax --out runs/mine
        resharpen run flip-flop --scale smoke   (a task: compares pre and peri)
        resharpen run dyck,k=2,m=3 --variants pre,pre+alibi
        resharpen run examples/my_norm.toml
        resharpen run runs/fig1-laptop          (continues)
        resharpen run remedies --scale smoke    (a study of three figures)
        resharpen run fig1 --launcher ray --address auto
    """

    workers: options.Number = None
    """Processes. Default: one per core."""
    launcher: options.LauncherName = "local"
    """Where shards are trained: in processes of this machine, or as Ray tasks (pip install 'resharpen[ray]')."""
    address: options.Address = None
    """The Ray cluster to use, HOST:PORT or auto. Default: start one on this machine for this run."""
    job: options.Job = None
    """Train only job I of N jobs that share the run: for job arrays, and machines that share a directory."""
    discard: bool = False
    """Discard finished shards that were trained with a different spec, and train them again."""
    dry_run: bool = False
    """Show what would be trained, with estimates of time and disk space, but train nothing."""

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.specs.shelf import STUDIES

        if self.target not in STUDIES:
            self._run(console)
            return
        if self.variants is not None:
            raise UserError(f"--variants needs one of {', '.join(STUDIES[self.target])} as target, not a study")
        out = self.out or Path("runs")
        figures = [replace(self, target=name) for name in STUDIES[self.target]]
        runs = [figure._run(console, out / figure._experiment()[0].name) for figure in figures]
        if finished := [run for run in runs if run]:
            study(self.target, finished, out, self.scale or "laptop", console)

    def _run(self, console: Console, directory: Path | None = None) -> Run | None:
        """The finished run; None for a dry run, or if other jobs or processes are still training."""
        from resharpen.experiments.keeping.store import quoted
        from resharpen.experiments.running.estimate import describe
        from resharpen.experiments.running.launchers import launch
        from resharpen.experiments.running.ray_launcher import Ray
        from resharpen.experiments.running.runner import run, watched, with_engine
        from resharpen.views.progress import view_of

        experiment, out = self._experiment()
        out, job = directory or out, _job(self.job)
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers = {self.workers}: must be at least 1")
        if self.address is not None and self.launcher != "ray":
            raise UserError(f"address = {self.address}: only the launcher 'ray' has an address")
        if self.dry_run:
            console.print(
                describe(with_engine(experiment), self.workers), soft_wrap=True, highlight=False, markup=False
            )
            return None
        try:
            with view_of(console) as progress, orderly() as asked:
                store = run(
                    experiment,
                    out,
                    workers=self.workers,
                    launcher=Ray(self.address) if self.launcher == "ray" else launch,
                    observer=watched(progress, asked),
                    job=job,
                    trust_code=self.trust_code,
                    discard=self.discard,
                )
        except Failed as error:
            raise Failed(f"{error}; finished work is kept. Continue with: resharpen run {quoted(out)}") from error
        if asked.is_stopping():
            console.print(f"Stopped; nothing is lost. Continue with: {store.command}", soft_wrap=True)
            sys.exit(128 + asked.number)
        if self.job is not None:
            console.print(f"Job {self.job} is finished. After all jobs: resharpen figure {quoted(out)}", soft_wrap=True)
            return None
        if left := len(store.shards()) - len(store.done()):
            then = f"resharpen figure {quoted(out)}"
            console.print(f"{left} shards are still trained by other processes. Afterwards: {then}", soft_wrap=True)
            return None
        save_figures(store, out, console)
        details = show_result(store, out, console)
        tests = dict.fromkeys(name for setting in store.experiment.settings for name in setting.task.tests)
        look = "".join(f"resharpen compare {quoted(out)} --test {name}, " for name in tests)
        console.print(f"Next: {details}, {look}resharpen report {quoted(out)} --open", soft_wrap=True)
        return store


@dataclass(frozen=True)
class Reproduce:
    """Make all figures, test all claims, check the theory; then write one report.

    If it is stopped or killed, the same command continues.

    For example:
        resharpen reproduce --scale smoke
        resharpen reproduce --only fig1,fig2,theory --out runs/mine
    """

    scale: options.Scale = None
    """Models and steps; see `list`. Default: laptop."""
    only: options.Text = None
    """Make only these: names of figures, remedies, theory."""
    out: options.Directory = None
    """The directory of the runs and the report. Default: runs/reproduce-SCALE."""
    workers: options.Number = None
    """Processes. Default: one per core."""

    def __call__(self, console: Console) -> None:
        from resharpen.analysis.theory.checks import check_all
        from resharpen.experiments.keeping.store import quoted
        from resharpen.experiments.specs.shelf import STUDIES
        from resharpen.views.report.write import write_report

        scale = self.scale or "laptop"
        out, names = self.out or Path("runs") / f"reproduce-{scale}", self._names()
        command = shlex.join(["resharpen", "reproduce", *_options(self, Reproduce)])
        runs: dict[str, Run] = {}
        try:
            for name in names:
                if name != "theory":
                    figure = RunFigure(name, scale=scale, workers=self.workers)
                    found = figure._run(console, out / figure._experiment()[0].name)
                    runs |= {name: found} if found else {}
        except SystemExit:
            console.print(f"Continue all figures with: {command}", soft_wrap=True)
            raise
        if missing := [name for name in names if name not in (*runs, "theory")]:
            console.print(f"Others are training: {', '.join(missing)}. Afterwards run: {command}", soft_wrap=True)
            return
        for name, parts in STUDIES.items():
            if set(parts) <= set(runs):
                study(name, [runs[part] for part in parts], out, scale, console)
        checks = check_all(v_max=7) if "theory" in names else []
        write_report(list(runs.values()), out / "report.html", checks)
        console.print(f"Finished. Report: {quoted(out / 'report.html')}", soft_wrap=True)
        if not all(check.holds for check in checks):
            raise Failed("a statement of the theory does not hold: see the report")

    def _names(self) -> list[str]:
        """The figures to run, in the order of `SHELF`, and `theory`; figures of the same models are one run."""
        from resharpen.experiments.specs.shelf import SHELF, STUDIES

        of_run: dict[str, str] = {}
        for name, entry in SHELF.items():
            of_run.setdefault(entry.run or name, name)
        every = [*of_run.values(), "theory"]
        if self.only is None:
            return every
        studies = {name: of for name, of in STUDIES.items() if set(of) <= set(SHELF)}
        parts = {name: (of_run[entry.run or name],) for name, entry in SHELF.items()} | studies
        parts["theory"] = ("theory",)
        asked: set[str] = set()
        for name in (name.strip() for name in self.only.split(",")):
            if name not in parts:
                raise unknown("figure", name, parts)
            asked.update(parts[name])
        if asked == {"theory"}:
            raise UserError("a report needs a run: for the theory alone use `resharpen theory`")
        return [name for name in every if name in asked]


@dataclass(frozen=True)
class Submit(Training):
    """Submit a run to a batch system: a job array in which every job trains a share. Options are those of `run`.

    For example:
        resharpen submit fig1 --scale paper --out /scratch/me/fig1 --slurm --jobs 64 --hours 12 --dry-run
    """

    slurm: bool = False
    """Submit to SLURM, with sbatch."""
    jobs: int = 64
    """Jobs in the array, one core each; at most one per shard."""
    hours: float = 24.0
    """Time limit of a job; it is requeued until its share is finished."""
    dry_run: bool = False
    """Print the script; submit nothing."""

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.keeping.store import quoted
        from resharpen.experiments.running.slurm import script, submit
        from resharpen.experiments.specs.shelf import STUDIES

        if not self.slurm:
            raise UserError("choose a scheduler: --slurm")
        if self.target in STUDIES:
            raise UserError(f"'{self.target}' is a study: submit one of {', '.join(STUDIES[self.target])}")
        experiment, out = self._experiment()
        kinds = len(experiment.settings) * len(experiment.variants)
        jobs = min(self.jobs, kinds * sum(experiment.shard_sizes().values()))
        text = script(["run", self.target, *_options(self, Training)], experiment.name, jobs, self.hours)
        if self.dry_run:
            sys.stdout.write(text)
            return
        job = submit(text)
        status = f"resharpen status {quoted(out)}"
        console.print(f"Submitted as job {job}, an array of {jobs}. Progress: {status}", soft_wrap=True)


def _options(command: object, declared: type) -> list[str]:
    """The given options of a command, among those that a class declares, as command line arguments."""
    words = []
    for name in (field.name for field in fields(declared) if field.name != "target"):
        value, option = getattr(command, name), f"--{name.replace('_', '-')}"
        if value is not None and value is not False:
            # --option=value if the value looks like an option
            dashed = str(value).startswith("-")
            words += [option] if value is True else [f"{option}={value}"] if dashed else [option, str(value)]
    return words


def _job(text: str | None) -> tuple[int, int]:
    """(i, n) of `I/N`; (1, 1) for None."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", "1/1" if text is None else text, re.ASCII)
    if found is None:
        raise UserError(f"job '{text}': must be I/N, from 1/N to N/N")
    return int(found[1]), int(found[2])
