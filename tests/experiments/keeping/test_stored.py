"""A model taken out of a run is the one that was scored: its module gives the scores that the tables have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import reported

import resharpen as rs
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.models import Minimal, Retriever, Transformer
from resharpen.optim.hyperparameters import narrowed
from resharpen.tasks import Dyck, MaxRetrieval, SetComplement

SMALL = {"layers": 1, "d": 16, "heads": 2, "d_mlp": 16}
BOTH = ("torch", "native")
CASES = {
    "minimal": (
        Setting(SetComplement(5), 2, Minimal(5, 4, 1, 4)),
        {"pre": BOTH, "peri": BOTH, "none+log-n": ("torch",)},
    ),
    "minimal in order": (Setting(SetComplement(5), 2, Minimal(5, 4, 2, 3)), {"post+rope": ("torch",)}),
    "minimal, sampled": (Setting(SetComplement(11), 2, Minimal(11, 4, 1, 4)), {"peri": ("torch",)}),
    "transformer": (
        Setting(Dyck(2, 3, sequences=4, selection_sequences=2), 12, Transformer(6, **SMALL)),
        {"peri": BOTH, "peri+log-n": ("torch",), "pre+nope": ("torch",)},
    ),
    "transformer on sets": (Setting(SetComplement(5), 2, Transformer(5, **SMALL)), {"pre+nope": ("torch",)}),
    "retriever": (
        Setting(MaxRetrieval(longest=64, items=512, selection_items=256), 16, Retriever(16)),
        {"none": BOTH, "peri+log-n": BOTH},
    ),
}
"""Setting, and its variants with the engines to train them with."""
EACH = [
    (case, variant, engine)
    for case, (_, variants) in CASES.items()
    for variant, engines in variants.items()
    for engine in engines
]


def trained(case: str, variant: str, engine: str, directory) -> rs.Run:
    """Large steps, so that weights are far from where they began and from each other."""
    setting, _ = CASES[case]
    spec = Experiment("x", (setting,), [variant], models=2, steps=6, batch=8, checkpoints=2, engine=engine)
    rows = {"peak_learning_rate": narrowed("peak_learning_rate", 0.1), "warmup_steps": narrowed("warmup_steps", 0)}
    return run(replace(spec, hyperparameters=rows), directory, workers=1)


@pytest.mark.parametrize(("case", "variant", "engine"), EACH, ids=["-".join(each) for each in EACH])
def test_a_stored_model_reproduces_its_scores(case, variant, engine, tmp_path):
    setting, _ = CASES[case]
    store = trained(case, variant, engine, tmp_path / "r")
    lengths = store.table("lengths")
    seen = set()
    for i, weights, selection in ((0, "train", "best"), (1, "bema", "last"), (1, "train", "last")):
        model = rs.load_model(store, f"{setting.name}/{variant}/{i}", weights, selection)
        assert model.model == setting.model
        stored = lengths.filter(model=model.id, weights=weights, selection=selection)
        stored = stored.with_columns(stored["value"].fill_null(np.nan))
        expected = {(row["metric"], row["length"]): row["value"] for row in stored.iter_rows(named=True)}
        found = reported(model, store.experiment.seed)
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert np.isclose(value, expected[key], rtol=0, atol=1e-5, equal_nan=True), (model.id, key)
        seen.add(tuple(found.values()))
    assert len(seen) == 3  # so the scores say which model it was


def test_calling_a_stored_model_is_its_module(tmp_path):
    store = trained("transformer", "peri+log-n", "torch", tmp_path / "r")
    model = rs.load_model(store, "dyck-k2-m3-s12/peri+log-n/1")
    with torch.no_grad():
        logits = model.module()(torch.tensor([[4, 0, 2]]))
    assert np.allclose(model([[4, 0, 2]])[0], logits[0, -1].softmax(-1).numpy(), atol=1e-7)
    assert model.hyperparameters["peak_learning_rate"] == 0.1
    assert model.step in (3, 6)


def test_a_trace_shows_the_way_from_tokens_to_logits(tmp_path):
    store = trained("transformer", "peri+log-n", "torch", tmp_path / "r")
    model = rs.load_model(store, "dyck-k2-m3-s12/peri+log-n/1")
    tokens = [4, 0, 2, 1]
    trace, theta = model.trace(tokens), model.weights
    assert np.allclose(trace["embedding"], theta["E"][tokens])
    x = trace["embedding"]
    for block in model.model.blocks:
        assert np.array_equal(trace[f"{block}block_in.before"], x)
        assert np.array_equal(trace[f"{block}block_out.before"], trace[f"{block}update"])
        x = x + trace[f"{block}block_out.after"]
        assert np.allclose(trace[f"{block}stream"], x, atol=1e-6)
    weights = trace["0.attention.weights"]
    assert weights.shape == (2, 4, 4)
    assert np.allclose(weights.sum(-1), 1, atol=1e-6)
    assert (weights[:, *np.triu_indices(4, 1)] == 0).all()
    assert np.allclose(trace["output"], trace["unembedding_in.after"] @ theta["U"], atol=1e-6)
    last = np.exp(trace["output"][-1]) / np.exp(trace["output"][-1]).sum()
    assert np.allclose(model([tokens])[0], last, atol=1e-6)


def test_a_trace_of_a_set_of_items(tmp_path):
    store = trained("retriever", "peri+log-n", "torch", tmp_path / "r")
    model = rs.load_model(store, "max-s16/peri+log-n/0")
    trace, theta = model.trace([(0.5, 1), (0.25, 0), (0.75, 3)]), model.weights
    weights_I = trace["weights"][0, 0]
    assert np.allclose(trace["update"][0], weights_I @ trace["block_in.after"] @ theta["V"], atol=1e-6)
    assert np.array_equal(trace["block_out.before"], trace["update"])
    assert trace["output"].shape == (1, 10)
