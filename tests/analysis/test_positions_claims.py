"""The loss on longer inputs and its parts: against the definition on made-up distances, and scores with far keys masked
against attention that is cut off by hand."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from helpers import TINY_TRANSFORMER

import resharpen as rs
from resharpen.analysis.claims.positions import FAINTER, Losses, distances, losses, positions_claims
from resharpen.analysis.statistics import Sample
from resharpen.experiments.running.rescoring import read_near
from resharpen.experiments.specs import shelf
from resharpen.tasks import Copy, Dyck
from resharpen.views.positions_figure import draw_positions

DRAWS = 32
FAST = {"peak_learning_rate": 1e-2, "warmup_steps": 0, "max_gradient_norm": 1.0}
"""So that attention is far from uniform after a few steps."""
VARIANTS = ["pre", "pre+nope", "peri", "peri+nope", "pre+log-n", "pre+log-n+nope", "lstm"]
ENCODED = [f"{p}+{x}" for p in ("pre", "peri") for x in FAINTER]


def made_up(setting="tomita-3", lost=0.3, near=0.25, norm=0.05, log_n=0.02, fainter=0.2, level=0.1):
    """Every model is so far from perfect on trained lengths, and loses and recovers about as much as said."""
    rng = np.random.default_rng(0)

    def sample(x):
        return Sample(x + 0.01 * rng.standard_normal(DRAWS), DRAWS)

    loses = {"pre": lost, "peri": lost - norm, "pre+log-n": lost - log_n, "pre+nope": 0.1, "peri+nope": 0.08}
    loses |= {"pre+log-n+nope": 0.09, "lstm": 0.0, **dict.fromkeys(ENCODED, lost - fainter)}
    trained = {variant: sample(level) for variant in loses}
    new = {variant: trained[variant] - sample(-x) for variant, x in loses.items()}
    of_near = {"pre": new["pre"] - sample(near), "pre+nope": new["pre+nope"] - sample(0.02)}
    return Losses(setting, setting, trained, new, of_near)


def verdicts(*found):
    return {claim.number: claim.verdict for claim in positions_claims(found)}


def test_claims_hold_where_they_should():
    assert verdicts(made_up(), made_up("copy-v48")) == {10: "holds", 11: "holds"}
    (ten, eleven) = positions_claims([made_up(), made_up("copy-v48")])
    assert len(ten.findings) == 4  # none of them about copying
    assert len(eleven.findings) == 6 + 12


@pytest.mark.parametrize(
    "other", [{"near": 0.1}, {"norm": 0.28}, {"log_n": 0.28}, {"lost": 0.3, "near": 0.01}], ids=str
)
def test_claim_10_fails_where_far_keys_are_not_it(other):
    assert verdicts(made_up(**other))[10] == "does not hold"


def test_claim_11_fails_where_fainter_keys_do_not_help_or_copying_is_solved():
    assert verdicts(made_up(fainter=-0.1))[11] == "does not hold"
    assert verdicts(made_up(), made_up("copy-v48", lost=0.0, level=0.0))[11] == "does not hold"


def test_what_is_recovered():
    each = made_up()
    expected = (each.new["pre"].values_N - each.trained["pre"].values_N) - (
        each.new["peri"].values_N - each.trained["peri"].values_N
    )
    np.testing.assert_allclose(each.recovered("a norm").values_N, expected)
    np.testing.assert_allclose(
        each.recovered("masking far keys", "pre+nope").values_N,
        each.new["pre+nope"].values_N - each.near["pre+nope"].values_N,
    )
    without = Losses("x", "x", {"pre": each.trained["pre"]}, {"pre": each.new["pre"]}, {})
    assert without.recovered("masking far keys") is None
    assert without.recovered("log n") is None
    assert verdicts(without) == {}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    task = Dyck(2, 3, sequences=4, selection_sequences=2)
    setting = rs.Setting(task, 42, TINY_TRANSFORMER)
    made = rs.Experiment(
        "x", (setting,), [*VARIANTS, "pre+window"], models=3, steps=40, batch=8, checkpoints=1, hyperparameters=FAST
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "variant 'lstm' runs on the torch engine")
        return rs.run(made, tmp_path_factory.mktemp("positions") / "x", workers=1)


def test_reading_without_far_keys(run):
    """Scores of a model whose attention is cut off at the training length; trained lengths are read as before. A
    network without attention, and a window that is shorter, are left out."""
    near = read_near(run)
    names = {model.split("/")[1] for model in near["model"].unique()}
    assert names == {variant for variant in VARIANTS if variant != "lstm"}
    assert set(near["weights"]) == {"train"}

    @rs.attention(trains=False)
    def cut(e, mask, p):
        position = torch.arange(e.shape[-1])
        return rs.masked_softmax(e, mask & (position[:, None] - position < 42))

    stored = rs.load_model(run, "dyck-k2-m3-s42/pre/1")
    task, validation = stored.setting.task, stored.setting.task.validation(0, "report")
    inputs, scored, truth = task.examples(validation)
    theta = {name: torch.tensor(x)[None] for name, x in stored.weights.items()}
    hyper = {"rms_epsilon": torch.tensor([stored.hyperparameters["rms_epsilon"]])}
    parts = SimpleNamespace(**vars(stored.parts))
    cut_off = type(stored.parts)(**{**vars(parts), "attention": cut})
    logits = stored.model.logits(theta, torch.tensor(inputs), cut_off, hyper)[:, torch.tensor(scored)]
    tvd = task.score(logits, {name: torch.tensor(x) for name, x in truth.items()})["tvd"].numpy()
    _, expected, _ = task.by_length({"tvd": tvd}, validation)["tvd"]
    got = near.filter(model=stored.id, metric="tvd").sort("length")["value"].to_numpy()
    np.testing.assert_allclose(got, expected[0], rtol=1e-4)
    whole = run.table("lengths").filter(model=stored.id, metric="tvd", weights="train", selection="best").sort("length")
    assert not np.allclose(got, whole["value"].to_numpy(), rtol=1e-3)


def test_losses_of_a_run(run):
    table = distances(run, read_near(run))
    (found,) = losses(table)
    (stored,) = losses(pl.read_csv(io.BytesIO(table.write_csv().encode())))
    for of, again in ((found.trained, stored.trained), (found.new, stored.new), (found.near, stored.near)):
        assert {name: (*x.values_N, x.effective) for name, x in of.items()} == {
            name: (*x.values_N, x.effective) for name, x in again.items()
        }
    assert set(found.new) == {*VARIANTS, "pre+window"}
    assert len(found.new["pre"].values_N) == 2  # the better half of three draws
    table = run.table("lengths").filter(metric="tvd", weights="train", selection="best")
    trained = [table.filter(table["length"] <= 42, model=f"dyck-k2-m3-s42/pre/{i}")["value"].mean() for i in range(3)]
    chosen = np.sort(np.argsort(trained)[:2])
    np.testing.assert_allclose(found.trained["pre"].values_N, np.array(trained)[chosen])
    new = [table.filter(table["length"] > 42, model=f"dyck-k2-m3-s42/lstm/{i}")["value"].mean() for i in chosen]
    np.testing.assert_allclose(found.new["lstm"].values_N, new)


def test_the_figure(run):
    (found,) = losses(distances(run, read_near(run)))
    long = replace(made_up("copy-v48"), title="Copy distinct items, v = 48")
    figure = draw_positions([found, long, long, long])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    changes = ("masking far keys", "a norm", "log n")
    assert labels[:4] == ["rope: loss on longer inputs", *(f"rope: recovered by {x}" for x in changes)]
    assert len(figure.axes) == 8
    figure.canvas.draw()
    left, right = (axes.title.get_window_extent() for axes in figure.axes[1:3])
    assert left.x1 < right.x0


def test_the_shelf_has_it():
    names = shelf.STUDIES["positions"]
    for name in names:
        made = shelf.take(name, "laptop")
        assert {"pre", "pre+nope", "peri", "peri+nope", "pre+log-n", "pre+log-n+nope", "lstm", *ENCODED} <= set(
            made.variants
        )
        assert made.models >= 32
        (setting,) = made.settings
        assert setting.model.d_head == 16
    assert shelf.take("positions-copy", "laptop").settings[0].task == Copy(30, train_items=8)
    assert re.match("tomita", shelf.take("positions-tomita", "smoke").settings[0].name)
