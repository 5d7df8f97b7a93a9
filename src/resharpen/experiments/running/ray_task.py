"""What a Ray task does: train one shard, wherever it is.

A task gets the header of the run and the user's own code by value, so a node needs this package and nothing else. Where
it sees the run directory it works there, like any worker; where it does not, it works in a directory of its own, and
what is worth keeping is sent back as it stands on disk, hashes and all. Whether it sees it is tried, not asked: the
driver leaves a file there with a word that nobody else knows.
"""

from __future__ import annotations

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
"""The file in a run directory that a task looks for."""
FILES = (STATE, *RESULTS, MANIFEST)
"""What a shard has, the manifest last."""
SEND_SECONDS = 300.0
"""How often a task that does not see the run directory sends its state back: what the loss of its node costs."""
LEASE_SECONDS = 20.0
"""The worker that had a shard before, on a node that was lost, may take a moment to notice and end."""


@dataclass(frozen=True)
class Parcel:
    """What every task of a run gets."""

    directory: str
    """The run directory, as the driver knows it."""
    word: str
    """In a file there: who finds it sees the same directory."""
    content: dict[str, bytes]
    """The header and the user's own code, by their names in a run directory."""
    versions: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """What a task returns: files of the shard to write, if it does not see the run directory; or what went wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    error: str = ""
    users: bool = False
    """Whether it is the user's to mend: their own code, their nodes."""


def work(parcel: Parcel, name: str, mailbox: Any) -> Outcome:
    """Train one shard. An exception is part of the outcome, so that Ray retries what it lost and nothing else."""
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
    with tempfile.TemporaryDirectory(prefix="resharpen-") as temporary:
        here = Path(temporary)
        for path, content in parcel.content.items():
            files.write_bytes(here / path, content)
        shared = _sees(parcel)
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
        _wait_for(where)
        reporter = _Reporter(mailbox, None if shared else where.state)
        if not reporter.asked().stop:  # it may have begun only because others have stopped
            train(run, shard, reporter.report, reporter.asked)
        paths = [] if shared else [where.directory / name for name in FILES]
        return Outcome({path.name: path.read_bytes() for path in paths if path.exists()})


def _heard(ref: Any) -> Any:
    """What the mailbox answers. A task that waits in `ray.get` gives its core away, and another begins on it."""
    return ref.future().result()


def _sees(parcel: Parcel) -> bool:
    """Whether this machine has the run directory of the driver."""
    try:
        return (Path(parcel.directory) / WORD).read_text(encoding="utf-8") == parcel.word
    except (OSError, ValueError):
        return False


def _wait_for(where: ShardFiles) -> None:
    until = time.monotonic() + LEASE_SECONDS
    while where.is_leased() and time.monotonic() < until:
        time.sleep(0.2)


@dataclass(frozen=True)
class _ByPost(Run):
    """A run whose header and code came with the task; its shards are where the work is to be done."""

    work: Path = Path()

    def files(self, shard: Shard) -> ShardFiles:
        return replace(super().files(shard), run=self.work)


class _Reporter:
    """Tells the mailbox how far a task is and hears what is asked of it; sends the state along, if that is out of
    the driver's sight."""

    def __init__(self, mailbox: Any, state: Path | None):
        self._mailbox, self._state = mailbox, state
        self._asked: Any = _heard(mailbox.asked.remote())
        self._answer: Any = None
        self._sent = time.monotonic()

    def report(self, progress: Progress) -> None:
        """What is asked is the answer to the report before, which has come by now: a core that waits trains nobody."""
        if self._answer is not None:
            self._asked = _heard(self._answer)
        self._answer = self._mailbox.tell.remote(progress)
        if self._state is not None and time.monotonic() - self._sent > SEND_SECONDS and self._state.exists():
            _heard(self._mailbox.keep.remote(progress.shard, self._state.read_bytes()))
            self._sent = time.monotonic()

    def asked(self) -> Asked:
        return self._asked


class Mailbox:
    """An actor on the driver's node: progress on its way to the driver, and states of shards trained out of sight."""

    def __init__(self, directory: str):
        self._directory, self._news, self._asked = Path(directory), list[Progress](), Asked()

    def tell(self, progress: Progress) -> Asked:
        """A task's call: where it is, and what is asked of it."""
        self._news.append(progress)
        return self._asked

    def asked(self) -> Asked:
        """A task's call before it begins."""
        return self._asked

    def take(self, asked: Asked) -> list[Progress]:
        """The driver's call: what has come since the last, and what is asked of tasks from now on."""
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
    """Write files of a shard that was trained out of sight, unless somebody here has it or has finished it; the
    manifest is the last, and the results have to be what it says."""
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
        except (Damaged, Foreign):  # what was just written
            where.discard()
            raise
