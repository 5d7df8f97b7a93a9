"""Where shards are trained: in this process, or in one spawned process a core.

A worker gets names only, the run directory and a shard's name, and reads the rest from the directory: the same will do
for a worker on another machine.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resharpen import own
from resharpen.errors import UserError
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.training import Progress, Trainer
from resharpen.experiments.specs.spec import Shard

IMPORTED = 79
"""Exit code of a worker whose script would have started the run again when it was imported."""


class WorkerDied(RuntimeError):
    """A worker process was killed, by the system for want of memory perhaps."""


def leave_if_imported() -> None:
    """A spawned worker imports the script that began the run: without a guard that would begin it once more."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(IMPORTED)


def launch(
    run: Run,
    shards: Sequence[Shard],
    workers: int,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> None:
    """Train the given shards. Returns early, with all states saved, once `should_stop` says so."""
    if workers == 1 or len(shards) <= 1:
        for shard in shards:
            if not train(run, shard, on_progress, should_stop):
                return
    else:
        _in_processes(run, shards, min(workers, len(shards)), on_progress, should_stop)


def train(run: Run, shard: Shard, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> bool:
    """Train one shard; what goes wrong in the user's own code is told as theirs."""
    try:
        return Trainer(run.experiment, shard, run.files(shard), on_progress, should_stop).run()
    except Exception as error:
        if isinstance(error, UserError) or not own.raised_by_own(error):
            raise
        raise own.OwnCodeError(f"variant '{shard.variant}' failed in your own code", error) from error


def _in_processes(
    run: Run,
    shards: Sequence[Shard],
    workers: int,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> None:
    # spawn, never fork: a forked child inherits locks and threads in whatever state they are in
    context = multiprocessing.get_context("spawn")
    jobs, events, stop = context.Queue(), context.Queue(), context.Event()
    for shard in shards:
        jobs.put(shard.name)
    for _ in range(workers):
        jobs.put(None)
    processes = [
        context.Process(target=_work, args=(str(run.directory), run.trust_code, jobs, events, stop), daemon=True)
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    try:
        _listen(processes, events, stop, on_progress, should_stop)
    finally:
        stop.set()
        for process in processes:
            process.join(timeout=30)
            process.kill()  # a worker that died may have taken a lock of the queue with it; no-op for one that ended
        jobs.cancel_join_thread()


def _listen(
    processes: Sequence[Any],
    events: Any,
    stop: Any,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> None:
    """Pass progress on until every worker has said goodbye."""
    working = len(processes)
    while working:
        if should_stop():
            stop.set()
        dead = [process for process in processes if process.exitcode not in (None, 0)]
        if dead and dead[0].exitcode == IMPORTED:
            raise UserError(
                "workers are processes that import this script: put what it does under `if __name__ == '__main__':`, "
                "or run with workers=1"
            )
        if dead:
            raise WorkerDied(f"a worker ended with exit code {dead[0].exitcode}")
        try:
            event = events.get(timeout=0.2)
        except queue.Empty:
            continue
        if event is None:
            working -= 1
        elif isinstance(event, BaseException):
            raise event
        else:
            on_progress(event)


def _work(directory: str, trust_code: bool, jobs: Any, events: Any, stop: Any) -> None:
    """A worker: take shards until there are none, or until told to stop, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = os.getppid()

    def should_stop() -> bool:
        return stop.is_set() or os.getppid() != parent

    try:
        run = Run(Path(directory), trust_code)
        by_name = {shard.name: shard for shard in run.shards()}
        while not should_stop() and (name := jobs.get()) is not None:
            train(run, by_name[name], events.put, should_stop)
        events.put(None)
    except UserError as error:
        events.put(UserError(str(error)))
    except Exception as error:
        events.put(RuntimeError(f"{type(error).__name__} in a worker: {error}"))
