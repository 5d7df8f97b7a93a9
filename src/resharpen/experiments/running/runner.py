"""Run an experiment: open its directory, find what is left to do, give it to workers, pass their progress on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from resharpen.engines.choose import check_device, check_march, how_much_slower, why_not_native
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.keeping.shard import Damaged, Foreign
from resharpen.experiments.keeping.store import HEADER, Run, locked, open_run
from resharpen.experiments.running import ray_launcher
from resharpen.experiments.running.launchers import Ask, Report, launch, leave_if_imported
from resharpen.experiments.running.training import Asked, Progress
from resharpen.experiments.specs.spec import Experiment, Shard

LAUNCHERS = ("local", "ray")


@dataclass(frozen=True)
class Plan:
    """What a call to `run` is about to do."""

    run: Run
    shards: list[Shard]
    """All that are asked for: those of the run, or some of them."""
    todo: list[Shard]
    damaged: list[str]
    """What was wrong with finished shards that were thrown away; they are run again."""


def run(
    experiment: Experiment,
    directory: str | Path,
    workers: int | None = None,
    on_plan: Callable[[Plan], None] = lambda plan: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    trust_code: bool = False,
    saves: Callable[[], int] = lambda: 0,
    launcher: str = "local",
    address: str | None = None,
    job: tuple[int, int] = (1, 1),
    without: Collection[str] = (),
    discard: bool = False,
) -> Run:
    """Train all models of an experiment in a directory, or what is left of them, and return the run.

    With one worker everything happens in this process; with more, each has a process of its own. `trust_code` lets
    copies of the user's own code in the run directory be executed. `should_stop` and `saves`, how many times saving was
    asked for, are looked at twice a second. Another process may be at work on the same run: each takes the shards that
    nobody has, and this one returns when there is none left for it.

    The launcher `ray` makes every shard a Ray task: on a cluster of this machine alone, or on the one that has that
    address. `job` (i, n) is the i-th of n jobs that share the run, each about the same work; shards named in `without`
    are left alone. A finished shard of another spec than the run's is thrown away with `discard`, else refused.
    """
    leave_if_imported()
    start = _launcher(launcher, address, workers)
    i, n = job
    if not 1 <= i <= n:
        raise UserError(f"job '{i}/{n}': must be I/N, from 1/N to N/N")
    store = Run(Path(directory), trust_code)
    if experiment.device != "cpu":
        check_device(experiment.device)
    if not (store.root / HEADER).exists() or experiment.engine != "auto":
        experiment = with_engine(experiment)
    with locked(store):
        open_run(store, experiment)
    plan = plan_of(store, job, without, discard)
    on_plan(plan)
    todo: Sequence[Shard] = plan.todo
    while todo:
        start(store, todo, on_progress, lambda: Asked(should_stop(), saves()))
        if should_stop():
            break
        left = [shard for shard in todo if not store.files(shard).is_done()]
        todo = [shard for shard in left if not store.files(shard).is_leased()]
    return store


def load(directory: str | Path, trust_code: bool = False) -> Run:
    """An existing run, finished or not; `trust_code` lets copies of the user's own code in it be executed."""
    store = Run(Path(directory), trust_code)
    store.experiment  # noqa: B018  so that a directory that is not a run says so here
    return store


def with_engine(experiment: Experiment) -> Experiment:
    """The experiment with an engine for every variant: as asked, or native where it can run it and else torch, with a
    warning that says why and how much slower that is."""
    check_march(experiment.march)
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


def _launcher(
    name: str, address: str | None, workers: int | None
) -> Callable[[Run, Sequence[Shard], Report, Ask], None]:
    """What trains shards, with nothing left to say but which."""
    if workers is not None and workers < 1:
        raise UserError(f"workers = {workers}: must be at least 1")
    if name not in LAUNCHERS:
        raise unknown("launcher", name, LAUNCHERS)
    if name == "ray":
        ray_launcher.check_address(address)
        workers = workers if workers or address else cores()
        return lambda run, shards, report, ask: ray_launcher.launch(run, shards, workers, report, ask, address)
    if address is not None:
        raise UserError(f"address = {address}: only the launcher 'ray' has one")
    return lambda run, shards, report, ask: launch(run, shards, workers or cores(), report, ask)


def plan_of(store: Run, job: tuple[int, int] = (1, 1), without: Collection[str] = (), discard: bool = False) -> Plan:
    """What is left to do: everything of a finished shard is read as whoever looks at the run reads it. Damaged results
    are thrown away here; those of another spec only with `discard`, and without it nothing is.

    A job takes every n-th shard in the order of draws and names: all jobs have about as much of every setting, and of
    the draws that a run has grown by.
    """
    i, n = job
    shards = store.shards() if n == 1 else sorted(store.shards(), key=lambda s: (s.first, s.name))[i - 1 :: n]
    shards = [shard for shard in shards if shard.name not in without]
    # not one by one: a future takes more room than a shard
    stretches = [shards[k : k + 100] for k in range(0, len(shards), 100)]
    with ThreadPoolExecutor(cores()) as readers:
        looked = readers.map(lambda stretch: _look_over(store, stretch), stretches)
        found = list(zip(shards, [done for stretch in looked for done in stretch], strict=True))
    foreign = [what for _, what in found if isinstance(what, Foreign)]
    if foreign and not discard:
        raise UserError(f"{len(foreign)} finished shards do not belong to {store.directory / HEADER}: {foreign[0]}")
    for shard, what in found:
        if isinstance(what, UserError):
            with store.files(shard).lease() as held:
                if held:
                    store.files(shard).discard()
    todo = [shard for shard, done in found if done is not True]
    return Plan(store, shards, todo, [str(what) for _, what in found if isinstance(what, UserError)])


def _look_over(store: Run, shards: Sequence[Shard]) -> list[bool | Damaged | Foreign]:
    """Whether each shard is done, or what is wrong with it."""
    found = store.look_over(shards)
    for shard, done in zip(shards, found, strict=True):
        if done is True and (files := store.files(shard)).state.exists():
            files.tidy()  # a kill came between the manifest and the end of the state
    return found
