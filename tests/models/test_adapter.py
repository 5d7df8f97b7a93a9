"""Modules of the user's own: how they are made, what their parameters are, what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from resharpen import own
from resharpen.errors import UserError
from resharpen.experiments.specs.spec import check_own_module
from resharpen.models import find_model
from resharpen.models.adapter import ModuleModel, init_key, trained
from resharpen.parts import Parts, Placement
from resharpen.tasks import MaxRetrieval, SetComplement

NETS = Path(__file__).parent.parent / "nets.py"
PARTS = Parts(Placement())


def model_of(name: str, vocabulary: int = 5, **sizes: int) -> ModuleModel:
    found = find_model(own.refer(f"{NETS}:{name}"))
    assert issubclass(found, ModuleModel)
    return found(vocabulary, **sizes)


def test_sizes_are_the_whole_numbers_that_a_module_takes():
    assert [field.name for field in fields(model_of("Encoder"))] == ["vocabulary", "d", "heads", "layers", "longest"]
    assert model_of("GRU", d=7).make(init_key(0, "x"), 0).gru.hidden_size == 7
    assert model_of("small_lstm").make(init_key(0, "x"), 0).lstm.hidden_size == 4
    assert model_of("Sets").reads == "items"
    assert find_model(own.refer(f"{NETS}:LSTM")) is type(model_of("LSTM"))


def test_a_draw_starts_the_same_whatever_else_is_drawn():
    """Wherever torch's generator stands, in any group, with or without the other draws; and it stays where it is."""
    model = model_of("LSTM")
    together = model.initial(3, "setting", np.arange(16, 19), PARTS)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    alone = model.initial(3, "setting", np.array([17]), PARTS)
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, x in alone.items():
        assert np.array_equal(x[0], together[name][1])
        assert not np.array_equal(x[0], together[name][0])
    other = model.initial(4, "setting", np.array([17]), PARTS)
    assert not np.array_equal(other["out.weight"], alone["out.weight"])


def test_a_module_starts_as_it_does_by_itself():
    """nn.LSTM and nn.Linear are uniform up to 1 / sqrt(d), nn.Embedding is normal: nothing is drawn over."""
    started = model_of("LSTM", d=16).initial(0, "x", np.arange(16), PARTS)
    for name in ("lstm.weight_ih_l0", "lstm.bias_hh_l0", "out.weight"):
        assert 0.9 / 4 < np.abs(started[name]).max() <= 1 / 4
    assert 0.9 < started["embedding.weight"].std() < 1.1


def kinds(name: str, **sizes: int) -> dict[str, tuple[bool, bool, bool]]:
    found = model_of(name, **sizes).parameters(PARTS)
    return {key: (p.decays, p.inner, p.out_first) for key, p in found.items()}


NEITHER, MATRIX, OUTER = (False, False, False), (True, True, True), (True, False, False)


def test_what_decays_and_what_is_inner_goes_by_the_layer():
    assert kinds("LSTM", d=5) == {  # as wide as the vocabulary: shapes alone would not tell
        "embedding.weight": NEITHER,
        "lstm.weight_ih_l0": MATRIX,
        "lstm.weight_hh_l0": MATRIX,
        "lstm.bias_ih_l0": NEITHER,
        "lstm.bias_hh_l0": NEITHER,
        "out.weight": OUTER,
        "out.bias": NEITHER,
    }
    of_encoder = kinds("Encoder", layers=1)
    layer = "encoder.layers.0."
    matrices = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight")
    assert {name for name, what in of_encoder.items() if what == MATRIX} == {f"{layer}{name}" for name in matrices}
    assert of_encoder[f"{layer}norm1.weight"] == NEITHER
    assert kinds("Convolution") == {
        "conv.weight": OUTER,
        "conv.bias": NEITHER,
        "norm.weight": NEITHER,
        "norm.bias": NEITHER,
        "out.weight": OUTER,
        "out.bias": NEITHER,
    }
    of_sets = kinds("Sets")
    assert [name for name, what in of_sets.items() if what == MATRIX] == ["inner.weight"]


def test_tied_weights_are_one_parameter_and_an_embedding():
    of_gru = kinds("GRU", d=6)
    assert "embedding.weight" not in of_gru
    assert of_gru["out.weight"] == NEITHER
    made = model_of("GRU", d=6).make(init_key(0, "x"), 0)
    assert made.embedding.weight is made.out.weight
    assert len(trained(made)) == len(of_gru) == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BatchNorm", r"has batch norm \(bn\): it mixes sequences and keeps statistics"),
        ("Lazy", r"creates its parameter lazy\.weight at its first call"),
        ("Complex", r"has a parameter of type complex64 \(phase\): all must be float32"),
        ("Constant", "has no parameter to train"),
        ("Counts", "changes calls when it is called"),
        ("Clamps", r"changes embedding\.weight when it is called"),
        ("Remembers", "keeps state between calls"),
        ("Pair", r"returns a tuple, not logits \[3, 2, 5\]"),
        ("Turned", r"returns \[2, 3, 5\] of float32, not \[3, 2, 5\] of float32 \(sequences, positions, tokens\)"),
        ("Infinite", "returns logits that are not finite"),
        ("Detached", "returns logits that do not depend on any parameter"),
        ("Elsewhere", r"has a different initialization with the same seed \(gain\)"),
        ("Short", r"(?s)failed in your own code:.*self\.positions.*IndexError"),
        ("number", "returns a int, not a torch.nn.Module"),
        ("Deaf", r"'Deaf' has the arguments \(d\): one must be the number of tokens, called vocabulary, vocab, "),
        ("Kinds", "a size cannot be called 'kind'"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(name, message):
    with pytest.raises(UserError, match=message):
        check_own_module(SetComplement(5), model_of(name), 0, 2)


@pytest.mark.parametrize("name", ["LSTM", "Encoder", "Convolution", "small_lstm", "Plain"])
def test_what_can_be_trained_is_let_in(name):
    check_own_module(SetComplement(5), model_of(name), 0, 2)


def test_a_module_that_reads_items_is_let_in():
    check_own_module(MaxRetrieval(5, longest=32), model_of("Sets"), 0, 8)
