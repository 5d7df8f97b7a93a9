"""Where shards are trained: in this process, or in one spawned process per core.

A worker gets names only, the run directory and a shard's name, and reads the rest from the directory: the same will do
for a worker on another machine. It ends with its driver, however that ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from resharpen import guard, own
from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.keeping.shard import Damaged, Foreign
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.training import Asked, Progress, Trainer
from resharpen.experiments.specs.spec import Shard
from resharpen.signals import end_process

IMPORTED = 79
"""Exit code of a worker whose script would have started the run again when it was imported."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
HANDLED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""Signals that are the driver's to handle; a terminal and a batch system send them to the workers, too."""

Ask = Callable[[], Asked]
OnProgress = Callable[[Progress], None]
Launcher = Callable[[Run, Sequence[Shard], int | None, OnProgress, Ask], None]
"""Trains shards with so many workers, None taking the launcher's own number; returns early once asked to stop."""
Lines = dict[Any, Any]
"""The driver's end of the line to each worker that has not ended -> its process."""


class WorkerDied(Failed):
    """A worker process was killed, by the system for want of memory perhaps."""


def leave_if_imported() -> None:
    """A spawned worker imports the script that began the run: without a guard that would begin it once more."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        end_process(IMPORTED)
    own.refuse_while_loading()


def launch(run: Run, shards: Sequence[Shard], workers: int | None, on_progress: OnProgress, asked: Ask) -> None:
    """Train those of the given shards that nobody else does. Returns early, with all states saved, once asked to."""
    workers = workers or cores()
    if workers == 1 or len(shards) <= 1:
        for shard in shards:
            if not train(run, shard, on_progress, asked):
                return
    else:
        _in_processes(run, shards, min(workers, len(shards)), on_progress, asked)


def train(run: Run, shard: Shard, on_progress: OnProgress, asked: Ask) -> bool:
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
    (found,) = run.look_over([shard])
    if isinstance(found, Foreign):
        raise found
    if isinstance(found, Damaged):
        run.files(shard).discard()
    return found is True


def _train(run: Run, shard: Shard, on_progress: OnProgress, asked: Ask) -> bool:
    """What goes wrong in the user's own code is reported as theirs, and what it changes around it is noticed."""

    def trained(on_progress: OnProgress) -> bool:
        return Trainer(run.experiment, shard, run.files(shard), on_progress, asked, rounding=run.rounding(shard)).run()

    if not run.experiment.references():
        return trained(on_progress)
    keeps = "this run keeps the code that it began with: correct the file and choose another --out"
    with own.blamed(f"variant '{shard.variant}' failed in your own code while it was trained; {keeps}"):
        before = guard.arithmetic()

        def checked(progress: Progress) -> None:
            if progress.step and (name := guard.changed(before)):
                raise UserError(f"variant '{shard.variant}': your code called {name} while it was trained; {keeps}")
            on_progress(progress)

        return trained(checked)


def _in_processes(run: Run, shards: Sequence[Shard], workers: int, on_progress: OnProgress, asked: Ask) -> None:
    """One process per worker, each with its own line to the driver: one that is killed holds nothing of the others."""
    # spawn, never fork: a forked child inherits locks and threads in whatever state they are in
    context = multiprocessing.get_context("spawn")
    lines: Lines = {}
    code = [str(own.source(reference).path) for reference in run.experiment.references()]
    with _signals_wait():  # the process that keeps Python's books begins here: it lets signals through when it begins,
        resource_tracker.ensure_running()  # and would die of USR1
    try:
        with _signals_wait():
            for _ in range(workers):
                line, other_end = context.Pipe()
                arguments = (str(run.root), run.trust_code, code, other_end)
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                other_end.close()
                lines[line] = process
        _listen(lines, [shard.name for shard in shards], on_progress, asked)
    finally:
        _tell(lines, Asked(stop=True))
        for process in lines.values():
            process.join(timeout=30)
            process.kill()


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


def _listen(lines: Lines, names: Sequence[str], on_progress: OnProgress, asked: Ask) -> None:
    """Pass progress on and hand out shards until every worker has ended."""
    to_do, told, at_work = iter(names), Asked(), dict[Any, str | None]()
    while lines:
        if (now := asked()) != told:
            _tell(lines, told := now)
        ready: list[Any] = wait(lines, timeout=0.2)
        for line in ready:
            try:
                event = line.recv()
            except (EOFError, OSError):  # its end, maybe in the middle of a message
                _say_goodbye(lines.pop(line), None if told.stop else at_work.get(line, "its start"))
                continue
            if isinstance(event, BaseException):
                raise event
            if event is None:
                at_work[line] = None if told.stop else next(to_do, None)
                _tell([line], at_work[line])
            else:
                on_progress(event)


def _tell(lines: Iterable[Any], message: Asked | str | None) -> None:
    for line in lines:
        with contextlib.suppress(OSError):  # of a worker that has ended we hear by its own line
            line.send(message)


def _say_goodbye(process: Any, at: str | None) -> None:
    """A worker has ended: as it was told to, `at` being None, or in the middle of something."""
    process.join()
    if process.exitcode == IMPORTED:
        raise UserError(
            "workers are processes that import this script: put what it does under `if __name__ == '__main__':`, "
            "or run with workers=1"
        )
    if process.exitcode or at is not None:
        where = f" at {at}" if at else ""
        raise WorkerDied(f"a worker ended with exit code {process.exitcode}{where}")


def _work(directory: str, trust_code: bool, code: Sequence[str], line: Any) -> None:
    """A worker: ask for shards until there are none, or until told to stop. `code` is what the driver has let in."""
    _be_killed_with_the_driver()
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    told = Asked()

    def asked() -> Asked:
        nonlocal told
        while line.poll():
            told = line.recv()
        return told

    def next_shard() -> str | None:
        nonlocal told
        line.send(None)
        while isinstance(message := line.recv(), Asked):
            told = message
            if told.stop:
                return None
        return message

    try:
        for path in code:
            own.admit(Path(path))
        run = Run(Path(directory), trust_code)
        by_name = {shard.name: shard for shard in run.shards()}
        while not told.stop and (name := next_shard()) is not None:
            train(run, by_name[name], line.send, asked)
    except UserError as error:
        line.send(UserError(str(error)))
    except Failed as error:
        line.send(Failed(str(error)))
    except (EOFError, ConnectionError):
        pass  # the driver is gone, and so is this process
    except MemoryError:
        line.send(Failed("a worker needs more memory than there is"))
    except Exception as error:
        line.send(RuntimeError(f"{type(error).__name__} in a worker: {error}"))


def _be_killed_with_the_driver() -> None:
    """By the kernel, where it can: while user code stays in C, in a regular expression that never ends say, no other
    thread of Python runs."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    driver = multiprocessing.parent_process()
    if driver is not None and os.getppid() != driver.pid:  # it died before it could be asked for
        end_process(1)


def _end_with_the_driver() -> None:
    """The driver holds the other end of a pipe since before this process began: it closes whenever the driver dies.

    Ending at once loses what was trained since the last saved state, and blocks nobody: not the driver that goes on
    with this run, and not this process, on a line that nobody reads any more.
    """
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    end_process(1)
