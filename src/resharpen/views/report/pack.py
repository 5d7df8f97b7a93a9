"""Facts and arrays as one text that goes into a script tag: compressed, in base64, so that nothing in it is markup.

    length of the facts (4 bytes), facts (JSON), and every array from the next multiple of eight on

`page/data.js` reads it.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 8


def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> str:
    described, pieces, at = {}, [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        described[name] = {"type": array.dtype.name, "at": at, "shape": array.shape}
        pieces.append(_padded(data))
        at += len(pieces[-1])
    header = json.dumps({**finite(facts), "arrays": described}, allow_nan=False).encode()
    return compressed(_padded(len(header).to_bytes(4, "little") + header) + b"".join(pieces))


def compressed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, compresslevel=9, mtime=0)).decode()


def finite(data: Any) -> Any:
    """Plain data that JSON knows: null for what is not a number, and for ends that an interval does not have."""
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, float | np.floating):
        return float(data) if math.isfinite(data) else None
    return int(data) if isinstance(data, np.integer) else data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNED)
