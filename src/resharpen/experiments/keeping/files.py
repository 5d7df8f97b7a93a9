"""Files that are either whole or not there: written beside, then renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """`write` gets a temporary path in the same directory, which then takes the name in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class TornFile(Exception):
    """An array file that is not what was written."""


def write_arrays(path: Path, arrays: Mapping[str, NDArray]) -> None:
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"blake2b": _digest(contiguous)}
    write_atomically(path, lambda temporary: save_file(contiguous, temporary, metadata))


def read_arrays(path: Path) -> dict[str, NDArray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected = (file.metadata() or {}).get("blake2b")
    except SafetensorError as error:
        raise TornFile(f"{path} is damaged: {error}") from error
    if _digest(arrays) != expected:
        raise TornFile(f"{path} is damaged: its content does not match its checksum")
    return arrays


def _digest(arrays: Mapping[str, NDArray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """The hash of a file. One command reads the tables of a run many times: an unchanged file is hashed once."""
    status = path.stat()
    return _sha256(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=2**16)
def _sha256(path: Path, inode: int, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
