"""Facts and arrays as one text for a script tag, compressed and in base64, so that nothing in it is markup.

Layout, which `page/data.js` reads: length of the facts (4 bytes), facts (JSON), arrays, each aligned to eight bytes.
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


def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> str:
    described, data = {}, b""
    for name, array in arrays.items():
        described[name] = {"type": array.dtype.name, "at": len(data), "shape": array.shape}
        data += _padded(array.tobytes())
    header = json.dumps({**finite(facts), "arrays": described}, allow_nan=False).encode()
    return compressed(_padded(len(header).to_bytes(4, "little") + header) + data)


def compressed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, compresslevel=9, mtime=0)).decode()


def finite(data: Any) -> Any:
    """Data for JSON, with None instead of nan and infinity, such as the unbounded end of an interval."""
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, float | np.floating):
        return float(data) if math.isfinite(data) else None
    return int(data) if isinstance(data, np.integer) else data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
