"""entmax((1 + b (log n)^g) e) over n keys, b and g learned functions of the query's x (Vasylenko et al., 2025).

b = softplus(w_b.x + c_b), g = 2 tanh(w_g.x + c_g), one pair of each per head. w and c_g start at 0, c_b at -3: the
scale starts at 1 + softplus(-3) = 1.05, because training often fails with a larger one. Position biases are added
unscaled. The authors combine it with the positions `nape`. Their code uses log(n + 1), here log(n), and scales only the
heads of `nape` without a bias, here all heads.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.parts.attention.entmax import masked_entmax
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention


def scale(p: Any) -> Tensor:
    from torch.nn.functional import softplus

    x_MxNx1xQxD = p.x[:, :, None]
    b, g = softplus(x_MxNx1xQxD @ p.w_b + p.c_b), 2 * (x_MxNx1xQxD @ p.w_g + p.c_g).tanh()
    # a single key has weight 1 at any scale, and 0^g has no gradient: n = 1 counts as 2
    return 1 + b * p.n.clamp(min=2).log() ** g


@attention(
    scale=scale,
    w_b=learned("heads", "d", start=0.0),
    c_b=learned("heads", start=-3.0),
    w_g=learned("heads", "d", start=0.0),
    c_g=learned("heads", start=0.0),
)
def asentmax(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_entmax(e, mask)
