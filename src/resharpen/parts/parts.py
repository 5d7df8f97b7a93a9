"""All parts of a variant, as one object."""

from __future__ import annotations

from dataclasses import dataclass, replace

from resharpen.optim.hyperparameters import Row
from resharpen.parts.attention.softmax import softmax
from resharpen.parts.dropout.no_dropout import no_dropout
from resharpen.parts.moment import Moment
from resharpen.parts.norms.rms import rms
from resharpen.parts.part import Attention, Dropout, Norm, Positions
from resharpen.parts.placement import Placement
from resharpen.parts.positions.nope import nope

DRAWN_FROM = 4
"""Randomized positions are drawn from this many times the longest input."""


@dataclass(frozen=True)
class Parts:
    placement: Placement
    norm: Norm = rms
    attention: Attention = softmax
    positions: Positions = nope
    dropout: Dropout = no_dropout
    norm_at: tuple[tuple[str, Norm], ...] = ()
    """Sites with another norm function than `norm`, and that function."""
    moment: Moment | None = None
    """The current training step; None when a model is scored."""
    longest: int | None = None
    """Tokens of the longest input of the task, trained on or scored; None if the task does not define it."""

    @property
    def in_training(self) -> Parts:
        """What models train with: softmax in place of an attention that is only to read trained models with."""
        return self if self.attention.trains else replace(self, attention=softmax)

    def norm_of(self, site: str) -> Norm:
        return dict(self.norm_at).get(site, self.norm)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that the shape of a learned parameter may contain, besides those of the model."""
        return {} if self.longest is None else {"longest": self.longest, "drawn_from": DRAWN_FROM * self.longest}

    @property
    def hyperparameters(self) -> dict[str, Row]:
        every = (self.norm, *dict(self.norm_at).values(), self.attention, self.positions, self.dropout)
        return {name: row for part in every for name, row in part.hyperparameters.items()}
