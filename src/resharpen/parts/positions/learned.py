"""E[t] + P[i], one learned vector per position i up to the task's longest input (Radford et al., 2019).

P is initialized like an embedding and does not decay, as in GPT-2. Positions beyond the training length stay at their
random initialization.
"""

from __future__ import annotations

from typing import Any

from resharpen.errors import UserError
from resharpen.lazy import Tensor
from resharpen.parts import parameter
from resharpen.parts.part import positions


@positions(on="embedding", by_length=True, P=parameter.learned("longest", "d", role="embedding"))
def learned(x: Tensor, p: Any) -> Tensor:
    return x + p.P[..., : check_length(x, p), :]


def check_length(x: Tensor, p: Any) -> int:
    """The number of tokens; UserError if it is larger than the table of positions."""
    if x.shape[-2] > p.P.shape[-2]:
        raise UserError(f"an input of {x.shape[-2]} tokens: there are only {p.P.shape[-2]} learned positions")
    return x.shape[-2]
