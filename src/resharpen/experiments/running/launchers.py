"""Where shards are trained: in this process, or in one spawned process a core.

A worker gets names only, the run directory and a shard's name, and reads the rest from the directory: the same will do
for a worker on another machine. It ends with its driver, however that ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from resharpen import own
from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping.shard import Damaged
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.training import Asked, Progress, Trainer
from resharpen.experiments.specs.spec import Shard

IMPORTED = 79
"""Exit code of a worker whose script would have started the run again when it was imported."""
HANDLED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""Signals that are the driver's to handle; a terminal and a batch system send them to the workers, too."""

Ask = Callable[[], Asked]
Report = Callable[[Progress], None]


class WorkerDied(Failed):
    """A worker process was killed, by the system for want of memory perhaps."""


def leave_if_imported() -> None:
    """A spawned worker imports the script that began the run: without a guard that would begin it once more."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(IMPORTED)


def launch(run: Run, shards: Sequence[Shard], workers: int, on_progress: Report, asked: Ask) -> None:
    """Train those of the given shards that nobody else does. Returns early, with all states saved, once asked to."""
    if workers == 1 or len(shards) <= 1:
        for shard in shards:
            if not train(run, shard, on_progress, asked):
                return
    else:
        _in_processes(run, shards, min(workers, len(shards)), on_progress, asked)


def train(run: Run, shard: Shard, on_progress: Report, asked: Ask) -> bool:
    """Train one shard, unless it is done or another process has it; False if stopped before its end."""
    files = run.files(shard)
    with files.lease() as held:
        if held and not _is_done(run, shard):
            return _train(run, shard, on_progress, asked)
        if held:
            files.tidy()
    on_progress(_not_ours(run, shard))
    return True


def _not_ours(run: Run, shard: Shard) -> Progress:
    """Nothing is left to do here for a shard that is done, or that another process has."""
    steps, lower = run.experiment.steps, shard.setting.task.lower_is_better
    name, setting = shard.name, shard.setting.name
    return Progress(name, setting, shard.variant, shard.count, steps, steps, float("nan"), lower, 0, checkpoint=False)


def _is_done(run: Run, shard: Shard) -> bool:
    try:
        return run.files(shard).is_done(thorough=True)
    except Damaged:
        run.files(shard).discard()
        return False


def _train(run: Run, shard: Shard, on_progress: Report, asked: Ask) -> bool:
    """What goes wrong in the user's own code is told as theirs."""
    try:
        return Trainer(run.experiment, shard, run.files(shard), on_progress, asked, rounding=run.rounding(shard)).run()
    except Exception as error:
        if isinstance(error, UserError) or not own.raised_by_own(error):
            raise
        raise own.OwnCodeError(f"variant '{shard.variant}' failed in your own code", error) from error


def _in_processes(run: Run, shards: Sequence[Shard], workers: int, on_progress: Report, asked: Ask) -> None:
    # spawn, never fork: a forked child inherits locks and threads in whatever state they are in
    context = multiprocessing.get_context("spawn")
    with _signals_wait():  # the process that keeps the books of the queues begins here, and would die of USR1
        jobs, events = context.Queue(), context.Queue()
    stop, saves = context.Event(), context.Value("q", asked().saves)
    for shard in shards:
        jobs.put(shard.name)
    for _ in range(workers):
        jobs.put(None)
    arguments = (str(run.directory), run.trust_code, jobs, events, stop, saves)
    processes = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(workers)]
    try:
        with _signals_wait():
            for process in processes:
                process.start()
        _listen(processes, events, stop, saves, on_progress, asked)
    finally:
        stop.set()
        for process in processes:
            if process.pid is not None:
                process.join(timeout=30)
                process.kill()  # a worker that died may have taken a lock of the queue with it
        jobs.cancel_join_thread()


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals that arrive meanwhile come afterwards. A process started here does not get them until it says so."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(processes: Sequence[Any], events: Any, stop: Any, saves: Any, on_progress: Report, asked: Ask) -> None:
    """Pass progress on until every worker has said goodbye."""
    working = len(processes)
    while working:
        now = asked()
        saves.value = now.saves
        if now.stop:
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


def _work(directory: str, trust_code: bool, jobs: Any, events: Any, stop: Any, saves: Any) -> None:
    """A worker: take shards until there are none, or until told to stop."""
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def asked() -> Asked:
        return Asked(stop.is_set(), saves.value)

    try:
        run = Run(Path(directory), trust_code)
        by_name = {shard.name: shard for shard in run.shards()}
        while not stop.is_set() and (name := jobs.get()) is not None:
            train(run, by_name[name], events.put, asked)
        events.put(None)
    except UserError as error:
        events.put(UserError(str(error)))
    except Failed as error:
        events.put(Failed(str(error)))
    except MemoryError:
        events.put(Failed("a worker needs more memory than there is"))
    except Exception as error:
        events.put(RuntimeError(f"{type(error).__name__} in a worker: {error}"))


def _end_with_the_driver() -> None:
    """The driver holds the other end of a pipe since before this process began: it closes whenever the driver dies.

    Ending at once loses what was trained since the last saved state, and blocks nobody: not the driver that goes on
    with this run, and not this process, on a queue that nobody empties any more.
    """
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    os._exit(1)
