"""Run an experiment: open its directory, find the shards to train, pass them to a launcher."""

import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resharpen.engines.choose import check_device, check_march, how_much_slower, why_not_native
from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping.machine import cores, memory
from resharpen.experiments.keeping.outputs import check_output
from resharpen.experiments.keeping.shard import Foreign
from resharpen.experiments.keeping.store import HEADER, Run, locked, open_run
from resharpen.experiments.running.launchers import Ask, Launcher, OnProgress, launch, leave_if_imported
from resharpen.experiments.running.training import Asked
from resharpen.experiments.running.trial import try_own_code
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.signals import Orderly
from resharpen.state import WEIGHTS

TRIES = 3
"""How often workers may end with neither an error nor a finished shard."""


@dataclass(frozen=True)
class Plan:
    """What a call of `run` will do."""

    run: Run
    shards: list[Shard]
    """All shards of the run, or those of this job."""
    todo: list[Shard]
    damaged: list[str]
    """Errors of finished shards that were deleted and are trained again."""


@dataclass(frozen=True)
class Observer:
    """Callbacks of a run: they get the plan and the progress, and are polled twice per second for requests."""

    plan: Callable[[Plan], None] = lambda plan: None
    update: OnProgress = lambda progress: None
    asked: Ask = Asked


def watched(progress: Any, signals: Orderly) -> Observer:
    """An observer that shows progress in a view and stops on signals."""
    return Observer(progress.plan, progress.update, lambda: Asked(signals.is_stopping(), signals.saves))


def run(
    experiment: Experiment,
    directory: str | Path,
    *,
    workers: int | None = None,
    launcher: Launcher = launch,
    observer: Observer = Observer(),  # noqa: B008  it is frozen
    job: tuple[int, int] = (1, 1),
    without: Collection[str] = (),
    trust_code: bool = False,
    discard: bool = False,
) -> Run:
    """Train the models of an experiment that are not finished in a directory, and return the run.

    Other processes may train the same run: each takes shards that are free, and returns when none is left.

    Args:
        workers: number of processes, by default one per core; a single worker trains in this process.
        launcher: what trains shards: processes of this machine, or `ray_launcher.Ray(address)`.
        observer: gets the progress, and can stop the run.
        job: (i, n), the i-th of n jobs that share the run, each with about the same work.
        without: names of shards to leave out.
        trust_code: execute copies of user code in the run directory.
        discard: delete finished shards that do not belong to the run's spec, instead of refusing to run.
    """
    leave_if_imported()
    if workers is not None and workers < 1:
        raise UserError(f"workers = {workers}: must be at least 1")
    i, n = job
    if not 1 <= i <= n:
        raise UserError(f"job '{i}/{n}': must be I/N, from 1/N to N/N")
    check_output(Path(directory))
    store = Run(Path(directory), trust_code)
    if experiment.device != "cpu":
        check_device(experiment.device)
    if launcher is launch:
        check_memory(experiment)
    if not (store.root / HEADER).exists() or experiment.engine != "auto":
        experiment = with_engine(experiment)
    try_own_code(experiment)
    with locked(store):
        open_run(store, experiment)
    plan = plan_of(store, job, without, discard)
    observer.plan(plan)
    todo: Sequence[Shard] = plan.todo
    in_vain = 0
    while todo:
        launcher(store, todo, workers, observer.update, observer.asked)
        if observer.asked().stop:
            break
        left = [shard for shard in todo if not store.files(shard).is_done()]
        in_vain = in_vain + 1 if len(left) == len(todo) else 0
        todo = [shard for shard in left if not store.files(shard).is_leased()]
        if todo and in_vain == TRIES:
            raise Failed(f"{todo[0].name} was started {TRIES} times, and each time its worker ended before the end")
    return store


def load(directory: str | Path, trust_code: bool = False) -> Run:
    """An existing run, finished or not; `trust_code` allows copies of user code in it to be executed."""
    store = Run(Path(directory), trust_code)
    store.experiment  # noqa: B018  raises here for a directory that is not a run
    return store


def with_engine(experiment: Experiment) -> Experiment:
    """The experiment with an engine for every variant: as requested, or native where supported and otherwise torch,
    with a warning that says why and how much slower that is."""
    check_march(experiment.march)
    engines: dict[str, str | None] = {}
    for name, variant in experiment.variants.items():
        if (asked := variant.engine or experiment.engine) == "torch":
            engines[name] = "torch"
            continue
        cells = [shard for shard in experiment.cells() if shard.variant == name]
        reasons = [why_not_native(experiment.problem(shard)) for shard in cells]
        reason = next((reason for reason in reasons if reason), None)
        if reason and asked == "native":
            raise UserError(f"the native engine cannot run variant '{name}': {reason}")
        if reason:
            slower = how_much_slower(experiment.problem(cells[0]))
            why = f"the native engine cannot run it: {reason}"
            warnings.warn(f"variant '{name}' runs on the torch engine{slower}; {why}", stacklevel=2)
        engines[name] = "torch" if reason else "native"
    return experiment.with_engines(engines)


def check_memory(experiment: Experiment) -> None:
    """UserError if the arrays of a shard, without activations, do not fit in the memory of this machine."""
    models, there = max(experiment.shard_sizes()), memory()
    for cell in experiment.cells():
        weights = experiment.parameter_count(cell.setting, cell.variant)
        # training weights, initial weights, their average, gradients, stored checkpoints and optimizer state
        copies = 4 + len(WEIGHTS) * 2 + len(experiment.problem(cell).optimizer.state)
        if (needed := 4.0 * models * weights * copies) > there:
            sizes = f"at least {needed / 2**30:,.0f} GiB, this machine has {there / 2**30:,.0f} GiB"
            which = f"variant '{cell.variant}' of {cell.setting.name}: {models} models of {weights:,} weights"
            raise UserError(f"{which} need {sizes}: make the model smaller")


def plan_of(store: Run, job: tuple[int, int] = (1, 1), without: Collection[str] = (), discard: bool = False) -> Plan:
    """Which shards to train. Finished ones are read completely; damaged results are deleted, those of another spec only
    with `discard`. A job takes every n-th shard in the order of draws and names, so that all jobs get about the same
    number of every setting, also of draws that were added later.
    """
    i, n = job
    shards = store.shards() if n == 1 else sorted(store.shards(), key=lambda s: (s.first, s.name))[i - 1 :: n]
    shards = [shard for shard in shards if shard.name not in without]
    # in chunks, because a future takes more memory than a shard
    stretches = [shards[k : k + 100] for k in range(0, len(shards), 100)]
    with ThreadPoolExecutor(cores()) as readers:
        looked = [done for stretch in readers.map(store.look_over, stretches) for done in stretch]
    found = list(zip(shards, looked, strict=True))
    foreign = [what for _, what in found if isinstance(what, Foreign)]
    if foreign and not discard:
        raise UserError(f"{len(foreign)} finished shards do not belong to {store.directory / HEADER}: {foreign[0]}")
    for shard, what in found:
        if what is True and (files := store.files(shard)).state.exists():
            files.tidy()  # killed between writing the manifest and deleting the state
        elif isinstance(what, UserError):
            with store.files(shard).lease() as held:
                if held:
                    store.files(shard).discard()
    todo = [shard for shard, done in found if done is not True]
    return Plan(store, shards, todo, [str(what) for _, what in found if isinstance(what, UserError)])
