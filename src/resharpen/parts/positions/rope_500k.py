"""rope with base 500,000 instead of 10,000, so that most features rotate slowly (Grattafiori et al., 2024)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import positions
from resharpen.parts.positions.rope import rotated

LARGE_BASE = 500_000.0


@positions(on="queries_keys")
def rope_500k(q: Tensor, k: Tensor, p: Any) -> tuple[Tensor, Tensor]:
    return rotated(q, LARGE_BASE), rotated(k, LARGE_BASE)
