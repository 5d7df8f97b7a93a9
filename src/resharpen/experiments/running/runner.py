"""Run an experiment: open its directory, find what is left to do, give it to workers, pass their progress on."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from resharpen.engines.choose import check_device, how_much_slower, why_not_native
from resharpen.errors import UserError
from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.keeping.store import Damaged, Run, open_run
from resharpen.experiments.running.launchers import launch, leave_if_imported
from resharpen.experiments.running.training import Progress
from resharpen.experiments.specs.spec import Experiment, Shard


@dataclass(frozen=True)
class Plan:
    """What a call to `run` is about to do."""

    run: Run
    todo: list[Shard]
    damaged: list[str]
    """Files of finished shards that are not what was written; their shards are run again."""


def run(
    experiment: Experiment,
    directory: str | Path,
    workers: int | None = None,
    on_plan: Callable[[Plan], None] = lambda plan: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    trust_code: bool = False,
) -> Run:
    """Train all models of an experiment in a directory, or what is left of them, and return the run.

    With one worker everything happens in this process; with more, each has a process of its own. `trust_code` lets
    copies of the user's own code in the run directory be executed.
    """
    leave_if_imported()
    workers = cores() if workers is None else workers
    if workers < 1:
        raise UserError(f"workers = {workers}: must be at least 1")
    directory = Path(directory)
    if experiment.device != "cpu":
        check_device(experiment.device)
    if not (directory / "run.json").exists() or experiment.engine != "auto":
        experiment = with_engine(experiment)
    store = open_run(directory, experiment, trust_code)
    with _only_one(directory):
        plan = plan_of(store)
        on_plan(plan)
        launch(store, plan.todo, workers, on_progress, should_stop)
    return store


def load(directory: str | Path, trust_code: bool = False) -> Run:
    """An existing run, finished or not; `trust_code` lets copies of the user's own code in it be executed."""
    store = Run(Path(directory), trust_code)
    store.shards()  # so that a directory that is not a run says so here
    return store


def with_engine(experiment: Experiment) -> Experiment:
    """The experiment with an engine for every variant: as asked, or native where it can run it and else torch, with a
    warning that says why and how much slower that is."""
    variants = {}
    for shard in replace(experiment, models=1, settings=experiment.settings[:1]).shards():
        name, variant = shard.variant, experiment.variants[shard.variant]
        if (asked := variant.engine or experiment.engine) == "torch":
            variants[name] = replace(variant, engine="torch")
            continue
        reasons = [why_not_native(experiment.problem(replace(shard, setting=s))) for s in experiment.settings]
        reason = next((reason for reason in reasons if reason), None)
        if reason and asked == "native":
            raise UserError(f"the native engine cannot run variant '{name}': {reason}")
        if reason:
            slower = how_much_slower(experiment.problem(shard))
            why = f"the native one cannot run it: {reason}"
            warnings.warn(f"variant '{name}' runs on the torch engine{slower}; {why}", stacklevel=2)
        variants[name] = replace(variant, engine="torch" if reason else "native")
    return replace(experiment, variants=variants)


def plan_of(store: Run) -> Plan:
    """What is left to do. Damaged results are thrown away here, one shard at a time."""
    todo, damaged = [], []
    for shard in store.shards():
        try:
            done = store.files(shard).is_done()
        except Damaged as error:
            damaged.append(str(error))
            store.files(shard).discard()
            done = False
        if not done:
            todo.append(shard)
    return Plan(store, todo, damaged)


@contextlib.contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Hold the run directory: two runs at once would do the same work twice. The lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield
        return
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is running in {directory}") from None
        lock.write(str(os.getpid()))
        lock.flush()
        yield
