"""Atomic files: written under a temporary name, then renamed. They are read as bytes, so that the bytes that are hashed
are the bytes that are parsed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import Failed
from resharpen.lazy import pl

TEMPORARY = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")
LOST = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of a missing file or of a path that is not a file. Any other OSError may be temporary: nothing is deleted."""


def unreadable(path: Path, error: OSError) -> Failed:
    return Failed(f"{path} cannot be read: {error.strerror}; nothing was deleted")


class TornFile(Exception):
    """An array file that is damaged or belongs to another shard."""


def write_bytes(path: Path, data: bytes, lasting: bool = False) -> None:
    """Write a file atomically; `lasting` flushes it to disk, so that it survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_temporary(directory: Path) -> None:
    """Delete temporary files of killed writers; the caller holds the lock."""
    for path in directory.iterdir():
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(data, indent=2) + "\n").encode(), lasting=True)


def parquet(table: pl.DataFrame) -> bytes:
    data = io.BytesIO()
    table.write_parquet(data)
    return data.getvalue()


def write_arrays(path: Path, arrays: Mapping[str, NDArray], facts: Mapping[str, str]) -> None:
    """`facts` identify the owner of the arrays. The checksum covers them, and names, types, shapes and content."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_bytes(path, save(contiguous, {**facts, "blake2b": _digest(contiguous, facts)}))


def read_arrays(path: Path, facts: Mapping[str, str]) -> dict[str, NDArray]:
    """The arrays of a file that was written with these facts; TornFile for any other file."""
    try:
        return parse_arrays(path.read_bytes(), facts)
    except LOST as error:
        raise TornFile(f"{path} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except TornFile as error:
        raise TornFile(f"{path} {error}") from error


def parse_arrays(data: bytes, facts: Mapping[str, str], verified: bool = False) -> dict[str, NDArray]:
    """As `read_arrays`; the checksum is not computed where the hash of `data` was `verified` already."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(data)
        size = int.from_bytes(data[:8], "little")
        told = dict(json.loads(data[8 : 8 + size])["__metadata__"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TornFile(f"is damaged: {error}") from error
    expected = told.pop("blake2b", None)
    if not verified and _digest(arrays, told) != expected:
        raise TornFile("is damaged: its content does not match its checksum")
    for name, value in facts.items():
        if told.get(name) != value:
            raise TornFile(f"belongs to another shard: {name} is {told.get(name)}, not {value}")
    return arrays


def _digest(arrays: Mapping[str, NDArray], facts: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(json.dumps(sorted(facts.items())).encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
