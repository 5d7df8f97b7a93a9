"""All parts of a variant that a network is built with: one object goes wherever they go."""

from __future__ import annotations

from dataclasses import dataclass

from resharpen.optim.hyperparameters import Row
from resharpen.parts.attention.softmax import softmax
from resharpen.parts.norms.rms import rms
from resharpen.parts.part import Attention, Norm, Positions
from resharpen.parts.placement import Placement
from resharpen.parts.positions.nope import nope


@dataclass(frozen=True)
class Parts:
    placement: Placement
    norm: Norm = rms
    attention: Attention = softmax
    positions: Positions = nope

    @property
    def hyperparameters(self) -> dict[str, Row]:
        return {**self.norm.hyperparameters, **self.attention.hyperparameters, **self.positions.hyperparameters}
