"""What headers, manifests and states must have: a right checksum says that nothing changed by accident, not that it
makes sense. Tables are checked in `reading.py`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import CONTROL


@dataclass(frozen=True)
class Field:
    """What a file of ours says under a name."""

    kind: type
    needed: bool = True
    """What is not is shown as "not recorded" where it is missing: older versions did not write it."""


HEADER = {
    "format": Field(int),
    "command": Field(str),
    "spec": Field(dict),
    "drawn": Field(dict),
    "extents": Field(list),
    "checkpoints_before": Field(list, needed=False),
    "code": Field(list),
    "rounding": Field(dict),
    "provenance": Field(dict),
}
"""Of run.json."""
REFERENCE_HEADER = {"spec": Field(dict), "drawn": Field(dict), "made": Field(list), "sha256": Field(dict)}
"""Of reference.json."""
MADE = {"command": Field(str), "provenance": Field(dict), "built": Field(dict)}
"""What reference.json says of each run that it was made of."""
PROVENANCE = {
    "started": Field(str),
    "cpu": Field(str),
    "versions": Field(dict, needed=False),
    "git": Field(str, needed=False),
    "platform": Field(str, needed=False),
    "cores": Field(int, needed=False),
}
MANIFEST = {
    "format": Field(int),
    "shard": Field(str),
    "identity": Field(str),
    "bytes": Field(dict),
    "sha256": Field(dict),
    "engine": Field(str, needed=False),
    "built": Field(str, needed=False),
    "seconds": Field(float, needed=False),
}


def check_fields(data: Any, fields: Mapping[str, Field], where: str = "") -> None:
    """ValueError for what is not a table with these fields. Others may be there, and null is as good as nothing."""
    if not isinstance(data, dict):
        raise ValueError(f"{where or 'it'} is not a table")
    for name, field in fields.items():
        value, named = data.get(name), f"{where}.{name}" if where else name
        if value is None and not field.needed:
            continue
        kinds = int | float if field.kind is float else field.kind
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"'{named}' is missing or of the wrong type")
        if isinstance(value, str) and CONTROL.search(value):
            raise ValueError(f"'{named}' has control characters")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"'{named}' is not a number")


def check_texts(data: Mapping[Any, Any], where: str, may_be_null: bool = False) -> None:
    """ValueError unless all values are plain text."""
    for name, value in data.items():
        text = value is None and may_be_null
        if CONTROL.search(name) or not (text or (isinstance(value, str) and not CONTROL.search(value))):
            raise ValueError(f"'{where}' is not a table of texts")


def check_header(header: Any) -> None:
    """ValueError for a run.json that was not written by us; the spec in it is checked by who reads it."""
    check_fields(header, HEADER)
    for entry in header["code"]:
        texts = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("path", "sha256"))
        if not texts or not re.fullmatch("[0-9a-f]{64}", entry["sha256"]) or "\0" in entry["path"]:
            raise ValueError("'code' is not a list of files and hashes")
        if not Path(entry["path"]).is_absolute():  # of whatever lies where the reader happens to be
            raise ValueError("'code' has a relative path")
    check_texts(header["rounding"], "rounding")
    check_provenance(header["provenance"])


def check_provenance(facts: Any) -> None:
    """ValueError unless it says what is shown of it, in plain text."""
    check_fields(facts, PROVENANCE, "provenance")
    check_texts(facts.get("versions") or {}, "provenance.versions")


def check_extents(extents: Sequence[Any], models: int) -> None:
    """The numbers of models that a run had before it grew."""
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in extents):
        raise ValueError(f"'extents' = {extents}: not whole numbers")
    if not all(a < b for a, b in pairwise([0, *extents, models])):
        raise ValueError(f"'extents' = {extents}: not increasing from 1 to less than {models} models")


def check_arrays(arrays: Mapping[str, NDArray], like: Mapping[str, NDArray]) -> None:
    """ValueError unless names, types and shapes are those."""
    if set(arrays) != set(like):
        raise ValueError(f"it has other arrays ({', '.join(sorted(set(arrays) ^ set(like))[:3])})")
    for name, array in like.items():
        found = arrays[name]
        if (found.dtype, found.shape) != (array.dtype, array.shape):
            raise ValueError(f"{name} is {found.dtype}{list(found.shape)}, not {array.dtype}{list(array.shape)}")


def check_state(state: Mapping[str, NDArray], steps: int) -> None:
    """ValueError for an engine's state that no training leads to: only a diverged model has weights that are no
    numbers."""
    step, diverged_at_M = int(state["step"][0]), state["diverged_at"]
    if not 0 <= step <= steps:
        raise ValueError(f"step {step} of {steps}")
    if (diverged_at_M < -1).any() or (diverged_at_M >= step).any():
        raise ValueError(f"models that diverged at {sorted(set(diverged_at_M.tolist()))}, before step {step}")
    if not np.isfinite(state["loss"]).all():
        raise ValueError("losses that are not finite")
    for name, array in state.items():
        alive = (
            array if name.startswith("theta_0.") else array[diverged_at_M < 0] if name.startswith("theta.") else None
        )
        if alive is not None and not np.isfinite(alive).all():
            raise ValueError(f"{name} is not finite in a model that has not diverged")
