"""What a run directory holds is looked at before it is used: a right hash says that nothing changed by accident, not
that it makes sense.

A diverged model has weights and scores that are not numbers; that is a result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import CONTROL
from resharpen.experiments.specs.spec import Shard

if TYPE_CHECKING:
    import polars as pl

_HEADER = {"format": int, "command": str, "spec": dict, "drawn": dict, "extents": list, "code": list, "rounding": dict}
COLUMNS = {
    "models": {"draw": int, "diverged_at": int},
    "curves": {"weights": str, "step": int, "score": float, "score_trained": float, "loss": float},
    "lengths": {"weights": str, "selection": str, "length": int, "metric": str, "value": float, "count": int},
}
"""What every shard has in its tables beside `model`; that of `models` has more."""


def check_header(header: Any) -> None:
    """ValueError for a run.json that was not written by us; the spec in it is checked by who reads it."""
    if not isinstance(header, dict):
        raise ValueError("it is not a table")
    for name, kind in _HEADER.items():
        if not isinstance(header.get(name), kind) or isinstance(header.get(name), bool):
            raise ValueError(f"'{name}' is missing or of the wrong type")
    for entry in header["code"]:
        texts = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("path", "sha256"))
        if not texts or not re.fullmatch("[0-9a-f]{64}", entry["sha256"]) or "\0" in entry["path"]:
            raise ValueError("'code' is not a list of files and hashes")
        if not Path(entry["path"]).is_absolute():  # of whatever lies where the reader happens to be
            raise ValueError("'code' has a relative path")
    check_provenance(header.get("provenance"))


def check_provenance(facts: Any) -> None:
    """ValueError unless it says what is shown of it, in plain text."""
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), str) for name in ("started", "cpu")):
        raise ValueError("'provenance' does not say when and where the run began")
    if CONTROL.search(facts["started"] + facts["cpu"]):
        raise ValueError("'provenance' has control characters")


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


def check_columns(name: str, table: pl.DataFrame) -> None:
    """ValueError for a table without the columns that every one of its name has."""
    import polars as pl

    kinds = {str: lambda t: t == pl.String, int: lambda t: t.is_integer(), float: lambda t: t.is_float()}
    for column, kind in {"model": str, **COLUMNS[name]}.items():
        dtype = table.schema.get(column)
        if dtype is None or not kinds[kind](dtype):
            raise ValueError(f"column '{column}' is missing or of the wrong type")


def check_table(name: str, table: pl.DataFrame, shard: Shard, shared: Mapping[str, Any]) -> None:
    """ValueError for a table that is not about the models of this shard; `shared` is what those have in common."""
    check_columns(name, table)
    ids = table["model"].to_list()
    if (ids if name == "models" else list(dict.fromkeys(ids))) != shard.model_ids:
        raise ValueError("it has other models")
    if name != "models":
        return
    if table["draw"].to_list() != shard.draw_M.tolist():
        raise ValueError("it has other draws")
    first = table.row(0, named=True)
    for column, value in shared.items():
        if column not in first or first[column] != value:
            raise ValueError(f"{column} is {first.get(column)!r}, not {value!r}")
