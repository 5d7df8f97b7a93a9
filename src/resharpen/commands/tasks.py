"""`resharpen tasks`: list the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ListTasks:
    """List the tasks: what to predict, the exact distribution, parameters, published results, default model and
    lengths, and whether the native engine supports it. With a name: one task, and a sequence with its scored places.

    For example:
        resharpen tasks
        resharpen tasks dyck,k=2,m=3
        resharpen run flip-flop --scale smoke
    """

    name: Annotated[Positional[str | None], arg(metavar="[TASK]", help_behavior_hint="")] = None
    """A task of the list, followed by ,KEY=VALUE for parameters that differ from the defaults; or FILE.py:NAME."""

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.running.support import engine_of_task
        from resharpen.experiments.specs.shelf import take
        from resharpen.views.tasks import print_task, print_tasks

        if self.name is None:
            print_tasks(engine_of_task, console)
        else:
            print_task(take(self.name, "paper"), engine_of_task, console)
