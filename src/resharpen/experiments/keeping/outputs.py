"""Output files (figures, tables, reports): written atomically, never over a result."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from resharpen.errors import MACHINE, Failed, UserError
from resharpen.experiments.keeping import files, lock
from resharpen.experiments.keeping.store import CODE, HEADER, LOCK, REFERENCE
from resharpen.paths import absolute

OWN = {
    HEADER: re.compile(rf"(shards|{CODE})(/.*)?|{re.escape(HEADER)}|README\.md|\..*", re.DOTALL),
    REFERENCE: re.compile(rf"{re.escape(REFERENCE)}|.*\.parquet", re.DOTALL),
}
"""The file that marks a directory as a run or a reference -> the other files in it that must not be overwritten."""


def check_output(path: Path) -> None:
    """UserError for a path of a file that belongs to a run or a reference, also through links."""
    place = absolute(path)
    place = Path(os.path.realpath(place.parent)) / place.name
    for parent in place.parents:
        for header, own in OWN.items():
            if own.fullmatch(str(place.relative_to(parent))) and os.path.exists(parent / header):
                raise UserError(f"{path} is inside the files of {parent}: choose another path")


def write_output(path: Path, data: bytes) -> None:
    """Write a file. In a run directory this holds the run's lock, because a process that has the lock deletes temporary
    files."""
    check_output(path)
    place = absolute(path)
    in_run = os.path.exists(place.parent / HEADER)
    with lock.waiting(place.parent / LOCK) if in_run else contextlib.nullcontext():
        try:
            files.write_bytes(place, data)
        except Failed as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno not in MACHINE:
                raise UserError(str(error)) from error
            raise
