"""Relative paths start where a command was started, even if user code changes the working directory."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_started_in: Path | None = None


@contextlib.contextmanager
def fixed_here() -> Iterator[None]:
    """Within the context, relative paths start from the current working directory, even if that changes."""
    global _started_in
    before = _started_in
    with contextlib.suppress(FileNotFoundError):  # the directory was removed; absolute paths still work
        _started_in = Path.cwd()
    try:
        yield
    finally:
        _started_in = before


def here() -> Path:
    """Where relative paths start: where the command was started, or the working directory when used from Python."""
    return _started_in or Path.cwd()


def absolute(path: str | Path) -> Path:
    """The absolute path; messages show the path as it was given."""
    return Path(path) if os.path.isabs(path) else here() / path
