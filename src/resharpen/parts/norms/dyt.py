"""Dynamic tanh instead of a norm: g tanh(a x) + b, one a, from 0.5 (Zhu et al., 2025)."""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import norm


@norm(a=learned(start=0.5), g=learned("d", start=1.0), b=learned("d", start=0.0))
def dyt(x: Tensor, p: Any) -> Tensor:
    return p.g * (p.a * x).tanh() + p.b
