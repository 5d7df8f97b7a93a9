"""Libraries that take long to import, imported when they are first used: `--help` and a bad argument answer at once.

torch is not among them: `torch.compile` could not follow what stands for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["pl", "scipy"]


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
else:
    pl, scipy = Lazy("polars"), Lazy("scipy")
