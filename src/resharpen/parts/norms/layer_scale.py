"""At block_out: g y, one learned g per feature, from 0.1 (Touvron et al., 2021)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import norm


@norm(sites=("block_out",), g=learned("d", start=0.1))
def layer_scale(y: Tensor, p: Any) -> Tensor:
    return p.g * y
