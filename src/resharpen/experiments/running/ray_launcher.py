"""Training of shards as Ray tasks, on this machine or on a cluster: one task per shard, on one core.

Tasks report progress to a mailbox, an actor on the driver's node, which answers whether to stop. If Ray's processes
die, Ray also ends the process that is connected to it. So a child process connects, unless the caller is connected.
"""

import importlib.util
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resharpen import own
from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.machine import cores, versions
from resharpen.experiments.keeping.shard import Damaged, Foreign, ShardFiles
from resharpen.experiments.keeping.store import CODE, HEADER, Run
from resharpen.experiments.running.launchers import (
    Ask,
    Driver,
    OnProgress,
    WorkerDied,
    begin_process,
    check_imported,
    send_result,
    start_process,
    tell,
)
from resharpen.experiments.running.ray_task import WORD, Mailbox, Outcome, Parcel, train_shard, unpack
from resharpen.experiments.running.training import Asked
from resharpen.experiments.specs.spec import Shard

RETRIES = 10
"""How often a shard is retried when its worker or node dies; after that the shard is considered the cause."""
POLL_SECONDS = 0.5
"""Seconds between two polls of tasks and reports; each poll takes a few milliseconds of a training core."""
CONNECT_SECONDS = 5.0
STOP_SECONDS = 60.0
"""Seconds that running tasks have to save their states when told to stop."""
OBJECTS = 128 * 2**20
"""Bytes of shared memory of a local cluster, which needs little."""
LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # also binds all ports to the loopback interface
    "RAY_AUTH_MODE": "token",  # only this process and its children can connect
}


@dataclass(frozen=True)
class Ray:
    """The launcher that trains every shard as a Ray task, on the cluster at an address, or on a cluster that is started
    on this machine for the duration of the run."""

    address: str | None = None

    def __post_init__(self) -> None:
        """Check, before anything is written, that Ray is installed and that the address answers: Ray itself would wait
        for minutes."""
        if importlib.util.find_spec("ray") is None:
            raise UserError("the launcher 'ray' needs Ray: pip install 'resharpen[ray]'")
        if self.address in (None, "auto"):
            return
        found = re.fullmatch(r"\[?([^/\[\]]+?)\]?:(\d{1,5})", self.address, re.ASCII)
        what = f"address '{self.address}'"
        if found is None:
            raise UserError(f"{what}: must be HOST:PORT or auto, and this machine a node of that cluster")
        try:
            socket.create_connection((found[1], int(found[2])), CONNECT_SECONDS).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise UserError(f"{what}: no Ray cluster answers there ({error})") from error

    def __call__(
        self, run: Run, shards: Sequence[Shard], workers: int | None, on_progress: OnProgress, asked: Ask
    ) -> None:
        """Train shards, by default one per core at a time. On a stop request, save all states and return. A shard that
        fails does not stop the others; failures are raised at the end."""
        workers = workers if workers or self.address else cores()
        needs_gpu = run.experiment.device == "cuda"
        # killed tasks cannot remove their files, and may still write to them
        scratch = tempfile.TemporaryDirectory(prefix="resharpen-", ignore_cleanup_errors=True)
        with scratch as temporary, _word(run.root) as word:
            parcel = Parcel(str(run.root.resolve()), word, _content(run), versions(), temporary)
            work = Work(self.address, workers, parcel, [run.files(shard) for shard in shards], needs_gpu)
            failed = (_train if _is_connected() else _train_in_child)(work, on_progress, asked)
        if failed:
            names = f"{', '.join(list(failed)[:3])}{', ...' * (len(failed) > 3)}"
            kind = UserError if all(outcome.users for outcome in failed.values()) else Failed
            what = f"{len(failed)} of {len(shards)} shards failed ({names}); the others did not"
            raise kind(f"{what}. Continue with: {run.command}")


@dataclass(frozen=True)
class Work:
    """The work of the process that is connected to Ray."""

    address: str | None
    workers: int | None
    parcel: Parcel
    shards: list[ShardFiles]
    needs_gpu: bool


