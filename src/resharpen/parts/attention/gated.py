"""softmax, and what the heads gather times sigma(x W_g) before W_O, x what the query reads (Qiu et al., 2025).

Where there is a norm on the heads' output the gate comes after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resharpen.parts.parameter import learned
from resharpen.parts.part import attention, masked_softmax

if TYPE_CHECKING:
    from torch import Tensor


def gate(z: Tensor, p: Any) -> Tensor:
    return z * (p.x @ p.W_g).sigmoid()


@attention(softmax=True, output=gate, W_g=learned("d", "d_heads"))
def gated(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_softmax(e, mask)
