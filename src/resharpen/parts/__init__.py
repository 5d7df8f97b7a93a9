"""What a variant is made of: where norms stand, what they do, attention, positions; one catalogue each."""

from __future__ import annotations

from resharpen import own
from resharpen.parts.attention import ATTENTIONS
from resharpen.parts.norms import NORMS
from resharpen.parts.part import Attention, Norm, Part, Positions
from resharpen.parts.parts import Parts
from resharpen.parts.placement import PAPER_PLACEMENTS, PLACEMENTS, POSITIONS, STUDIED_PLACEMENTS, WHENCE, Placement
from resharpen.parts.positions import POSITION_ENCODINGS

__all__ = [
    "ATTENTIONS",
    "NORMS",
    "PAPER_PLACEMENTS",
    "PLACEMENTS",
    "POSITIONS",
    "POSITION_ENCODINGS",
    "STUDIED_PLACEMENTS",
    "WHENCE",
    "Attention",
    "Norm",
    "Part",
    "Parts",
    "Placement",
    "Positions",
    "find_attention",
    "find_norm",
    "find_positions",
]


def find_norm(name: str) -> Norm:
    return own.find_in(NORMS, Norm, "norm", name)


def find_attention(name: str) -> Attention:
    return own.find_in(ATTENTIONS, Attention, "attention", name)


def find_positions(name: str) -> Positions:
    return own.find_in(POSITION_ENCODINGS, Positions, "positions", name)