def _is_connected() -> bool:
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def _train(work: Work, on_progress: OnProgress, asked: Ask) -> dict[str, Outcome]:
    """Train shards; returns the outcomes of those that failed, by name."""
    with _cluster(work.address, work.workers) as ray:
        try:
            return _drive(ray, work, on_progress, asked)
        except ray.exceptions.RayError as error:
            raise WorkerDied(f"lost the connection to the Ray cluster ({_first_line(error)})") from error


def _train_in_child(work: Work, on_progress: OnProgress, asked: Ask) -> dict[str, Outcome]:
    """The same in a separate process."""
    line, process = start_process(_child, work)
    told = Asked()
    try:
        while True:
            if (now := asked()) != told:
                tell([line], told := now)
            if not line.poll(0.2):
                continue
            try:
                event = line.recv()
            except (EOFError, OSError):
                break
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, dict):
                return event
            if isinstance(event, str):
                warnings.warn(event, stacklevel=2)
            else:
                on_progress(event)
    finally:
        # end the rest of a local cluster before waiting for the process, which frees its id
        with suppress(OSError, AttributeError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    check_imported(process)
    raise WorkerDied("lost the connection to the Ray cluster: the connected process was ended")


def _child(work: Work, line: Any) -> None:
    """The process that is connected to Ray. Sends progress and warnings, then the failed shards or an exception."""
    begin_process(lambda *_: None)  # signals are not ignored, which Ray's processes would inherit
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a process group for this process and Ray's
    for descriptor in (1, 2):  # Ray logs to both
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    warnings.showwarning = lambda message, *_, **__: line.send(str(message))
    send_result(lambda: _train(work, line.send, Driver(line).poll), line)


@contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected for the duration of the run unless the caller is connected already."""
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
        for number, handler in handlers.items():  # Ray replaces the handler of TERM
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
    """The header and the user code that the driver admitted; tasks compare the code with the hashes in the header."""
    sources = {own.source(reference) for reference in run.experiment.references()}
    copies = {Path(CODE) / place: path for source in sources for place, path in source.copies().items()}
    return {HEADER: (run.root / HEADER).read_bytes(), **{str(at): path.read_bytes() for at, path in copies.items()}}


def _drive(ray: Any, work: Work, on_progress: OnProgress, asked: Ask) -> dict[str, Outcome]:
    """Keep all cores busy until all shards are trained; returns the outcomes of shards that failed, by name."""
    parcel = ray.put(work.parcel)
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(Mailbox)
    mailbox = actor.remote(work.parcel.directory)
    task = ray.remote(num_cpus=1, num_gpus=int(work.needs_gpu), max_retries=RETRIES)(train_shard)
    running, started, failed = dict[Any, ShardFiles](), set[str](), dict[str, Outcome]()
    waiting, stopped_at = deque(work.shards), None
    while running or (waiting and stopped_at is None):
        now = asked()
        if stopped_at is None and now.stop:
            stopped_at = time.monotonic()
            for ref in (ref for ref, shard in running.items() if shard.name not in started):
                ray.cancel(ref)
        if stopped_at is None and waiting:
            # more than there are cores, so that no core waits and an autoscaling cluster grows
            places = work.workers or 2 * int(ray.cluster_resources().get("CPU", 0)) + 1
            while waiting and len(running) < places:
                shard = waiting.popleft()
                running[task.remote(parcel, shard.name, mailbox)] = shard
        if stopped_at is not None and (not running or time.monotonic() - stopped_at > STOP_SECONDS):
            for ref in running:
                ray.cancel(ref, force=True)
            break
        ready, _ = ray.wait(list(running), timeout=POLL_SECONDS)
        for progress in ray.get(mailbox.take.remote(now)):
            started.add(progress.shard)
            on_progress(progress)
        for ref in ready:
            shard = running.pop(ref)
            outcome = _outcome(ray, ref, shard)
            if outcome.error:
                failed[shard.name] = outcome
                warnings.warn(f"{shard.name} failed: {outcome.error}", stacklevel=2)
    return failed


def _outcome(ray: Any, ref: Any, where: ShardFiles) -> Outcome:
    """The outcome of a task; files that it sent back are written."""
    try:
        outcome = ray.get(ref)
        unpack(outcome.files, where)
    except ray.exceptions.TaskCancelledError:
        return Outcome()
    except (ray.exceptions.RayError, Damaged, Foreign) as error:
        return Outcome(error=_first_line(error))
    return outcome


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
