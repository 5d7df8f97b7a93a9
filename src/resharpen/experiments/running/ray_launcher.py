"""Shards as Ray tasks, on this machine or on a cluster: one task is one shard, on one core.

Tasks tell their progress to a mailbox, an actor beside the driver, and hear from it whether to stop.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import signal
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resharpen import own
from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.machine import cores, versions
from resharpen.experiments.keeping.shard import Damaged, Foreign
from resharpen.experiments.keeping.store import CODE, HEADER, Run
from resharpen.experiments.running.launchers import Ask, OnProgress, WorkerDied
from resharpen.experiments.running.ray_task import WORD, Mailbox, Outcome, Parcel, unpack, work
from resharpen.experiments.running.training import Asked, Progress
from resharpen.experiments.specs.spec import Shard

RETRIES = 10
"""How often a shard is given to another worker when its own dies, or its node; more than that is the shard's doing."""
POLL_SECONDS = 0.5
"""Between two looks at tasks and reports; each costs a few milliseconds of a core that trains."""
CONNECT_SECONDS = 5.0
STOP_SECONDS = 60.0
"""How long running tasks may take to save their states, once told to stop."""
OBJECTS = 128 * 2**20
"""Bytes of shared memory for a local cluster: hardly anything goes through it."""
LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what it says, and also: all ports on the loopback interface
    "RAY_AUTH_MODE": "token",  # of every local user, only this process and its children get in
}


def check_address(address: str | None) -> None:
    """Before anything is written: whether there is Ray, and somebody at that address, for whom Ray waits minutes."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("the launcher 'ray' needs Ray: pip install 'resharpen[ray]'")
    if address is None or address == "auto":
        return
    found = re.fullmatch(r"\[?([^/\[\]]+?)\]?:(\d{1,5})", address, re.ASCII)
    if found is None:
        raise UserError(f"address '{address}': must be HOST:PORT or auto, and this machine a node of that cluster")
    try:
        socket.create_connection((found[1], int(found[2])), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"address '{address}': no Ray cluster answers there ({error})") from error


@dataclass(frozen=True)
class Ray:
    """The launcher that makes every shard a Ray task: on the cluster at that address, or on one of this machine alone,
    which is started and ended again."""

    address: str | None = None

    def __post_init__(self) -> None:
        check_address(self.address)

    def __call__(
        self, run: Run, shards: Sequence[Shard], workers: int | None, on_progress: OnProgress, asked: Ask
    ) -> None:
        """Train the given shards, so many at a time; on a cluster that is there, as many as it has cores.

        Returns early, with all states saved, once asked to. A shard that fails does not stop the others; that some did
        is said at the end.
        """
        workers = workers if workers or self.address else cores()
        with _cluster(self.address, workers) as ray, _word(run.root) as word:
            parcel = ray.put(Parcel(str(run.root.resolve()), word, _content(run), versions()))
            failed = _Driver(ray, run, parcel, workers).work(shards, on_progress, asked)
        if failed:
            names = f"{', '.join(list(failed)[:3])}{', ...' * (len(failed) > 3)}"
            kind = UserError if all(outcome.users for outcome in failed.values()) else Failed
            what = f"{len(failed)} of {len(shards)} shards failed ({names}); the others did not"
            raise kind(f"{what}. Again: {run.command}")


@contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected: as it is if the caller has done so, else for the time of the run."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        for name, value in {"RAY_AUTH_TOKEN": secrets.token_hex(32), **LOCAL}.items():
            os.environ.setdefault(name, value)
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized():
        yield ray
        return
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL", "configure_logging": False}
    local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": OBJECTS}
    try:
        ray.init(address or "local", **quiet, **(local if address is None else {}))
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        ray.shutdown()
        where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        raise UserError(f"cannot connect to {where}: {str(error).splitlines()[0]}") from error
    try:
        for number, handler in handlers.items():  # Ray takes TERM for itself
            signal.signal(number, handler)
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _word(directory: Path) -> Iterator[str]:
    path, word = directory / WORD, secrets.token_hex(16)
    files.write_bytes(path, word.encode())
    try:
        yield word
    finally:
        path.unlink(missing_ok=True)


def _content(run: Run) -> dict[str, bytes]:
    """The header and the code that the driver has let in; the task holds it against the hashes in the header."""
    sources = {own.source(reference) for reference in run.experiment.references()}
    copies = {Path(CODE) / place: path for source in sources for place, path in source.copies().items()}
    return {HEADER: (run.root / HEADER).read_bytes(), **{str(at): path.read_bytes() for at, path in copies.items()}}


class _Driver:
    """Keeps as many tasks going as there are places for, and sees to what comes of them."""

    def __init__(self, ray: Any, run: Run, parcel: Any, workers: int | None):
        self._ray, self._run, self._parcel, self._workers = ray, run, parcel, workers
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        mailbox = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(Mailbox)
        self._mailbox = mailbox.remote(str(run.root.resolve()))
        gpus = int(run.experiment.device == "cuda")
        self._task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(work)
        self._running: dict[Any, Shard] = {}
        self._started: set[str] = set()

    def work(self, shards: Sequence[Shard], on_progress: OnProgress, asked: Ask) -> dict[str, Outcome]:
        """The shards that failed, by name."""
        waiting, failed, stopped_at = deque(shards), dict[str, Outcome](), None
        while self._running or (waiting and stopped_at is None):
            now = asked()
            if stopped_at is None and now.stop:
                stopped_at = time.monotonic()
                self._cancel([ref for ref, shard in self._running.items() if shard.name not in self._started])
            if stopped_at is None:
                self._submit(waiting)
            elif not self._running or time.monotonic() - stopped_at > STOP_SECONDS:
                self._cancel(list(self._running), force=True)
                break
            ready, _ = self._ray.wait(list(self._running), timeout=POLL_SECONDS)
            for progress in self._news(now):
                self._started.add(progress.shard)
                on_progress(progress)
            for ref in ready:
                shard = self._running.pop(ref)
                outcome = self._outcome(ref, shard)
                if outcome.error:
                    failed[shard.name] = outcome
                    warnings.warn(f"{shard.name} failed: {outcome.error}", stacklevel=2)
        return failed

    def _submit(self, waiting: deque[Shard]) -> None:
        if not waiting:
            return
        # more than there are cores, so that none waits for us and a cluster that can grow sees why it should
        places = self._workers or 2 * int(self._ray.cluster_resources().get("CPU", 0)) + 1
        while waiting and len(self._running) < places:
            shard = waiting.popleft()
            self._running[self._task.remote(self._parcel, shard.name, self._mailbox)] = shard

    def _news(self, now: Asked) -> list[Progress]:
        try:
            return self._ray.get(self._mailbox.take.remote(now))
        except self._ray.exceptions.RayError as error:
            raise WorkerDied(f"the Ray cluster is gone ({_first_line(error)})") from error

    def _outcome(self, ref: Any, shard: Shard) -> Outcome:
        """What came of a task; files that it sends back are written."""
        try:
            outcome = self._ray.get(ref)
            unpack(outcome.files, self._run.files(shard))
        except self._ray.exceptions.TaskCancelledError:
            return Outcome()
        except (self._ray.exceptions.RayError, Damaged, Foreign) as error:
            return Outcome(error=_first_line(error))
        return outcome

    def _cancel(self, refs: Sequence[Any], force: bool = False) -> None:
        for ref in refs:
            self._ray.cancel(ref, force=force)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
