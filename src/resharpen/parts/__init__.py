"""Parts of a network: norm placements, norm functions, attention, positions, dropout; one catalog each."""

from __future__ import annotations

from resharpen import own
from resharpen.parts.attention import ATTENTIONS
from resharpen.parts.dropout import DROPOUTS
from resharpen.parts.norms import NORMS
from resharpen.parts.part import Attention, Dropout, Norm, Part, Positions
from resharpen.parts.parts import Parts
from resharpen.parts.placement import (
    PAPER_PLACEMENTS,
    PLACEMENT_SOURCES,
    PLACEMENTS,
    SITES,
    STUDIED_PLACEMENTS,
    Placement,
)
from resharpen.parts.positions import POSITIONS


def find_norm(name: str) -> Norm:
    return own.find_in(NORMS, Norm, "norm", name)


def find_attention(name: str) -> Attention:
    return own.find_in(ATTENTIONS, Attention, "attention", name)


def find_positions(name: str) -> Positions:
    return own.find_in(POSITIONS, Positions, "positions", name)


def find_dropout(name: str) -> Dropout:
    return own.find_in(DROPOUTS, Dropout, "dropout", name)
