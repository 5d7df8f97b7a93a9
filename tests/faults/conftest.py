"""Small runs to be damaged: one finished, one with every shard under way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from runs import STOP_AT_ONCE

from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import run
from resharpen.experiments.running.training import Asked, Trainer
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.models import Minimal
from resharpen.tasks import SetComplement

SPEC = Experiment(
    name="tiny",
    settings=tuple(Setting(SetComplement(4), s, Minimal(4, 3, 1, 3)) for s in (1, 2)),
    variants=["pre", "peri"],  # pyright: ignore[reportArgumentType]
    models=3,
    steps=12,
    batch=8,
    checkpoints=3,
    engine="torch",
)


@pytest.fixture
def spec() -> Experiment:
    return SPEC


@pytest.fixture(scope="session")
def _finished(tmp_path_factory) -> Path:
    return run(SPEC, tmp_path_factory.mktemp("finished") / "r", workers=1).directory


@pytest.fixture(scope="session")
def _under_way(tmp_path_factory) -> Path:
    store = run(SPEC, tmp_path_factory.mktemp("stopped") / "r", workers=1, observer=STOP_AT_ONCE)
    for shard in store.shards():
        looks = iter(range(100))
        trainer = Trainer(SPEC, shard, store.files(shard), asked=lambda looks=looks: Asked(stop=next(looks) > 2))
        assert not trainer.run()
    return store.directory


@pytest.fixture
def finished(_finished, tmp_path) -> Run:
    """A copy of a finished run."""
    return Run(Path(shutil.copytree(_finished, tmp_path / "finished")))


@pytest.fixture
def under_way(_under_way, tmp_path) -> Run:
    return Run(Path(shutil.copytree(_under_way, tmp_path / "under_way")))


@pytest.fixture
def whole(_finished) -> Run:
    """The finished run itself, to compare with."""
    return Run(_finished)
