"""Circuits of a run with code of the user's own: measured as what it is, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

import resharpen as rs
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import parse_sum
from resharpen.models import Minimal
from resharpen.tasks import SetComplement
from resharpen.views.report.gather import Gathered
from resharpen.views.report.inside import inside

OWN = """
from dataclasses import dataclass

import torch

import resharpen as rs
from resharpen.models import Minimal

@rs.norm(g=rs.learned("d", start=1.0))
def rms(x, p):
    return p.g * x / (1 + x.abs().mean(-1, keepdim=True))

@rs.attention(hyperparameters={"sharpness": rs.Row(1.0, 9.0)})
def drawn(e, mask, p):
    return rs.masked_softmax(p.sharpness * e, mask)

@rs.attention()
def log_of_place(e, mask, p):
    return rs.masked_softmax(torch.arange(1, e.shape[-2] + 1, dtype=e.dtype)[:, None].log() * e, mask)

@dataclass(frozen=True)
class Doubled(Minimal):
    def logits(self, *args, **kwargs):
        return 2 * super().logits(*args, **kwargs)
"""
SETTING = Setting(SetComplement(5), 3, Minimal(5, 4, 2, 3))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    sums = {"peri": "peri", "peri+log-n": "peri+log-n", "doubled": f"peri+{path}:Doubled"}
    sums |= {f"own-{name}": f"peri+{path}:{name}" for name in ("rms", "drawn", "log_of_place")}
    variants = {name: parse_sum(text) for name, text in sums.items()}
    made = Experiment("x", (SETTING,), variants, models=3, steps=6, batch=8, checkpoints=2, engine="torch")
    return rs.run(made, tmp_path_factory.mktemp("inspection") / "r", workers=1)


def test_only_what_is_known_is_opened(store):
    """Not a norm that is only called `rms`, an attention that sees order, or a network derived from ours."""
    found = rs.inspect(store, SETTING)
    assert list(found.tables) == ["peri", "peri+log-n", "own-drawn"]
    with pytest.raises(rs.UserError, match="attention that sees a set"):
        found.find(f"{SETTING.name}/own-log_of_place/0")


def test_a_part_with_a_hyperparameter_of_its_own_is_measured_with_it(store):
    """The scores of the circuits are those of the run."""
    table = rs.inspect(store, SETTING).tables["own-drawn"]
    lengths = store.table("lengths").filter(weights="train", selection="best", metric="tvd")
    for i in range(3):
        rows = lengths.filter(model=f"{SETTING.name}/own-drawn/{i}").sort("length")
        np.testing.assert_allclose(table["tvd"][i], rows["value"], atol=1e-5)


def test_so_it_is_in_a_report(store):
    gathered = Gathered(store)
    found = inside(gathered, np.zeros(gathered.models.height))
    assert [len(group["models"]) for group in found.groups] == [9]
