"""The shelf: every figure that can be asked for by name, at three scales."""

from __future__ import annotations

from dataclasses import dataclass

from resharpen.errors import unknown
from resharpen.experiments.spec import Experiment, Setting
from resharpen.models import PAPER_PLACEMENTS, PLACEMENTS, Minimal
from resharpen.tasks import SetComplement

SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Size:
    models: int
    steps: int
    checkpoints: int = 100


@dataclass(frozen=True)
class Entry:
    title: str
    settings: tuple[Setting, ...]
    placements: tuple[str, ...]
    sizes: dict[str, Size]
    """By scale. `paper` is the full protocol; what the others cut is the number of models and of steps."""

    def experiment(self, name: str, scale: str) -> Experiment:
        size, known = self.sizes[scale], self.settings[0].model.placements
        return Experiment(
            name=f"{name}-{scale}",
            settings=self.settings,
            placements={placement: known[placement] for placement in self.placements},
            models=size.models,
            steps=size.steps,
            checkpoints=size.checkpoints,
        )


def set_complement(*vocabularies: int) -> tuple[Setting, ...]:
    """The paper's grid: s = 1..8 for each vocabulary, the smallest models."""
    return tuple(Setting(SetComplement(v), s, Minimal.smallest(v)) for v in vocabularies for s in range(1, 9))


SHELF = {
    "fig1": Entry(
        "Set Complement, v = 9: TVD by training length and placement",
        set_complement(9),
        PAPER_PLACEMENTS,
        {"smoke": Size(16, 1_000), "laptop": Size(96, 20_000), "paper": Size(1_000, 1_000_000)},
    ),
    "fig5": Entry(
        "Set Complement, v = 16 and 25, as figure 1",
        set_complement(16, 25),
        PAPER_PLACEMENTS,
        {"smoke": Size(16, 200), "laptop": Size(32, 10_000), "paper": Size(1_000, 1_000_000)},
    ),
    "placements": Entry(
        "Ours: Set Complement, v = 9, all seven placements",
        set_complement(9),
        tuple(PLACEMENTS),
        {"smoke": Size(16, 500), "laptop": Size(96, 20_000), "paper": Size(1_000, 1_000_000)},
    ),
}


def take(name: str, scale: str) -> Experiment:
    """An experiment from the shelf."""
    if name not in SHELF:
        raise unknown("figure", name, SHELF)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return SHELF[name].experiment(name, scale)
