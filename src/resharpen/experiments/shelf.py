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


@dataclass(frozen=True)
class Entry:
    title: str
    vocabularies: tuple[int, ...]
    placements: tuple[str, ...]
    sizes: dict[str, Size]
    """By scale. `paper` is the full protocol; what the others cut is the number of models and of steps."""

    def experiment(self, name: str, scale: str) -> Experiment:
        tasks = [SetComplement(v) for v in self.vocabularies]
        return Experiment(
            name=f"{name}-{scale}",
            settings=tuple(Setting(task, s, Minimal.smallest(task.v)) for task in tasks for s in range(1, 9)),
            placements={placement: PLACEMENTS[placement] for placement in self.placements},
            models=self.sizes[scale].models,
            steps=self.sizes[scale].steps,
        )


SHELF = {
    "fig1": Entry(
        "Set Complement, v = 9: TVD by training length and placement",
        (9,),
        PAPER_PLACEMENTS,
        {"smoke": Size(16, 1_000), "laptop": Size(96, 20_000), "paper": Size(1_000, 1_000_000)},
    ),
    "fig5": Entry(
        "Set Complement, v = 16 and 25, as figure 1",
        (16, 25),
        PAPER_PLACEMENTS,
        {"smoke": Size(16, 200), "laptop": Size(32, 10_000), "paper": Size(1_000, 1_000_000)},
    ),
    "placements": Entry(
        "Ours: Set Complement, v = 9, all seven placements",
        (9,),
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
