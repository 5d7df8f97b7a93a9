"""Maximum Retrieval through the whole path: spec, run, tables, figure, claim."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers import assert_same

import resharpen as rs
from resharpen.analysis.claims.max_retrieval import max_retrieval_claims
from resharpen.errors import UserError
from resharpen.experiments.running.rescoring import rescore
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.shelf import take
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.toml import from_data, to_data
from resharpen.models import RETRIEVER_PLACEMENTS, Retriever
from resharpen.tasks import MaxRetrieval

GOOD = {
    "name": "max",
    "models": 2,
    "steps": 4,
    "variants": ["none", "peri"],
    "task": {"kind": "max-retrieval", "longest": 64, "items": 512},
}


@pytest.fixture
def small() -> Experiment:
    """Two models of width 16 on each of the four placements, reported to 64 items."""
    setting = Setting(MaxRetrieval(longest=64, items=1024, selection_items=512), 16, Retriever(hidden=16))
    return Experiment(
        "max", (setting,), list(RETRIEVER_PLACEMENTS), models=2, steps=6, batch=16, checkpoints=2, engine="torch"
    )


def test_a_spec_says_what_the_paper_does():
    spec = from_data(GOOD)
    assert (spec.batch, spec.settings[0].train_length, spec.settings[0].model) == (128, 16, Retriever())
    assert spec.settings[0].name == "max-s16"
    assert from_data(to_data(spec)) == spec
    paper = take("fig2", "paper")
    assert (paper.models, paper.steps, paper.batch, paper.checkpoints) == (100, 100_000, 128, 100)
    assert paper.settings[0].task == MaxRetrieval(longest=16_384, items=1_048_576, selection_items=65_536)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": ["peri-init"]}, "a retriever has no placement 'peri-init'; none, pre, post, peri fit"),
        ({"variants": ["mine"], "variant": {"mine": {"placement": {"residual": True}}}}, "none, pre, post, peri"),
        ({"variants": ["none+log"]}, "unknown variant 'log': did you mean 'log-n'"),
        ({"variants": ["minimal"]}, "the model 'minimal' reads tokens, but max has items"),
        ({"task": {"kind": "max-retrieval", "train_lengths": [4]}}, "5 to s items"),
        ({"task": {"kind": "max-retrieval", "v": 9}}, "unknown key in .task. 'v'"),
    ],
)
def test_bad_specs(change, message):
    with pytest.raises(UserError, match=message):
        from_data(GOOD | change)


def test_settings_do_not_mix_kinds(small, tiny):
    with pytest.raises(UserError, match="must be of one kind"):
        replace(small, settings=(*small.settings, *tiny.settings))


def test_report_sizes_do_not_move_the_streams(small):
    """What is measured at the end must not change what is trained."""
    setting = small.settings[0]
    assert setting.name == replace(setting, task=MaxRetrieval()).name


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_from_spec_to_claim(small, tmp_path, engine):
    store = run(replace(small, engine=engine), tmp_path / "r", workers=1)
    lengths = store.table("lengths")
    assert set(lengths["metric"]) == {"accuracy", "entropy", "largest_weight"}
    assert lengths.filter(metric="accuracy")["length"].unique().sort().to_list() == [16, 32, 64]
    assert lengths.filter(metric="accuracy")["value"].is_between(0, 1).all()
    entropy = lengths.filter(metric="entropy", length=64)["value"]
    assert entropy.is_between(0, np.log(64) + 1e-4).all()
    best = store.table("curves").filter(weights="train").group_by("model").max()
    kept = store.table("models").join(store.table("curves").filter(weights="train"), on="model")
    kept = kept.filter(kept["step"] == kept["train_best_step"]).join(best, on="model", suffix="_max")
    assert (kept["score"] == kept["score_max"]).all()  # higher is better
    (claim,) = max_retrieval_claims(store)
    assert claim.number == 4
    assert len(claim.findings) == 2 * 2 * 2
    assert set(rs.draw(store)) == {"figure", "entropy", "largest-weight"}


def test_a_stored_retriever_can_be_called(small, tmp_path):
    store = run(small, tmp_path / "r", workers=1)
    model = rs.load_model(store, "max-s16/peri/1")
    p = model([[(0.2, 3), (0.9, 7)], [(0.5, 1)]])
    assert p.shape == (2, 10)
    assert np.allclose(p.sum(1), 1, atol=1e-6)
    with pytest.raises(UserError, match=r"classes are 0\.\.9"):
        model([[(0.2, 10)]])
    for wrong in ([0.2, 0.3], [(0.2, 3, 1)], [(0.2, "3")]):
        with pytest.raises(UserError, match="pairs"):
            model([wrong])
    with pytest.raises(UserError, match="classes are whole numbers"):
        model([[(0.2, 2.7)]])
    with pytest.raises(UserError, match="unknown metric 'acc': did you mean 'accuracy'"):
        rs.scores(store, metric="acc")


def test_other_families_have_no_circuits(small, tmp_path):
    store = run(small, tmp_path / "r", workers=1)
    with pytest.raises(UserError, match="circuits need a minimal transformer"):
        rs.inspect(store, small.settings[0])


def test_log_n_trains_differently(small, tmp_path):
    placements = list(RETRIEVER_PLACEMENTS)
    store = run(replace(small, variants=[*placements, *(f"{p}+log-n" for p in placements)]), tmp_path / "r", workers=1)
    table = store.table("lengths").join(store.table("models"), on="model").filter(metric="entropy", selection="last")
    table = table.sort("placement", "draw", "weights", "length")
    a, b = (table.filter(attention=name)["value"] for name in ("softmax", "log-n"))
    assert len(a) == len(b) == 4 * 2 * 2 * 3
    assert (b < a).any()  # logits times log n > 1: sharper
    assert (b <= a + 1e-5).all()


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_reading_with_a_remedy(small, tmp_path, engine):
    """Softmax gives what the run reported; adaptive temperature is sharper."""
    store = run(replace(small, engine=engine), tmp_path / "r", workers=1)
    keys = ["model", "weights", "length", "metric"]
    own = store.table("lengths").filter(selection="best").sort(keys)
    same, sharper = (rescore(store, name).sort(keys) for name in ("softmax", "adaptive-temperature"))
    assert np.allclose(own["value"], same["value"], atol=1e-6)
    a, b = (table.filter(metric="largest_weight")["value"].to_numpy() for table in (same, sharper))
    assert (b >= a - 1e-6).all()
    assert (b > a).any()
    assert set(rs.draw(store, attention="adaptive-temperature")) == {"figure", "entropy", "largest-weight"}


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_adaptive_temperature_trains_as_softmax_and_scores_as_rescored(small, tmp_path, engine):
    spec = replace(small, variants=["none", "none+adaptive-temperature"], engine=engine)
    store = run(spec, tmp_path / "r", workers=1)
    softmax, adaptive = store.done()
    assert (softmax.variant, adaptive.variant) == tuple(spec.variants)
    assert_same(store.weights(softmax), store.weights(adaptive))
    curves = [store.table("curves").filter(pl.col("model").is_in(of.model_ids)) for of in (softmax, adaptive)]
    assert curves[0].drop("model").equals(curves[1].drop("model"))  # checkpoints are chosen by softmax
    keys = ["draw", "weights", "length", "metric"]
    read = rescore(store, "adaptive-temperature").with_columns(draw=pl.col("model").str.extract(r"(\d+)$"))
    lengths = store.table("lengths").filter(selection="best").with_columns(draw=pl.col("model").str.extract(r"(\d+)$"))
    again, own = (x.filter(pl.col("model").is_in(of.model_ids)) for x, of in ((read, softmax), (lengths, adaptive)))
    assert again.sort(keys)["value"].equals(own.sort(keys)["value"])
    before = lengths.filter(pl.col("model").is_in(softmax.model_ids), metric="largest_weight").sort(keys)["value"]
    assert (own.filter(metric="largest_weight").sort(keys)["value"] > before).any()


def test_an_attention_to_score_with_learns_nothing(small, tmp_path):
    (tmp_path / "mine.py").write_text(
        OWN.replace("@rs.attention()", "@rs.attention(trains=False, a=rs.learned(start=1.0))")
    )
    with pytest.raises(UserError, match="mine has a, and no model trains with it"):
        replace(small, variants=[f"none+{tmp_path}/mine.py:mine"])


def test_reading_with_a_name_that_is_none(small, tmp_path):
    store = run(replace(small, variants=["none"]), tmp_path / "r", workers=1)
    message = "unknown attention 'adaptive-temprature': did you mean 'adaptive-temperature'"
    with pytest.raises(UserError, match=message):
        rescore(store, "adaptive-temprature")
    with pytest.raises(UserError, match=message):
        rs.draw(store, attention="adaptive-temprature")


OWN = """
import resharpen as rs

@rs.attention()
def mine(e, mask, p):
    return rs.masked_softmax(e, mask)
"""


def test_reading_with_an_attention_of_one_s_own(small, tmp_path):
    """softmax, written by the user, reads what softmax reads."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    store = run(replace(small, variants=["none"]), tmp_path / "r", workers=1)
    keys = ["model", "weights", "length", "metric"]
    same, own = (rescore(store, name).sort(keys) for name in ("softmax", f"{path}:mine"))
    assert np.allclose(same["value"], own["value"], atol=1e-6)
