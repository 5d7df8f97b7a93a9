"""Nothing is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resharpen.parts.part import Dropout

if TYPE_CHECKING:
    from torch import Tensor


def _nothing(x: Tensor, p: Any) -> Tensor:
    return x


no_dropout = Dropout("no-dropout", _nothing, on=())
