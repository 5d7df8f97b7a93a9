"""Code that this account has trained with: the only code that reading a run executes without `--trust-code`.

A header can name any file on this machine, and its hash. So a run that is created or continued with code that the user
named records path and hash of that code in the user's state directory. A run whose header names other code, because
someone else trained it, can be opened only with `--trust-code`.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path


def remember(path: Path, sha256: str) -> None:
    """Record that this account trains with the code at `path`, if the record can be written."""
    if not is_known(path, sha256):
        with contextlib.suppress(OSError, RuntimeError):
            record = _record()
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # private for any umask; appended in one call, so that several processes may record at the same time
            descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, f"{_entry(path, sha256)}\n".encode())
            os.close(descriptor)


def is_known(path: Path, sha256: str) -> bool:
    """Whether this account has trained with the same code at the same path."""
    try:
        record = _record()
        return not _others_may_write(record) and _entry(path, sha256) in record.read_text(encoding="utf-8").splitlines()
    except (OSError, RuntimeError, ValueError):
        return False


def _record() -> Path:
    """The file of the record; RuntimeError for an account without a home directory."""
    from platformdirs import user_state_path

    return user_state_path("resharpen", appauthor=False) / "code"


def _others_may_write(path: Path) -> bool:
    status = path.stat()
    shared = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return hasattr(os, "getuid") and (shared or status.st_uid != os.getuid())


def _entry(path: Path, sha256: str) -> str:
    return json.dumps([sha256, str(path)])
