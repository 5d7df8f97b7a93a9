"""What takes long to import, imported when it is first used: `--help` and a bad argument answer at once.

torch itself is not here, because `torch.compile` could not follow what stands for it; `Tensor` is for annotations only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "pl", "scipy"]


class Lazy:
    """Stands for a module, which is imported when something in it is asked for."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import polars as pl
    import scipy.optimize
    import scipy.special
    import scipy.stats
    from torch import Tensor
else:
    Tensor, pl, scipy = Any, Lazy("polars"), Lazy("scipy")
