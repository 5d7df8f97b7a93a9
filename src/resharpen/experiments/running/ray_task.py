"""A Ray task, which trains one shard on any node.

A task gets the header of the run and the user code by value, so a node needs only this package. If the task can access
the run directory, it works there like any worker. If not, it works in a temporary directory and sends the files of the
shard back. It recognizes the run directory by a file with a random token that the driver puts there.
"""

import platform
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resharpen.errors import UserError
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.machine import versions
from resharpen.experiments.keeping.shard import MANIFEST, RESULTS, STATE, Damaged, Foreign, ShardFiles
from resharpen.experiments.keeping.store import Run, check_rounding
from resharpen.experiments.running.launchers import train
from resharpen.experiments.running.training import Asked, Progress
from resharpen.experiments.specs.spec import Shard

WORD = ".shared"
"""The file with the token in a run directory."""
FILES = (STATE, *RESULTS, MANIFEST)
"""Files of a shard, the manifest last."""
SEND_SECONDS = 300.0
"""Seconds between states that a task without access to the run directory sends back: at most this is lost."""
LEASE_SECONDS = 20.0
"""Seconds to wait for the lease: the previous worker, on a lost node, may take a moment to end."""


@dataclass(frozen=True)
class Parcel:
    """Data that every task of a run gets."""

    directory: str
    """The run directory on the driver's node."""
    word: str
    """The token in the file `WORD` there."""
    content: dict[str, bytes]
    """The header and the user code, by their paths in a run directory."""
    versions: dict[str, str]
    temporary: str
    """A directory on the driver's node, which the driver removes."""


@dataclass(frozen=True)
class Outcome:
    """Result of a task: an error, or files of the shard if the task cannot access the run directory."""

    files: dict[str, bytes] = field(default_factory=dict)
    error: str = ""
    users: bool = False
    """Whether the error is caused by the user's code or nodes."""


def train_shard(parcel: Parcel, name: str, mailbox: Any) -> Outcome:
    """Train one shard. Exceptions are returned, so that Ray retries lost tasks only."""
    try:
        return _work(parcel, name, mailbox)
    except UserError as error:
        return Outcome(error=str(error), users=True)
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}")


def _work(parcel: Parcel, name: str, mailbox: Any) -> Outcome:
    mine = versions()
    if different := [f"{x} {mine[x]} and not {parcel.versions[x]}" for x in mine if mine[x] != parcel.versions[x]]:
        raise UserError(f"node {platform.node()} has {', '.join(different)}: results would differ")
    place = parcel.temporary if Path(parcel.temporary).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="resharpen-", dir=place) as temporary:
        here = Path(temporary)
        for path, content in parcel.content.items():
            files.write_bytes(here / path, content)
        try:
            shared = (Path(parcel.directory) / WORD).read_text(encoding="utf-8") == parcel.word
        except (OSError, ValueError):
            shared = False
        run = _ByPost(here, trust_code=True, work=Path(parcel.directory) if shared else here)
        try:
            check_rounding(run)
        except UserError as error:
            raise UserError(f"node {platform.node()}: {error}") from error
        shard = next(shard for shard in run.shards() if shard.name == name)
        where = run.files(shard)
        state: Any = None if shared else _heard(mailbox.state.remote(name))
        if state is not None:
            files.write_bytes(where.state, state)
        until = time.monotonic() + LEASE_SECONDS
        while where.is_leased() and time.monotonic() < until:
            time.sleep(0.2)
        reporter = _Reporter(mailbox, None if shared else where.state)
        if not reporter.asked().stop:  # it may have started because others stopped
            train(run, shard, reporter.report, reporter.asked)
        paths = [] if shared else [where.directory / name for name in FILES]
        return Outcome({path.name: path.read_bytes() for path in paths if path.exists()})


def _heard(ref: Any) -> Any:
    """The mailbox's answer, without `ray.get`, which would release this task's core for another task."""
    return ref.future().result()


@dataclass(frozen=True)
class _ByPost(Run):
    """A run whose header and code came with the task, and whose shards are in another directory."""

    work: Path = Path()

    def files(self, shard: Shard) -> ShardFiles:
        return replace(super().files(shard), run=self.work)


class _Reporter:
    """Reports progress to the mailbox, with the state if the driver cannot read it, and gets back requests."""

    def __init__(self, mailbox: Any, state: Path | None):
        self._mailbox, self._state = mailbox, state
        self._asked: Any = _heard(mailbox.asked.remote())
        self._answer: Any = None
        self._sent = time.monotonic()

    def report(self, progress: Progress) -> None:
        """Send a report. Requests come from the answer to the previous report, so that training does not wait."""
        if self._answer is not None:
            self._asked = _heard(self._answer)
        self._answer = self._mailbox.tell.remote(progress)
        if self._state is not None and time.monotonic() - self._sent > SEND_SECONDS and self._state.exists():
            _heard(self._mailbox.keep.remote(progress.shard, self._state.read_bytes()))
            self._sent = time.monotonic()

    def asked(self) -> Asked:
        return self._asked


class Mailbox:
    """An actor on the driver's node: progress for the driver, and states of tasks without access to the directory."""

    def __init__(self, directory: str):
        self._directory, self._news, self._asked = Path(directory), list[Progress](), Asked()

    def tell(self, progress: Progress) -> Asked:
        """Called by a task to report progress; returns requests to it."""
        self._news.append(progress)
        return self._asked

    def asked(self) -> Asked:
        """Called by a task before it starts."""
        return self._asked

    def take(self, asked: Asked) -> list[Progress]:
        """Called by the driver: returns new progress, and sets the requests to tasks."""
        self._asked = asked
        news, self._news = self._news, []
        return news

    def state(self, name: str) -> bytes | None:
        state = self._files(name).state
        return state.read_bytes() if state.exists() else None

    def keep(self, name: str, state: bytes) -> None:
        unpack({STATE: state}, self._files(name))

    def _files(self, name: str) -> ShardFiles:
        return ShardFiles(self._directory, name, "")


def unpack(content: Mapping[str, bytes], where: ShardFiles) -> None:
    """Write files that a task sent back, the manifest last, unless another process has locked or finished the shard.
    Results that do not match the manifest are deleted and raise an error."""
    if not content:
        return
    with where.lease() as held:
        if not held or (where.directory / MANIFEST).exists():
            return
        for name in FILES:
            if name in content:
                files.write_bytes(where.directory / name, content[name])
        try:
            if MANIFEST in content and where.is_done():
                for name in RESULTS:
                    where.read(name)
                where.tidy()
        except (Damaged, Foreign):
            where.discard()
            raise
