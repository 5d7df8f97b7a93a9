"""What a model of the user's own takes: a part that it does not go by would be a label without a meaning."""

from __future__ import annotations

import re

import pytest

import resharpen as rs
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import Variant
from resharpen.models import Minimal, Retriever, Transformer
from resharpen.models.model import Misfit
from resharpen.parts import NORMS, Parts, Placement
from resharpen.tasks import SetComplement

OWN = """
from dataclasses import dataclass
from typing import ClassVar

import resharpen as rs
from resharpen.parts import Placement

@dataclass(frozen=True)
class Bag(rs.Model):
    vocabulary: int

    def parameters(self, parts):
        return {"E": rs.learned(self.vocabulary, self.vocabulary)}

    def logits(self, theta, tokens, parts, hyper, record=None):
        return rs.embedding(theta["E"], tokens).cumsum(2)

class Attends(Bag):
    takes = ("attention",)

class Normed(Bag):
    placements = {"none": Placement(), "pre": Placement(block_in=True)}
    takes = ("norm",)

class Anywhere(Bag):
    takes = ("placement", "norm", "attention", "positions")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "own.py"
    path.write_text(OWN)

    def experiment(text: str) -> Experiment:
        variant = f"{path}:{text}"
        return Experiment("x", (Setting(SetComplement(4), 2),), [variant], models=1, steps=1, batch=2, engine="torch")

    return experiment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Bag+log-n", "Bag has no attention in its `takes`: 'log-n' would have no effect; softmax fits"),
        ("Bag+layer", "Bag has no norm in its `takes`: 'layer' would have no effect; rms fits"),
        ("Bag+rope", "Bag has no positions in its `takes`: 'rope' would have no effect; nope fits"),
        ("Bag+pre", "a Bag has no placement 'pre'; none fits"),
        ("Attends+layer", "Attends has no norm in its `takes`: 'layer' would have no effect; rms fits"),
        ("Normed+pre+ssmax", "Normed has no attention in its `takes`"),
        ("Normed+peri", "a Normed has no placement 'peri'; none, pre fit"),
    ],
)
def test_what_it_does_not_take_is_refused(made, text, message):
    with pytest.raises(rs.UserError, match=re.escape(message)) as error:
        made(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Bag", "Bag+none"),
        ("Bag+sgd", "Bag+none+sgd"),
        ("Attends+log-n", "Attends+none+log-n"),
        ("Normed+pre+layer", "Normed+pre+layer"),
        ("Anywhere+layer+ssmax+rope", "Anywhere+none+layer+ssmax+rope"),
    ],
)
def test_what_it_takes_is_not(made, text, name):
    assert list(made(text).variants) == [name]


def test_nor_is_a_placement_of_the_user_s_taken_by_itself(made):
    for text, fits in (("Bag", False), ("Normed", False), ("Anywhere", True)):
        (variant,) = made(text).variants.values()
        model = made(text).settings[0].model_of(variant)
        own = Variant(placement=Placement(residual=True), model=variant.model)
        if fits:
            own.parts(model)
            continue
        with pytest.raises(rs.UserError, match="has no placement in its `takes`: this placement would have no effect"):
            own.parts(model)


@pytest.mark.parametrize("model", [Minimal(5, 4, 2, 3), Transformer(5), Retriever()], ids=lambda model: model.kind)
def test_a_norm_function_needs_a_norm(model):
    with pytest.raises(Misfit, match="there is no norm in this placement: 'layer' would have no effect"):
        model.check(Parts(Placement(), norm=NORMS["layer"]))
    model.check(Parts(Placement(block_out=True), norm=NORMS["layer"]))
