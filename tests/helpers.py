"""Small problems and ensembles for tests."""

from __future__ import annotations

import numpy as np

from resharpen.engines.base import Ensemble, Problem
from resharpen.experiments.spec import Setting
from resharpen.models import PLACEMENTS, Minimal
from resharpen.optim.hyperparameters import TABLE, draw, narrowed
from resharpen.tasks import SetComplement


def make_problem(placement: str, v: int = 5, s: int = 3, d_k: int = 2, batch: int = 6, steps: int = 50) -> Problem:
    model = Minimal(v, d=v + 1, d_k=d_k, d_v=v - 1)
    name = Setting(SetComplement(v), s, model).name
    return Problem(SetComplement(v), model, PLACEMENTS[placement], s, batch, steps, seed=3, setting=name)


def make_ensemble(problem: Problem, n: int = 3, **fixed: float) -> Ensemble:
    draws = np.arange(n)
    rows = {**TABLE, **{name: narrowed(name, value) for name, value in fixed.items()}}
    return Ensemble(draws, draw(rows, problem.seed, problem.setting, draws))
