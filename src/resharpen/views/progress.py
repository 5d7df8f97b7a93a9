"""Progress of a run: a live view on a terminal or in a notebook, otherwise one line per minute or tenth of the work."""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from resharpen.experiments.keeping.store import Run, code_lines
from resharpen.lazy import pl
from resharpen.words import duration

if TYPE_CHECKING:
    from resharpen.experiments.running.runner import Plan
    from resharpen.experiments.running.training import Progress


EVERY = 0.25
"""Least number of seconds between two updates of a notebook output."""
LINE_SECONDS, LINES = 60.0, 10
"""In a log a new line is printed after this time, or after this share of the work."""
KNOWN_SECONDS, KNOWN_WITHOUT_END = 10.0, 120.0
"""Minimum time before the time left is estimated: after a shard has been written, and otherwise."""


class Meter:
    """Model-steps done, their rate, and an estimate of the time left.

    Training lengths differ in cost by a factor of ten or more, so the time left is summed over settings, each at the
    pace measured so far. Shards that were finished before count as done, and for the best scores.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.best: dict[str, float] = {}
        self.metric = "score"
        self.diverged: dict[str, int] = {}
        self._seen: dict[str, tuple[int, float]] = {}
        self._left, self._busy, self._done = (defaultdict[str, float](float) for _ in range(3))
        self._at_end = self._one_ended = False

    def start(self, plan: Plan) -> None:
        steps = plan.run.experiment.steps
        self.models = sum(shard.count for shard in plan.shards)
        for shard in plan.todo:
            self._left[shard.setting.name] += shard.count * steps
        self._total = self.models * steps
        self._began = self._clock()
        tasks = [shard.setting.task for shard in plan.shards]
        labels = {task.metrics[task.metric].label for task in tasks}
        self.metric = labels.pop() if len(labels) == 1 else "score"
        if len(plan.todo) < len(plan.shards):
            self.best, self.diverged["finished before"] = _so_far(plan.run, tasks[0].lower_is_better)

    def update(self, progress: Progress) -> None:
        now = self._clock()
        # the first report of a shard has the step at which it starts, which may not be 0
        before, last = self._seen.get(progress.shard, (progress.step, now))
        if progress.shard not in self._seen:
            self._left[progress.setting] -= progress.step * progress.models
            self._one_ended |= self._at_end  # a worker starts a shard after writing the previous one
        self._seen[progress.shard] = progress.step, now
        advanced = (progress.step - before) * progress.models
        self._left[progress.setting] -= advanced
        self._done[progress.setting] += advanced
        self._busy[progress.setting] += now - last
        # the next report comes when this shard has been written, and another one begins
        self._one_ended |= any(
            step == progress.steps for name, (step, _) in self._seen.items() if name != progress.shard
        )
        self.diverged[progress.shard] = progress.diverged
        if not math.isnan(progress.best):
            better = min if progress.lower_is_better else max
            self.best[progress.variant] = better(self.best.get(progress.variant, progress.best), progress.best)

    @property
    def fraction(self) -> float:
        return 1 - sum(self._left.values()) / max(1.0, self._total)

    @property
    def steps_per_second(self) -> float:
        return sum(self._done.values()) / max(1e-9, self._clock() - self._began)

    def seconds_left(self) -> float:
        """Elapsed time, times work left over work done, both in worker seconds; nan while that would mislead: the first
        steps load code, and scoring and writing the results of a shard can take longer than its training."""
        busy, elapsed = sum(self._busy.values()), self._clock() - self._began
        if busy <= 0 or elapsed < (KNOWN_SECONDS if self._one_ended else KNOWN_WITHOUT_END):
            return math.nan
        overall = busy / max(1.0, sum(self._done.values()))
        pace = {name: self._busy[name] / done for name, done in self._done.items() if done > 0}
        left = sum(steps * pace.get(name, overall) for name, steps in self._left.items())
        return elapsed * left / busy

    @property
    def pace(self) -> str:
        left = self.seconds_left()
        return f"{self.steps_per_second:,.0f} model-steps/s" + ("" if math.isnan(left) else f", {duration(left)} left")


def _so_far(run: Run, lower_is_better: bool) -> tuple[dict[str, float], int]:
    """Best score by variant, and the number of diverged models, of the finished shards."""
    finished = Run(run.directory, run.trust_code)  # a fresh object, because `run` caches its finished shards
    models = finished.table("models")
    score = pl.col("score").min() if lower_is_better else pl.col("score").max()
    rows = finished.table("curves").join(models.select("model", "variant"), on="model").group_by("variant").agg(score)
    best = {name: value for name, value in rows.iter_rows() if value is not None}
    return {name: best[name] for name in run.experiment.variants if name in best}, models["diverged_at"].count()


class PlainProgress:
    """For logs: a line per minute or tenth of the work."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._meter, self._clock = console, Meter(clock), clock
        self._said, self._shares = -math.inf, 0

    def plan(self, plan: Plan) -> None:
        self._meter.start(plan)
        _announce(plan, self._console)

    def update(self, progress: Progress) -> None:
        meter = self._meter
        meter.update(progress)
        shares = int(meter.fraction * LINES + 1e-9)
        if progress.checkpoint and (shares > self._shares or self._clock() - self._said >= LINE_SECONDS):
            self._said, self._shares = self._clock(), shares
            best = ", ".join(f"{name} {score:.4f}" for name, score in meter.best.items())
            self._console.print(
                f"{meter.fraction:.1%} of {meter.models:,} models, {meter.pace}; best {meter.metric} so far: {best}",
                soft_wrap=True,
                highlight=False,
            )


