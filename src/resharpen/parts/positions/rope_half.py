"""rope on the first half of a head's features only; the others have no positions (Black et al., 2022).

Half-split within that half, frequencies base^(-2i / (d/2)), as with `rotary_pct = 0.5` in GPT-NeoX, whose default is a
quarter.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.part import positions
from resharpen.parts.positions.rope import rotated


@positions(on="queries_keys")
def rope_half(q: Tensor, k: Tensor, p: Any) -> tuple[Tensor, Tensor]:
    return _half(q), _half(k)


def _half(x: Tensor) -> Tensor:
    import torch

    turned, rest = x.chunk(2, -1)
    return torch.cat([rotated(turned), rest], -1)
