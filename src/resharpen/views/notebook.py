"""What a notebook shows while models are trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from resharpen.views.progress import Meter, duration

if TYPE_CHECKING:
    from resharpen.experiments.running.runner import Plan
    from resharpen.experiments.running.training import Progress

EVERY = 0.25
"""Seconds between two pictures of the same output, at least."""


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows rich output."""
    import sys

    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress:
    """A bar, the pace, and the best score of each variant so far, in one output that changes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._meter, self._clock, self._shown = Meter(clock), clock, 0.0
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
        if self._clock() - self._shown >= EVERY or self._meter.fraction == 1:
            self._shown = self._clock()
            self._output.update(HTML(self.html()))

    def html(self) -> str:
        meter = self._meter
        pace = f"{meter.steps_per_second:,.0f} model-steps/s, {duration(meter.seconds_left())} left"
        best = "".join(f"<tr><td>{escape(name)}</td><td>{score:.4f}</td></tr>" for name, score in meter.best.items())
        table = f"<table><tr><th>variant</th><th>best score so far</th></tr>{best}</table>" if best else ""
        return (
            f"<div>{escape(self._title)}</div><progress value='{meter.fraction:.4f}' style='width: 24em'></progress> "
            f"{meter.fraction:.1%}, {pace}{table}"
        )
