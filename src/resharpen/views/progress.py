"""Progress of a run: a live view on a terminal, one plain line per checkpoint otherwise."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from resharpen.experiments.keeping.store import code_lines

if TYPE_CHECKING:
    from resharpen.experiments.running.runner import Plan
    from resharpen.experiments.running.training import Progress


class Meter:
    """Counts model-steps, knows the rate, guesses the time left.

    Training lengths differ in cost by a factor of ten or more, so the time left is summed over settings, each at the
    pace seen for it so far.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.best: dict[str, float] = {}
        self.diverged: dict[str, int] = {}
        self.models_done = 0

    def start(self, plan: Plan) -> None:
        steps = plan.run.experiment.steps
        self.models = sum(shard.count for shard in plan.todo)
        self._left = defaultdict(float)
        for shard in plan.todo:
            self._left[shard.setting.name] += shard.count * steps
        self._total = sum(self._left.values())
        self._at = {}
        self._busy: dict[str, float] = defaultdict(float)
        self._done: dict[str, float] = defaultdict(float)
        self._began = self._clock()
        self._last_seen: dict[str, float] = {}

    def update(self, progress: Progress) -> None:
        now = self._clock()
        before = self._at.get(progress.shard)
        if before is None:  # the first report of a shard says where it starts: not always at 0
            before = progress.step
            self._left[progress.setting] -= before * progress.models
            self._total -= before * progress.models
        advanced = (progress.step - before) * progress.models
        self._at[progress.shard] = progress.step
        self._left[progress.setting] -= advanced
        self._done[progress.setting] += advanced
        self._busy[progress.setting] += now - self._last_seen.get(progress.shard, now)
        self._last_seen[progress.shard] = now
        self.diverged[progress.shard] = progress.diverged
        if not math.isnan(progress.best):
            better = min if progress.lower_is_better else max
            self.best[progress.variant] = better(self.best.get(progress.variant, progress.best), progress.best)
        if progress.step == progress.steps:
            self.models_done += progress.models

    @property
    def fraction(self) -> float:
        return 1 - sum(self._left.values()) / max(1.0, self._total)

    @property
    def steps_per_second(self) -> float:
        return sum(self._done.values()) / max(1e-9, self._clock() - self._began)

    def seconds_left(self) -> float:
        """Elapsed time times work left over work done, both in seconds of a worker."""
        busy = sum(self._busy.values())
        if busy <= 0:
            return math.nan
        overall = busy / max(1.0, sum(self._done.values()))
        pace = {name: self._busy[name] / done for name, done in self._done.items() if done > 0}
        left = sum(steps * pace.get(name, overall) for name, steps in self._left.items())
        return (self._clock() - self._began) * left / busy


def duration(seconds: float) -> str:
    """>>> [duration(s) for s in (5, 90, 7200, 500_000)]
    ['5 s', '1.5 min', '2.0 h', '5.8 days']
    """
    if math.isnan(seconds):
        return "?"
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= (2 * size if unit == "days" else size):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


class PlainProgress:
    """One line per checkpoint, and not more than one per second: for logs."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._meter, self._clock, self._said = console, Meter(clock), clock, -math.inf

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan(self, plan: Plan) -> None:
        self._meter.start(plan)
        _announce(plan, self._console)

    def update(self, progress: Progress) -> None:
        meter = self._meter
        meter.update(progress)
        if progress.checkpoint and self._clock() - self._said >= 1:
            self._said = self._clock()
            self._console.print(
                f"{progress.shard}  step {progress.step:,}/{progress.steps:,}  best {progress.best:.4f}  "
                f"{meter.steps_per_second:,.0f} model-steps/s  {meter.fraction:.1%} done, "
                f"{duration(meter.seconds_left())} left",
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
            pace = f"{meter.steps_per_second:,.0f} model-steps/s, {duration(meter.seconds_left())} left"
            self._bar.update(self._task, completed=meter.fraction * meter.models, pace=pace)
        best = Table("variant", "best score so far", box=None)
        for variant, score in meter.best.items():
            best.add_row(variant, f"{score:.4f}")
        diverged = sum(meter.diverged.values())
        self._live.update(Group(self._bar, best, f"{diverged} diverged" if diverged else ""))


def _announce(plan: Plan, console: Console) -> None:
    for line in plan.damaged:
        console.print(line, style="yellow", soft_wrap=True)
    shards = plan.shards
    already = len(shards) - len(plan.todo)
    text = (
        f"{len(plan.todo)} of {len(shards)} shards to train" if plan.todo else f"all {len(shards)} shards are finished"
    )
    engines = " and ".join(sorted({str(variant.engine) for variant in plan.run.experiment.variants.values()}))
    console.print(
        f"{plan.run.directory}: {text}{f', {already} done' if already and plan.todo else ''} ({engines} engine)"
    )
    for line in code_lines(plan.run.experiment):
        console.print(f"your code: {line}", soft_wrap=True)
