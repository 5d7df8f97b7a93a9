"""Headers, `run.json` and `reference.json`: plain JSON with a checksum, so that a digit that was changed by hand or by
accident is noticed before results are judged by it.

Who can write a header can write its checksum, too: it protects from accidents. What a header from somebody else may
lead to is bounded by `own.stored` and `Run`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from resharpen.errors import UserError
from resharpen.experiments.keeping import files

CHECKSUM = "checksum"


def write_header(path: Path, header: Mapping[str, Any]) -> None:
    files.write_json(path, {**header, CHECKSUM: checksum(header)})


def read_header(path: Path, check: Callable[[Any], None], instead: str) -> dict[str, Any]:
    """A header that was not changed since it was written; `check` raises ValueError for one that makes no sense,
    `instead` is what to do where the right one is lost. FileNotFoundError if there is none."""
    try:
        header = json.loads(path.read_bytes())
        check(header)
        if header.get(CHECKSUM) != checksum(header):
            what = "was changed after it was written" if CHECKSUM in header else "has no checksum"
            raise UserError(f"{path} {what}: restore it as it was, or {instead}; nothing was deleted")
        return header
    except (FileNotFoundError, UserError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def checksum(header: Mapping[str, Any]) -> str:
    """Of everything else in a header, however it is indented and ordered."""
    rest = {name: value for name, value in header.items() if name != CHECKSUM}
    return files.sha256(json.dumps(rest, sort_keys=True).encode())
