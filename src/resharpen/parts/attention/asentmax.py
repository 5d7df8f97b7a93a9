"""entmax((1 + b (log n)^g) e) over n keys, b and g learned functions of the query's x (Vasylenko et al., 2025).

b = softplus(w_b.x), g = 2 tanh(w_g.x), one pair of vectors per head, from 0. Position biases are added unscaled, as in
the authors' code, which has log(n + 1); here n keys are seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resharpen.parts.attention.entmax import masked_entmax
from resharpen.parts.parameter import learned
from resharpen.parts.part import attention

if TYPE_CHECKING:
    from torch import Tensor


def scale(p: Any) -> Tensor:
    from torch.nn.functional import softplus

    x_MxNx1xQxD = p.x[:, :, None]
    b, g = softplus(x_MxNx1xQxD @ p.w_b), 2 * (x_MxNx1xQxD @ p.w_g).tanh()
    # one key has all the weight whatever its scale, and 0^g has no gradient: n = 1 counts as 2
    return 1 + b * p.n.clamp(min=2).log() ** g


@attention(scale=scale, w_b=learned("heads", "d", start=0.0), w_g=learned("heads", "d", start=0.0))
def asentmax(e: Tensor, mask: Tensor, p: Any) -> Tensor:
    return masked_entmax(e, mask)
