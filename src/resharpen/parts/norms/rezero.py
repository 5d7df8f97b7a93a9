"""At block_out: a y, one learned number a, from 0 (Bachlechner et al., 2020)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import norm


@norm(sites=("block_out",), a=learned(start=0.0))
def rezero(y: Tensor, p: Any) -> Tensor:
    return p.a * y
