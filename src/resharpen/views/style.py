"""The style of all figures: matplotlib's defaults, independent of the user's settings."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextlib.contextmanager
def our_style() -> Iterator[None]:
    """Context or decorator in which a matplotlibrc has no effect, and dollar signs in names do not start formulas."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False
        yield


@our_style()
def picture(figure: Figure, kind: str) -> bytes:
    """A figure as the content of a file: `png`, `svg` or `pdf`. Text in the last two stays text, so that it can be
    searched and edited."""
    import matplotlib

    matplotlib.rcParams.update({"svg.fonttype": "none", "pdf.fonttype": 42})
    data = io.BytesIO()
    figure.savefig(data, format=kind, dpi="figure" if kind == "png" else 300)
    return data.getvalue()
