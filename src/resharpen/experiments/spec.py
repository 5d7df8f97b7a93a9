"""Experiment specs: what to train, as frozen dataclasses. A spec says everything that can change a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np

from resharpen.engines.base import GROUP, Ensemble, Problem
from resharpen.errors import UserError, unknown
from resharpen.experiments.families import usual_model
from resharpen.models import Model, Placement
from resharpen.models.remedies import TRAINABLE
from resharpen.optim.hyperparameters import TABLE, Row, draw
from resharpen.tasks import Task


@dataclass(frozen=True)
class Setting:
    """Task, training length and model sizes: what the random streams are keyed by, the placement apart."""

    task: Task
    train_length: int
    model: Model

    def __post_init__(self) -> None:
        self.task.check_train_length(self.train_length)

    @property
    def name(self) -> str:
        """`sct-v9-s2`, and the model sizes that are not the usual ones: `sct-v9-s2-d16`."""
        usual = usual_model(self.task)
        sizes = [(size.name, getattr(self.model, size.name)) for size in fields(self.model)]  # pyright: ignore[reportArgumentType]
        unusual = [f"-{name}{size}" for name, size in sizes if size != getattr(usual, name)]
        return f"{self.task.name}-s{self.train_length}" + "".join(unusual)


@dataclass(frozen=True)
class Shard:
    """One setting and placement, and consecutive draws of one group: the unit of work and of resumption."""

    setting: Setting
    placement: str
    first: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.setting.name}/{self.placement}/{self.first:05d}-{self.first + self.count - 1:05d}"

    @property
    def draw_M(self) -> np.ndarray:
        return np.arange(self.first, self.first + self.count)

    @property
    def model_ids(self) -> list[str]:
        return [f"{self.setting.name}/{self.placement}/{i}" for i in self.draw_M]


@dataclass(frozen=True)
class Experiment:
    name: str
    settings: tuple[Setting, ...]
    placements: Mapping[str, Placement]
    models: int
    steps: int
    batch: int = 256
    checkpoints: int = 100
    seed: int = 0
    attention: str = "softmax"
    """The attention remedy that models are trained and scored with."""
    engine: str = "auto"
    hyperparameters: Mapping[str, Row] = field(default_factory=lambda: dict(TABLE))

    def __post_init__(self) -> None:
        for name in ("models", "steps", "batch", "checkpoints"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.seed < 0:
            raise UserError(f"seed = {self.seed}: must not be negative")
        if not self.settings or not self.placements:
            raise UserError("an experiment needs at least one training length and one placement")
        if len({setting.task.kind for setting in self.settings}) > 1:
            raise UserError("an experiment has one kind of task")
        for name, placement in self.placements.items():
            try:
                self.settings[0].model.gains(placement)
            except ValueError as error:
                raise UserError(f"placement '{name}': {error}") from error
        if self.attention not in TRAINABLE:
            raise unknown("attention", self.attention, TRAINABLE)
        if self.engine not in ("auto", "torch", "native"):
            raise unknown("engine", self.engine, ("auto", "torch", "native"))

    def checkpoint_steps(self) -> list[int]:
        """Evenly spaced, the last at step T; fewer where there are not so many steps."""
        return sorted({round(self.steps * (i + 1) / self.checkpoints) for i in range(self.checkpoints)} - {0})

    def shards(self, extents: Iterable[int] = ()) -> list[Shard]:
        """All shards, group by group so that a run in progress is balanced over settings and placements.

        `extents` are the numbers of models that a growing run had earlier: a shard ends there too, so that what
        was trained stays a whole shard.
        """
        cuts = sorted({*range(0, self.models, GROUP), *extents, self.models})
        return [
            Shard(setting, placement, first, end - first)
            for first, end in pairwise(cuts)
            for setting in self.settings
            for placement in self.placements
        ]

    def problem(self, shard: Shard) -> Problem:
        return Problem(
            task=shard.setting.task,
            model=shard.setting.model,
            placement=self.placements[shard.placement],
            train_length=shard.setting.train_length,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            setting=shard.setting.name,
            attention=self.attention,
        )

    def ensemble(self, shard: Shard) -> Ensemble:
        return Ensemble(shard.draw_M, draw(self.hyperparameters, self.seed, shard.setting.name, shard.draw_M))

    def with_changes(
        self,
        models: int | None = None,
        steps: int | None = None,
        seed: int | None = None,
        norms: Iterable[str] | None = None,
        engine: str | None = None,
        attention: str | None = None,
    ) -> Experiment:
        """The same experiment with what the command line changes."""
        given = {"models": models, "steps": steps, "seed": seed, "engine": engine, "attention": attention}
        changed = replace(self, **{name: value for name, value in given.items() if value is not None})
        return changed if norms is None else replace(changed, placements=self._choose(norms))

    def _choose(self, norms: Iterable[str]) -> dict[str, Placement]:
        known = {**self.settings[0].model.placements, **self.placements}
        for name in norms:
            if name not in known:
                raise unknown("placement", name, known)
        return {name: known[name] for name in norms}
