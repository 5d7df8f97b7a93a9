"""LayerNorm: (x - mean) / sqrt(variance + epsilon) * g + b (Ba et al., 2016)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import norm


@norm(g=learned("d", start=1.0), b=learned("d", start=0.0))
def layer(x: Tensor, p: Any) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered * (centered.square().mean(-1, keepdim=True) + p.rms_epsilon).rsqrt() * p.g + p.b
