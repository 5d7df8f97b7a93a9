"""Reading trained models with another attention: with other weights, and with nothing else changed."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import resharpen as rs
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.models import Minimal
from resharpen.tasks import SetComplement

OWN = """
import resharpen as rs

def halved(z, p):
    return z / 2

@rs.attention(output=halved)
def half(e, mask, p):
    return rs.masked_softmax(e, mask)

@rs.attention(hyperparameters={"sharpness": rs.Row(1.0, 9.0)})
def drawn(e, mask, p):
    return rs.masked_softmax(p.sharpness * e, mask)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory, own):
    setting = Setting(SetComplement(5), 3, Minimal(5, 4, 2, 3))
    variants = ["peri", "peri+log-n", "peri+gated", "peri+ssmax", f"peri+{own}:half", f"peri+{own}:drawn"]
    made = Experiment("x", (setting,), variants, models=2, steps=6, batch=8, checkpoints=2, engine="torch")
    return rs.run(made, tmp_path_factory.mktemp("rescoring") / "r", workers=1)


def read(store, attention: str):
    """What is found of which variants, and what is said of the others."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        table = rs.rescore(store, attention).join(store.table("models").select("model", "variant"), on="model")
    return table, [str(warning.message) for warning in said]


@pytest.mark.parametrize("attention", ["softmax", "log-n", "adaptive-temperature"])
def test_what_would_lose_more_than_its_weights_is_left_out(store, attention):
    table, said = read(store, attention)
    assert set(table["variant"]) == {"peri", "peri+log-n", "peri+drawn"}
    for variant, why in (("gated", "gated learned W_g"), ("ssmax", "ssmax learned s"), ("half", "half acts on")):
        (line,) = [line for line in said if f"variant 'peri+{variant}' is left out: {why}" in line]
        assert "\n" not in line
    assert len(said) == 3


@pytest.mark.parametrize(("variant", "attention"), [("peri", "softmax"), ("peri+log-n", "log-n")])
def test_with_its_own_attention_a_variant_has_its_own_scores(store, variant, attention):
    keys = ["model", "weights", "length", "metric"]
    trained = store.table("lengths").join(store.table("models").select("model", "variant"), on="model")
    expected = trained.filter(variant=variant, selection="best").sort(keys)
    found = read(store, attention)[0].filter(variant=variant).sort(keys)
    assert expected.height == found.height > 0
    assert np.allclose(expected["value"].fill_null(-1), found["value"].fill_null(-1), atol=1e-6)


def test_an_own_attention_with_an_output_is_read_as_it_was_trained(store, own):
    table, _ = read(store, f"{own}:half")
    assert "peri+half" in set(table["variant"])


def test_figures_go_on_without_them(store):
    with pytest.warns(UserWarning, match="left out"):
        assert set(rs.draw(store, attention="adaptive-temperature")) == {"figure"}


def test_what_has_to_be_drawn_has_to_be_trained_with(store, own):
    with pytest.raises(rs.UserError, match="'drawn' draws sharpness: models must be trained with it"):
        rs.rescore(store, f"{own}:drawn")


def test_nothing_that_can_be_read_is_an_error(tmp_path):
    setting = Setting(SetComplement(5), 3, Minimal(5, 4, 2, 3))
    made = Experiment("x", (setting,), ["peri+gated"], models=1, steps=2, batch=4, checkpoints=1, engine="torch")
    gated = rs.run(made, tmp_path / "r", workers=1)
    with pytest.raises(rs.UserError, match=r"no finished variant of .* can be scored with 'softmax': gated learned"):
        rs.rescore(gated, "softmax")
