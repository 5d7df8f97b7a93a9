"""softmax, with the output of the heads times sigma(x W_g) before W_O, x the input of the query (Qiu et al., 2025).

If there is a norm on the output of the heads, the gate comes after it.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention, masked_softmax


def gate(z: Tensor, p: Any) -> Tensor:
    return z * (p.x @ p.W_g).sigmoid()


@attention(softmax=True, output=gate, W_g=learned("d", "d_heads"))
def gated(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e, mask)
