"""File locks between processes: one while a run is created or extended, and a lease per shard while it is trained.

The operating system releases a lock when its process ends, even if it is killed. Lock files are opened without
following links and are never written to. A network file system must support locks; see docs/reliability.md.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from resharpen.errors import Failed, UserError

PATIENCE = 60.0
"""Seconds to wait for a process that creates or extends a run, which takes less than a second."""


@contextlib.contextmanager
def waiting(path: Path) -> Iterator[None]:
    """Hold the lock, waiting until it is free."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with if_free(path) as held:
            if held:
                yield
                return
        if time.monotonic() > deadline:
            raise Failed(f"another process has held {path} for more than {PATIENCE:.0f} seconds")
        time.sleep(0.05)


@contextlib.contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold the lock if it is free; yields whether it is held."""
    descriptor = _open(path)
    try:
        if not (held := _lock(descriptor)):  # `is_held` in another process may hold it for a moment
            time.sleep(0.05)
            held = _lock(descriptor)
        yield held
    finally:
        os.close(descriptor)  # releases the lock


def is_held(path: Path) -> bool:
    """Whether some process has the lock; creates no file."""
    if not path.exists():
        return False
    with if_free(path) as free:
        return not free


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        what = "is a symbolic link" if path.is_symlink() else error.strerror
        raise UserError(f"cannot lock {path}: {what}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"cannot lock {path}: it is not a file")
    return descriptor


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise Failed(f"this file system does not support locks ({error.strerror}): see docs/reliability.md") from error
    return True
