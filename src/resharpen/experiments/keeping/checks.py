"""Headers (`run.json`, `reference.json`), and checks of the content of headers, manifests and saved states.

A header has a checksum that detects accidental changes. Anyone who can write a header can also write its checksum, so
the content is checked as well: here, for tables in `reading.py`, and for code that a header names in `own.stored` and
`Run`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import CONTROL, UserError
from resharpen.experiments.keeping import files

CHECKSUM = "checksum"
SHA256 = "[0-9a-f]{64}"

Fields = Mapping[Any, Iterable[str]]
"""Type -> fields of that type. None is allowed for fields that older versions did not write; they are shown as "not
recorded"."""
_HEADER = {
    int: ["format"],
    str: ["command"],
    dict: ["spec", "drawn", "rounding", "provenance"],
    list: ["extents", "code"],
    list | None: ["checkpoints_before"],
}
_PROVENANCE = {
    str: ["started", "cpu"],
    str | None: ["git", "platform"],
    int | None: ["cores"],
    dict | None: ["versions"],
}


def write_header(path: Path, header: Mapping[str, Any]) -> None:
    files.write_json(path, {**header, CHECKSUM: checksum(header)})


def read_header(path: Path, check: Callable[[Any], None], instead: str) -> dict[str, Any]:
    """A header with a correct checksum and for which `check` raises no ValueError; FileNotFoundError if there is none.
    `instead` is what to do if the original is lost."""
    try:
        header = json.loads(path.read_bytes())
        check(header)
        if header.get(CHECKSUM) != checksum(header):
            what = "was changed after it was written" if CHECKSUM in header else "has no checksum"
            raise UserError(f"{path} {what}: restore it as it was, or {instead}; nothing was deleted")
        return header
    except (FileNotFoundError, UserError):
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def checksum(header: Mapping[str, Any]) -> str:
    """Hash of everything else in a header, independent of indentation and order."""
    rest = {name: value for name, value in header.items() if name != CHECKSUM}
    return files.sha256(json.dumps(rest, sort_keys=True).encode())


def check_fields(data: Any, fields: Fields, where: str = "") -> None:
    """ValueError unless `data` is a table with these fields; further fields are allowed."""
    if not isinstance(data, dict):
        raise ValueError(f"{where or 'it'} is not a table")
    for kind, name in ((kind, name) for kind, names in fields.items() for name in names):
        value, named = data.get(name), f"{where}.{name}" if where else name
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{named!r} is missing or of the wrong type")
        if CONTROL.search(name) or (isinstance(value, str) and CONTROL.search(value)):
            raise ValueError(f"{named!r} has control characters")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{named!r} is not a number")


def check_header(header: Any) -> None:
    """ValueError for a run.json that this package did not write; the spec in it is checked when it is parsed."""
    check_fields(header, _HEADER)
    extents, models = header["extents"], header["spec"].get("models")
    bounds = [0, *extents, models if isinstance(models, int) else math.inf]
    if extents and not (all(type(x) is int for x in extents) and all(a < b for a, b in pairwise(bounds))):
        raise ValueError(f"'extents' = {extents}: not whole numbers that increase from 1 to less than {models} models")
    for entry in header["code"]:
        texts = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("path", "sha256"))
        if not texts or not re.fullmatch(SHA256, entry["sha256"]) or "\0" in entry["path"]:
            raise ValueError("'code' is not a list of files and hashes")
        if not Path(entry["path"]).is_absolute():  # it would depend on the working directory
            raise ValueError("'code' has a relative path")
    check_fields(header["rounding"], {str: header["rounding"]}, "rounding")
    check_provenance(header["provenance"])


def check_provenance(facts: Any) -> None:
    check_fields(facts, _PROVENANCE, "provenance")
    versions = facts.get("versions") or {}
    check_fields(versions, {str: versions}, "provenance.versions")


def check_arrays(arrays: Mapping[str, NDArray], like: Mapping[str, NDArray]) -> None:
    """ValueError unless names, types and shapes are those of `like`."""
    if set(arrays) != set(like):
        raise ValueError(f"it has other arrays ({', '.join(sorted(set(arrays) ^ set(like))[:3])})")
    for name, array in like.items():
        found = arrays[name]
        if (found.dtype, found.shape) != (array.dtype, array.shape):
            raise ValueError(f"{name} is {found.dtype}{list(found.shape)}, not {array.dtype}{list(array.shape)}")


def check_state(state: Mapping[str, NDArray], steps: int) -> None:
    """ValueError for an engine's state that training cannot produce; weights of a diverged model may be nan."""
    step, diverged_at_M = int(state["step"][0]), state["diverged_at"]
    if not 0 <= step <= steps:
        raise ValueError(f"step {step} of {steps}")
    if (diverged_at_M < -1).any() or (diverged_at_M >= step).any():
        raise ValueError(f"models that diverged at {sorted(set(diverged_at_M.tolist()))}, before step {step}")
    if not np.isfinite(state["loss"]).all():
        raise ValueError("losses that are not finite")
    alive = {
        name: array if name.startswith("theta_0.") else array[diverged_at_M < 0]
        for name, array in state.items()
        if name.startswith(("theta_0.", "theta."))
    }
    for name, array in alive.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite in a model that has not diverged")
