"""Every part on every model: it trains, resumes bit for bit and reloads to its stored scores, or is refused with its
reason and what fits instead."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers import assert_same, reported

import resharpen as rs
from resharpen.engines.torch.fast import TorchEngine
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import CATALOGS, DEFAULTS, PARTS
from resharpen.models import MODELS, Gru, Lstm, Minimal, Retriever, Rnn, Transformer
from resharpen.parts import ATTENTIONS, PLACEMENTS, POSITIONS
from resharpen.state import arrays_of
from resharpen.tasks import Dyck, MaxRetrieval, SetComplement

SETTINGS = {
    "minimal": Setting(SetComplement(5), 3, Minimal(5, 4, 2, 3)),
    "transformer": Setting(Dyck(2, 3, sequences=2, selection_sequences=2), 20, Transformer(6, 2, 8, 2, 8)),
    "rnn": Setting(Dyck(2, 3, sequences=2, selection_sequences=2), 9, Rnn(6, 4)),
    "gru": Setting(Dyck(2, 3, sequences=2, selection_sequences=2), 9, Gru(6, 4)),
    "lstm": Setting(Dyck(2, 3, sequences=2, selection_sequences=2), 9, Lstm(6, 4, 2)),
    "retriever": Setting(MaxRetrieval(longest=32, items=256, selection_items=128), 16, Retriever(12)),
}
NO_POSITIONS = "a retriever reads a set: its items have no positions; nope fits"
SETS_FIT = "softmax, log-n, ssmax, entmax, asentmax, sink, sigmoid, top-k fit"
REFUSED = {
    "minimal": {
        "nape": "nape gives positions to half of the heads, but heads = 1 is odd; rope, rope-500k, nope, alibi, ",
        "rope-half": "rope-half rotates pairs in half of a head, but d_k = 2 is not a multiple of 4; rope, ",
        "window": "window masks keys 16 tokens back, but no input of the task is longer than 4 tokens: ",
        "differential": "differential needs pairs of heads, but heads = 1 is odd; softmax, log-n, ",
    },
    "transformer": {},
    "retriever": {
        **{
            name: f"a retriever has no placement '{name}'; none, pre, post, peri fit"
            for name in PLACEMENTS
            if name not in ("none", "pre", "post", "peri")
        },
        **{name: NO_POSITIONS for name in POSITIONS if name != "nope"},
        "rezero": "rezero scales the output of a block, but a retriever has no residual stream",
        "layer-scale": "layer-scale scales the output of a block, but a retriever has no residual stream",
        **{
            name: f"{name} needs an order, but a retriever reads a set; {SETS_FIT}"
            for name in ("stick-breaking", "window", "forgetting", "retention", "gated-retention")
        },
        "differential": f"differential needs pairs of heads, but a retriever has one head; {SETS_FIT}",
        "gated": f"gated depends on the input of the query, but a retriever's query has none; {SETS_FIT}",
    },
}
RECURRENT = ("rnn", "gru", "lstm")
for kind in RECURRENT:
    REFUSED[kind] = {
        name: f"{kind.capitalize()} has no {of} in its `takes`: '{name}' would have no effect"
        for of in ("norm", "attention", "positions", "dropout")
        for name in CATALOGS[of]
        if name not in ("rms", "softmax", "nope", "no-dropout")
    }
    REFUSED[kind] |= {name: f"a {kind} has no placement '{name}'; none fits" for name in PLACEMENTS if name != "none"}
    REFUSED[kind] |= dict.fromkeys(("rezero", "layer-scale"), f"{kind.capitalize()} has no norm in its `takes`")
ALL = {name: kind for kind in PARTS for name in CATALOGS[kind]}
FITTING = [(model, name) for model in SETTINGS for name in ALL if name not in REFUSED[model]]
TOGETHER = pytest.mark.xdist_group("parts")  # one run for all
EACH = pytest.mark.parametrize(("model", "name"), FITTING, ids=["-".join(each) for each in FITTING])


def written(model: str, name: str) -> str:
    """The part in a variant where it has something to do: norms stand on both sides of attention."""
    return name if ALL[name] == "placement" or model in RECURRENT else f"peri+{name}"


def spec(model: str, *names: str) -> Experiment:
    sums = list(dict.fromkeys(written(model, name) for name in names))
    sizes = {"models": 2, "steps": 6, "batch": 8, "checkpoints": 2, "engine": "torch"}
    # without warm-up, so that schedules differ from the second step on
    return Experiment("x", (SETTINGS[model],), sums, **sizes, hyperparameters={"warmup_steps": 0})


def engine_of(model: str, name: str) -> TorchEngine:
    made = spec(model, name)
    (shard,) = made.shards()
    return TorchEngine(made.problem(shard), made.ensemble(shard))


def usual_of(model: str) -> str:
    return "none" if model in RECURRENT else "peri"


def is_usual(model: str, name: str) -> bool:
    return name in (usual_of(model), *DEFAULTS.values(), type(SETTINGS[model].model).positions)


def only_scores(name: str) -> bool:
    return not getattr(CATALOGS[ALL[name]][name], "trains", True)


def test_names_are_distinct():
    names = [name for catalog in CATALOGS.values() for name in catalog]
    assert len(set(names)) == len(names) == len(ALL) + len(MODELS)


@EACH
def test_it_trains_and_resumes_bit_for_bit(model, name):
    whole, begun, resumed = (engine_of(model, name) for _ in range(3))
    start = whole.dump()
    whole.advance(5)
    begun.advance(2)
    resumed.load(begun.dump())
    resumed.advance(3)
    end = whole.dump()
    assert_same(end, resumed.dump())
    assert (end["diverged_at"] == -1).all()
    learned = [key for key, x in arrays_of(start, "theta").items() if np.array_equal(end[f"theta.{key}"], x)]
    assert learned == []  # nothing that the part brings is left out


@EACH
def test_it_is_paired_and_does_something(model, name, monkeypatch):
    """The draws and the initial weights of what it shares with `peri` are the same; where they lead to is not."""
    # sequences are shorter than eight tokens here
    monkeypatch.setattr(sys.modules[ATTENTIONS["top-k"].function.__module__], "KEPT", 2)
    usual, other = engine_of(model, usual_of(model)), engine_of(model, name)
    brought = getattr(CATALOGS[ALL[name]][name], "hyperparameters", {})
    draws, found = usual.ensemble.hyperparameters, other.ensemble.hyperparameters
    assert set(found) == set(draws) | set(brought)
    assert all(np.array_equal(found[row], draws[row]) for row in draws if row not in brought)
    a, b = (arrays_of(engine.dump(), "theta") for engine in (usual, other))
    ours, others = (engine.problem.model.parameters(engine.problem.parts) for engine in (usual, other))
    shared = [key for key in a if key in b and ours[key] == others[key]]  # the gain of another norm may start elsewhere
    assert "W_2" in shared or "U" in shared
    assert all(np.array_equal(a[key], b[key]) for key in shared)
    usual.advance(3)
    other.advance(3)
    a, b = (arrays_of(engine.dump(), "theta") for engine in (usual, other))
    assert all(np.array_equal(a[key], b[key]) for key in shared) == (is_usual(model, name) or only_scores(name))


@pytest.fixture(scope="module", params=SETTINGS)
def stored(request, tmp_path_factory):
    """A run of all that fit a model."""
    model = request.param
    further = [name for of, name in FITTING if of == model and not is_usual(model, name)]
    made = replace(spec(model, usual_of(model), *further), models=1, steps=3, checkpoints=1)
    return model, rs.run(made, tmp_path_factory.mktemp("parts") / model, workers=1)


@TOGETHER
def test_they_reload_to_their_stored_scores(stored):
    model, store = stored
    assert len(store.experiment.variants) > (6 if model in RECURRENT else 10)
    lengths = store.table("lengths")
    for variant in store.experiment.variants:
        for weights in ("train", "bema"):
            found = rs.load_model(store, f"{SETTINGS[model].name}/{variant}/0", weights, "last")
            rows = lengths.filter(model=found.id, weights=weights, selection="last")
            values = reported(found, store.experiment.seed)
            assert len(values) == rows.height > 0
            for row in rows.with_columns(rows["value"].fill_null(np.nan)).iter_rows(named=True):
                value = values[row["metric"], row["length"]]
                assert np.isclose(value, row["value"], rtol=0, atol=1e-5, equal_nan=True), (variant, row)


@pytest.mark.parametrize(
    ("model", "name", "message"),
    [(model, name, message) for model, refused in REFUSED.items() for name, message in refused.items()],
)
def test_or_it_is_refused_with_its_reason(model, name, message):
    with pytest.raises(rs.UserError, match=re.escape(message)) as error:
        spec(model, name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("setting", "variant", "message"),
    [
        (Setting(SetComplement(5), 3), "olmo2", "(d_k = 1) keeps only the sign; pre, post, peri, "),
        (Setting(SetComplement(5), 3), "peri+rope", "d_k = 1 is odd; nope, alibi, "),
        (SETTINGS["transformer"], "peri+stick-breaking+alibi", "cannot be combined with positions; nope fits"),
        (SETTINGS["retriever"], "none+stick-breaking+rope", NO_POSITIONS.split(";")[0]),
        (
            replace(SETTINGS["transformer"], model=Transformer(6, 1, 3, 3, 4)),
            "gemma3+nope",
            "(d / heads = 1) keeps only the sign; pre, ",
        ),
        (
            replace(SETTINGS["transformer"], model=Transformer(6, 1, 6, 3, 4)),
            "nape",
            "heads = 3 is odd; rope, rope-500k, nope, ",
        ),
    ],
)
def test_what_does_not_go_together(setting, variant, message):
    with pytest.raises(rs.UserError, match=re.escape(message)):
        Experiment("x", (setting,), [variant], models=1, steps=1)


def test_an_attention_that_orders_has_no_positions_by_itself():
    made = spec("transformer", "stick-breaking", "nope")
    assert {name: variant.positions for name, variant in made.variants.items()} == {
        "peri+stick-breaking": "nope",
        "peri+nope": "nope",
    }
    same = replace(made, variants=["peri+stick-breaking+nope"])
    assert list(same.variants) == ["peri+stick-breaking"]


@TOGETHER
def test_a_model_is_not_read_with_what_has_to_be_learned(stored):
    model, store = stored
    for name, learned in (("ssmax", "s"), ("asentmax", "w_b, c_b, w_g, c_g"), ("gated", "W_g")):
        with pytest.raises(rs.UserError, match=f"'{name}' learns {learned}: models must be trained with it"):
            rs.rescore(store, name)
    if model == "retriever":
        with pytest.raises(rs.UserError, match="needs an order"):
            rs.rescore(store, "stick-breaking")
