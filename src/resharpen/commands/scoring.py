"""`resharpen score`: score any function from tokens to logits on the report set of a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from resharpen.commands.options import Directory, File, Name, Number, TrustCode
from resharpen.commands.results import check_file, look
from resharpen.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from resharpen.tasks import Task


@dataclass(frozen=True)
class Score:
    """Score a model or a function of your own on the report set of a task: every metric by length, with standard
    errors, and its rank among the models of a run or a reference.

    For example:
        resharpen score my_model.py:f --task dyck,k=8,m=10 --with fig3-overnight
        resharpen score my_model.py:f --task examples/my_task.toml
        resharpen score runs/demo:sct-v9-s3/peri/0
    """

    target: Annotated[Positional[str], arg(metavar="FILE.py:NAME")]
    """A function from tokens [N, L] to logits [N, L, V], or a torch module; or RUN:MODEL, a stored model."""
    task: Name = None
    """KIND,KEY=VALUE,... with the keys of [task] in a TOML file, or such a file. Default: that of a stored model, or of
    the run given by --with."""
    with_run: Annotated[Directory, arg(name="with")] = None
    """A run or a reference in which to rank it; its report set is used."""
    probabilities: bool | None = None
    """Whether the output is probabilities, or logits. Default: detected and printed."""
    sequences: Number = None
    """Sequences in the report set. Default: as in runs."""
    seed: Number = None
    """Seed of the report set. Default: that of the run given by --with, or 0."""
    csv: File = None
    """Write every value to this file, one row per metric and length."""
    trust_code: TrustCode = False

    def __call__(self, console: Console) -> None:
        from resharpen.experiments.keeping.outputs import write_output
        from resharpen.experiments.running.scoring import score

        if self.csv is not None:
            check_file(self.csv, ".csv")
        other = None if self.with_run is None else look(self.with_run, self.trust_code)
        f, seed, name = self._target()
        task = None if self.task is None else read_task(self.task)
        if task is None and other is not None:
            tasks = list({setting.task.name: setting.task for setting in other.experiment.settings}.values())
            if len(tasks) > 1:
                names = ", ".join(task.name for task in tasks)
                raise UserError(f"{self.with_run} has several tasks ({names}): choose one with --task KIND,KEY=VALUE")
            task = tasks[0]
        seed = self.seed if self.seed is not None else None if other is not None else seed
        found = score(
            f,
            task,
            probabilities=self.probabilities,
            beside=other,
            seed=seed,
            sequences=self.sequences,
            name=name,
        )
        console.print(str(found), soft_wrap=True, highlight=False)
        if self.csv is not None:
            write_output(self.csv, found.table.write_csv().encode())
            console.print(f"wrote {self.csv}", soft_wrap=True)

    def _target(self) -> tuple[Any, int | None, str]:
        """What to score, the seed of its report set if it has one, and its name in the output."""
        from resharpen import own

        if own.is_own(self.target):
            found = own.find(own.refer(self.target))
            if isinstance(found, type):
                raise UserError(
                    f"'{self.target}' is a class: score takes a function of tokens or an object that is one"
                )
            return found, None, own.short(self.target)
        run, colon, model = self.target.rpartition(":")
        if not colon:
            raise UserError(
                f"'{self.target}': score takes FILE.py:NAME, or RUN:MODEL such as runs/demo:sct-v9-s3/peri/0"
            )
        from resharpen.commands.results import load
        from resharpen.experiments.keeping.stored import load_model

        loaded = load(Path(run), self.trust_code)
        return load_model(loaded, model), loaded.experiment.seed, model


def read_task(text: str) -> Task:
    """From `dyck,k=8,m=10`, or the first task of a TOML file."""
    from resharpen.experiments.specs.toml import parse_task, read_toml, task_of

    return read_toml(text).settings[0].task if text.endswith(".toml") else task_of(parse_task(text))
