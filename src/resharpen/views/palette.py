"""One color per variant and one for BEMA, the same in all figures and in the report.

Training weights are shown in the color of their variant, BEMA weights always in gray, which no variant has. Colors are
Okabe and Ito's: distinguishable for the color-blind, and by lightness in gray print.
"""

from __future__ import annotations

from collections.abc import Iterable

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BROWN = "#E69F00", "#56B4E9", "#7A5C00"
BEMA = "#8B939B"
KNOWN = {
    "pre": BLUE,
    "post": VERMILION,
    "peri": GREEN,
    "peri-init": PURPLE,
    "none": ORANGE,
    "out": SKY,
    "pre-final": BROWN,
}
"""Variants of the paper and of its ablations keep their color in every run."""
ON_DARK = {BLUE: "#3A8BD0", SKY: "#9ADBFF", VERMILION: "#F0803C", GREEN: "#2FC296", BROWN: "#B8923A"}
"""The same hues, lighter, for a dark background; the others are light enough."""


def variant_colors(variants: Iterable[str]) -> dict[str, str]:
    """The color of each variant: its own if it is known, else the next one that is not taken.

    >>> variant_colors(["pre", "pre+mine"])
    {'pre': '#0072B2', 'pre+mine': '#D55E00'}
    >>> variant_colors(["pre+mine", "pre"])
    {'pre+mine': '#D55E00', 'pre': '#0072B2'}
    """
    names = list(variants)
    colors = list(KNOWN.values())
    free = [color for color in colors if color not in {KNOWN.get(name) for name in names}] or colors
    others = [name for name in names if name not in KNOWN]
    given = {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: KNOWN.get(name) or given[name] for name in names}