class LiveProgress:
    """A bar, the pace, and the best score of each variant so far."""

    def __init__(self, console: Console):
        self._console, self._meter = console, Meter()
        self._bar = Bar(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}", markup=False),
        )
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live.is_started:
            self._live.stop()

    def plan(self, plan: Plan) -> None:
        self._meter.start(plan)
        _announce(plan, self._console)
        if plan.todo:
            self._task = self._bar.add_task("models", total=self._meter.models, pace="starting workers ...")
            self._live.start()
            self._show()

    def update(self, progress: Progress) -> None:
        self._meter.update(progress)
        self._show()

    def _show(self) -> None:
        meter = self._meter
        if meter.best:
            self._bar.update(self._task, completed=meter.fraction * meter.models, pace=meter.pace)
        best = Table("variant", f"best {meter.metric} so far", box=None)
        for variant, score in meter.best.items():
            best.add_row(variant, f"{score:.4f}")
        diverged = sum(meter.diverged.values())
        self._live.update(Group(self._bar, best, f"{diverged} diverged" if diverged else ""))


def view_of(console: Console) -> AbstractContextManager[LiveProgress | PlainProgress]:
    """The progress view of a console: live on a terminal, lines in a log."""
    return LiveProgress(console) if console.is_terminal else nullcontext(PlainProgress(console))


def _announce(plan: Plan, console: Console) -> None:
    for line in plan.damaged:
        console.print(line, style="yellow", soft_wrap=True)
    todo, shards = len(plan.todo), len(plan.shards)
    done = f", {shards - todo} done" if todo < shards else ""
    text = f"{todo} of {shards} shards to train{done}" if todo else f"all {shards} shards are finished"
    engines = " and ".join(sorted({str(variant.engine) for variant in plan.run.experiment.variants.values()}))
    console.print(f"{plan.run.directory}: {text} ({engines} engine)")
    for line in code_lines(plan.run.experiment):
        console.print(f"your code: {line}", soft_wrap=True)


def in_notebook() -> bool:
    """Whether this runs in the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress:
    """As `LiveProgress`, in one notebook output that is updated in place."""

    def __init__(self) -> None:
        self._meter, self._shown = Meter(), 0.0
        self._output: Any = None

    def plan(self, plan: Plan) -> None:
        from IPython.display import HTML, display

        self._meter.start(plan)
        self._title = f"{plan.run.directory}: {len(plan.todo)} of {len(plan.shards)} shards to train"
        if plan.todo:
            self._output = display(HTML(self.html()), display_id=True)

    def update(self, progress: Progress) -> None:
        from IPython.display import HTML

        self._meter.update(progress)
        if time.monotonic() - self._shown >= EVERY or self._meter.fraction == 1:
            self._shown = time.monotonic()
            self._output.update(HTML(self.html()))

    def html(self) -> str:
        meter = self._meter
        best = "".join(f"<tr><td>{escape(name)}</td><td>{score:.4f}</td></tr>" for name, score in meter.best.items())
        table = (
            f"<table><tr><th>variant</th><th>best {escape(meter.metric)} so far</th></tr>{best}</table>" if best else ""
        )
        return (
            f"<div>{escape(self._title)}</div><progress value='{meter.fraction:.4f}' style='width: 24em'></progress> "
            f"{meter.fraction:.1%}, {meter.pace}{table}"
        )
