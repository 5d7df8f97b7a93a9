"""Shared by all tests: one thread for torch, a small experiment."""

from __future__ import annotations

import pytest
import torch
from resharpen.experiments.spec import Experiment, Setting

from resharpen.models import PLACEMENTS, Minimal
from resharpen.tasks import SetComplement

torch.set_num_threads(1)


@pytest.fixture
def tiny() -> Experiment:
    """Two settings and two placements at v = 4, a few steps: trained in well under a second."""
    task = SetComplement(4)
    return Experiment(
        name="tiny",
        settings=tuple(Setting(task, s, Minimal(4, 3, 1, 3)) for s in (1, 2)),
        placements={name: PLACEMENTS[name] for name in ("pre", "peri")},
        models=16,
        steps=12,
        batch=8,
        checkpoints=3,
        engine="torch",
    )


@pytest.fixture(params=["torch", "native"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param
