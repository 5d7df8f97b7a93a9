"""Shared by all tests: one thread for torch, a small experiment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import Variant
from resharpen.models import Minimal
from resharpen.tasks import SetComplement

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _state_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests train with is not code that their account trusts."""
    directory = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(directory)
    return directory


@pytest.fixture
def tiny() -> Experiment:
    """Two settings and two variants at v = 4, a few steps: trained in well under a second."""
    task = SetComplement(4)
    return Experiment(
        name="tiny",
        settings=tuple(Setting(task, s, Minimal(4, 3, 1, 3)) for s in (1, 2)),
        variants={name: Variant(name) for name in ("pre", "peri")},
        models=16,
        steps=12,
        batch=8,
        checkpoints=3,
        engine="torch",
    )


@pytest.fixture(params=["torch", "native"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param
