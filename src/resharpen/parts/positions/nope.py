"""No positions: a causal model can infer order only from the mask (Kazemnejad et al., 2023)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import Positions


def _nothing(x: Tensor, p: Any) -> Tensor:
    return x


nope = Positions("nope", _nothing, on="nothing")
