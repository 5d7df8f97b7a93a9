"""RMSNorm (Zhang and Sennrich, 2019), the paper's: x * (mean(x^2) + epsilon)^(-1/2) * gain."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import norm


@norm(g=learned("d", start=1.0))
def rms(x: Tensor, p: Any) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + p.rms_epsilon).rsqrt() * p.g
