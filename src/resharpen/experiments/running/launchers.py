"""Training of shards in this process, or in one spawned process per core.

A worker gets the run directory and names of shards, and reads the rest from the directory. It ends when its driver
ends, even if that is killed.
"""

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
from resharpen.environment import settle
from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping.machine import cores
from resharpen.experiments.keeping.shard import Damaged, Foreign
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.training import Asked, Progress, Trainer
from resharpen.experiments.specs.spec import Shard
from resharpen.signals import SAVING, STOPPING, end_process

IMPORTED = 79
"""Exit code of a worker that would have started the run again when it imported the main script."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
HANDLED = [*STOPPING, *SAVING]
"""Signals that only the driver handles; terminals and batch systems send them to the workers as well."""

Ask = Callable[[], Asked]
OnProgress = Callable[[Progress], None]
Launcher = Callable[[Run, Sequence[Shard], int | None, OnProgress, Ask], None]
"""Trains shards with a number of workers, None for the launcher's default; returns early if a stop is requested."""
Lines = dict[Any, Any]
"""The driver's end of the pipe to each running worker -> its process."""


class WorkerDied(Failed):
    """A worker process was killed, for example because memory ran out."""


def leave_if_imported() -> None:
    """End a spawned worker that imports the main script and, without a guard there, would start the run again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        end_process(IMPORTED)
    own.refuse_while_loading()


def launch(run: Run, shards: Sequence[Shard], workers: int | None, on_progress: OnProgress, asked: Ask) -> None:
    """Train the given shards, except those locked by another process. On a stop request, save all states and return."""
    workers = workers or cores()
    if workers == 1 or len(shards) <= 1:
        for shard in shards:
            if not train(run, shard, on_progress, asked):
                return
    else:
        _in_processes(run, shards, min(workers, len(shards)), on_progress, asked)


def train(run: Run, shard: Shard, on_progress: OnProgress, asked: Ask) -> bool:
    """Train one shard, unless it is finished or locked by another process; False if stopped before its end."""
    files, steps = run.files(shard), run.experiment.steps
    with files.lease() as held:
        found = run.look_over([shard])[0] if held else True
        if isinstance(found, Foreign):
            raise found
        if isinstance(found, Damaged):
            files.discard()
        if found is not True:
            with _blamed(run, shard, on_progress) as report:
                return Trainer(run.experiment, shard, files, report, asked, rounding=run.rounding(shard)).run()
        if held:
            files.tidy()
    cell, lower = (shard.setting.name, shard.variant), shard.setting.task.lower_is_better
    on_progress(Progress(shard.name, *cell, shard.count, steps, steps, float("nan"), lower, 0, checkpoint=False))
    return True


@contextlib.contextmanager
def _blamed(run: Run, shard: Shard, on_progress: OnProgress) -> Iterator[OnProgress]:
    """Report errors of user code as such; yields a progress callback that also detects changed global state."""
    if not run.experiment.references():
        yield on_progress
        return
    keeps = "this run keeps the code that it started with: correct the file and choose another --out"
    with own.blamed(f"variant '{shard.variant}' failed in your own code during training; {keeps}"):
        before = guard.arithmetic()

        def checked(progress: Progress) -> None:
            if progress.step and (name := guard.changed(before)):
                raise UserError(f"variant '{shard.variant}': your code called {name} during training; {keeps}")
            on_progress(progress)

        yield checked


def _in_processes(run: Run, shards: Sequence[Shard], workers: int, on_progress: OnProgress, asked: Ask) -> None:
    """One process per worker, each with its own pipe to the driver, so that a killed one cannot block the others."""
    lines: Lines = {}
    code = [str(own.source(reference).path) for reference in run.experiment.references()]
    try:
        with _signals_blocked():
            for _ in range(workers):
                line, process = start_process(_work, str(run.root), run.trust_code, code)
                lines[line] = process
        _listen(lines, [shard.name for shard in shards], on_progress, asked)
    finally:
        tell(lines, Asked(stop=True))
        for process in lines.values():
            process.join(timeout=30)
            process.kill()


def start_process(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """A pipe to a new process that runs `target`, and the process. It gets the other end of the pipe as last argument,
    and starts with signals blocked."""
    # spawn, never fork: a forked child inherits locks and threads in an arbitrary state
    context = multiprocessing.get_context("spawn")
    # Python's resource tracker would be killed by USR1; starting it also unblocks signals, so it has its own block
    with _signals_blocked():
        resource_tracker.ensure_running()
    with _signals_blocked():
        line, other_end = context.Pipe()
        process = context.Process(target=target, args=(*arguments, other_end), daemon=True)
        process.start()
        other_end.close()
    return line, process


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Delay signals until the end of the context. A process started within has them blocked until it unblocks them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(lines: Lines, names: Sequence[str], on_progress: OnProgress, asked: Ask) -> None:
    """Forward progress and hand out shards until every worker has ended."""
    to_do, told, at_work = iter(names), Asked(), dict[Any, str | None]()
    while lines:
        if (now := asked()) != told:
            tell(lines, told := now)
        ready: list[Any] = wait(lines, timeout=0.2)
        for line in ready:
            try:
                event = line.recv()
            except (EOFError, OSError):  # the worker has ended, maybe in the middle of a message
                _check_end(lines.pop(line), None if told.stop else at_work.get(line, "its start"))
                continue
            if isinstance(event, BaseException):
                raise event
            if event is None:
                at_work[line] = None if told.stop else next(to_do, None)
                tell([line], at_work[line])
            else:
                on_progress(event)


def tell(lines: Iterable[Any], message: Asked | str | None) -> None:
    for line in lines:
        with contextlib.suppress(OSError):  # `_listen` detects a worker that has ended
            line.send(message)


def check_imported(process: Any) -> None:
    """UserError if a process ended because the main script has no guard."""
    process.join()
    if process.exitcode == IMPORTED:
        raise UserError(
            "workers are processes that import this script: put its code under `if __name__ == '__main__':`, "
            "or run with workers=1"
        )


def _check_end(process: Any, at: str | None) -> None:
    """Raise if a worker ended early: `at` is the shard that it was training, None if it was told to end."""
    check_imported(process)
    if process.exitcode or at is not None:
        where = f" at {at}" if at else ""
        raise WorkerDied(f"a worker ended with exit code {process.exitcode}{where}")


def _work(directory: str, trust_code: bool, code: Sequence[str], line: Any) -> None:
    """A worker: request shards until there are none, or until told to stop. `code`: files that the driver admitted."""
    begin_process(signal.SIG_IGN)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    driver = Driver(line)

    def work() -> None:
        for path in code:
            own.admit(Path(path))
        run = Run(Path(directory), trust_code)
        by_name = {shard.name: shard for shard in run.shards()}
        while not driver.told.stop and (name := driver.next()) is not None:
            train(run, by_name[name], line.send, driver.poll)

    send_result(work, line)


def begin_process(handler: Any) -> None:
    """At the start of a process that `start_process` made, which handles signals like this from here on."""
    settle()
    _be_killed_with_driver()
    for number in HANDLED:
        signal.signal(number, handler)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


class Driver:
    """The driver at the other end of a pipe: says what is asked, and hands out shards."""

    def __init__(self, line: Any):
        self._line, self.told = line, Asked()

    def poll(self) -> Asked:
        """What is asked by now."""
        while self._line.poll():
            self.told = self._line.recv()
        return self.told

    def next(self) -> str | None:
        """The name of a shard to train; None if there is none left, or if told to stop."""
        self._line.send(None)
        while isinstance(message := self._line.recv(), Asked):
            self.told = message
            if self.told.stop:
                return None
        return message


def send_result(work: Callable[[], Any], line: Any) -> None:
    """Do the work of a process and send its result, unless None, or its exception to the driver."""
    try:
        if (result := work()) is not None:
            line.send(result)
    except UserError as error:
        line.send(UserError(str(error)))
    except Failed as error:
        line.send(Failed(str(error)))
    except (EOFError, ConnectionError):
        pass  # the driver has ended
    except MemoryError:
        line.send(Failed("a worker ran out of memory"))
    except Exception as error:
        line.send(RuntimeError(f"{type(error).__name__} in a worker: {error}"))


def _be_killed_with_driver() -> None:
    """Ask the kernel, where it can, to kill this process with its driver: while user code stays in C, for example in a
    regular expression that never ends, no other Python thread runs."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    driver = multiprocessing.parent_process()
    if driver is not None and os.getppid() != driver.pid:  # it died before the call
        end_process(1)


def _end_with_driver() -> None:
    """End this process when the driver ends, even if it is killed. Work since the last saved state is lost, but neither
    this process blocks, on a pipe without a reader, nor another driver that continues the run."""
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    end_process(1)
