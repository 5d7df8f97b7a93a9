"""In training a share r of attention weights and block outputs is set to 0, the rest divided by 1 - r (Srivastava et
al., 2014).

A block's output is dropped after its norm, if it has one: a norm would undo the division by 1 - r.
"""

from __future__ import annotations

from typing import Any

from resharpen.lazy import Tensor
from resharpen.optim.hyperparameters import Row
from resharpen.parts.part import dropout as declare


@declare(hyperparameters={"dropout_rate": Row(0.0, 0.3, scale="linear", at_most=0.99, may_be_zero=True)})
def dropout(x: Tensor, p: Any) -> Tensor:
    kept = p.uniform(*x.shape[2:]) >= p.dropout_rate
    return (x / (1 - p.dropout_rate)).where(kept, 0.0)
