"""Where relative paths start: code of the user's own may change the working directory while a command runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_started_in: Path | None = None


@contextlib.contextmanager
def fixed_here() -> Iterator[None]:
    """Within, relative paths start from the present working directory, whatever it is changed to."""
    global _started_in
    before = _started_in
    with contextlib.suppress(FileNotFoundError):  # of a directory that was removed; absolute paths need none
        _started_in = Path.cwd()
    try:
        yield
    finally:
        _started_in = before


def here() -> Path:
    """The directory that relative paths start from: where a command was started; in Python, the working directory."""
    return _started_in or Path.cwd()


def absolute(path: str | Path) -> Path:
    """Where a path leads; messages show the path as it was given."""
    return Path(path) if os.path.isabs(path) else here() / path
