"""The study of all tasks: gains, the kind of dispersion, and its figure."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO, StringIO

import numpy as np
import polars as pl
import pytest
from rich.console import Console

import resharpen as rs
from resharpen.analysis.dispersion import (
    Dispersion,
    Gain,
    agreement,
    dispersion,
    gains,
    gains_from,
    gains_table,
    most_keys,
    places,
    slope,
)
from resharpen.analysis.statistics import Interval
from resharpen.commands.results import FORMATS, study
from resharpen.experiments.specs.shelf import FAMILIES, SCALES, STUDIES, take
from resharpen.tasks import TASKS


def test_every_family_is_in_the_study():
    assert set(FAMILIES) == set(TASKS) - {"automaton"}
    assert STUDIES["tasks"] == tuple(f"tasks-{kind}" for kind in FAMILIES)
    for name in STUDIES["tasks"]:
        for scale in SCALES:
            experiment = take(name, scale)
            assert list(experiment.variants) == ["pre", "peri", "pre+log-n", "peri+log-n"]
        assert experiment.settings[0].model.kind in ("transformer", "retriever")
    laptop = take("tasks-recall", "laptop")
    assert (laptop.models, laptop.steps) == (32, 8_000)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of a task with a question, of a language, and of items."""
    found = []
    for text in (
        "majority,train_lengths=[12],sequences=3,model={layers=2,d=8,heads=2,d_mlp=8}",
        "flip-flop,train_lengths=[8],sequences=3,selection_sequences=2,model={layers=2,d=8,heads=2,d_mlp=8}",
        "max-retrieval,longest=32,items=256,selection_items=128,model={hidden=8}",
    ):
        variants = ["pre", "peri", "pre+log-n", "peri+log-n"]
        experiment = take(text, "smoke").with_changes(variants, models=2, steps=2, engine="torch")
        found.append(rs.run(experiment, tmp_path_factory.mktemp("study") / "run", workers=1))
    return found


def test_uniform_attention_has_a_slope_of_minus_one(runs):
    model = rs.load_model(runs[0], runs[0].table("models")["model"][0])
    zero = {name: np.zeros_like(x) if name.endswith("W_Q") else x for name, x in model.weights.items()}
    keys, most, largest, amplitude = places(replace(model, weights=zero), 0)
    assert np.allclose(largest, 1 / keys, rtol=1e-5)
    assert slope(keys, largest) == pytest.approx(-1, abs=1e-4)
    assert most == most_keys(model) == 14  # BOS, twelve items, SEP
    assert len(amplitude) == len(keys)
    assert keys.max() == 3 * 12 + 2


def test_weights_and_amplitudes_are_those_of_the_model(runs):
    model = rs.load_model(runs[1], runs[1].table("models")["model"][0])
    keys, _, largest, amplitude = places(model, 0)
    tokens = model.setting.task.validation(0, "report").inputs_NxL[0]
    trace = model.trace(tokens.tolist())
    weights = np.concatenate([trace["0.attention.weights"], trace["1.attention.weights"]])
    assert any(np.isclose(largest[0], head[3].max()) for head in weights)
    both = [(trace[f"{layer}.attention.update"][3] ** 2).mean() for layer in (0, 1)]
    assert amplitude[0] == pytest.approx(np.sqrt(np.mean(both)), rel=1e-4)
    assert keys[0] == 4


def test_gains_are_paired_medians(runs):
    found = gains(runs[0])
    assert gains_from(pl.read_csv(BytesIO(gains_table(found).write_csv().encode()))) == found
    assert {(gain.variant, gain.lengths) for gain in found} == {
        (variant, lengths) for variant in ("peri", "pre+log-n", "peri+log-n") for lengths in ("trained", "new")
    }
    rows = rs.scores(runs[0], metric="tvd").filter(weights="train").sort("draw")
    of = {variant: part["score_new"].to_numpy() for (variant,), part in rows.group_by("variant", maintain_order=True)}
    expected = np.median(of["pre"] - of["peri"])
    peri = next(gain for gain in found if (gain.variant, gain.lengths) == ("peri", "new"))
    assert peri.interval.estimate == pytest.approx(expected, abs=1e-9)


def test_agreement_says_whether_the_kind_predicts_the_remedy():
    kinds = [Dispersion("a", 0.9, -0.1, 0.0), Dispersion("b", 0.1, -1.0, -0.5), Dispersion("c", 0.1, -1.0, 0.0)]
    made = {("a", "peri"): 0.1, ("a", "pre+log-n"): 0.2, ("b", "peri"): 0.1, ("b", "pre+log-n"): 0.2}
    of = [Gain(t, v, "new", "TVD", Interval(x, x - 0.05, x + 0.05, 0.01)) for (t, v), x in made.items()]
    of += [Gain("c", v, "new", "TVD", Interval(0.0, -0.1, 0.1, 0.9)) for v in ("peri", "pre+log-n")]
    table = agreement(kinds, of)
    assert table["kind"].to_list() == ["focus", "mean", "mean"]
    assert table["as predicted"].to_list() == [True, False, None]


def test_the_study_is_printed_and_drawn(runs, tmp_path):
    console = Console(file=StringIO(), width=160)
    study("tasks", runs, tmp_path, "smoke", console)
    said = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "Majority" in said
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"tasks-smoke.{suffix}" for suffix in FORMATS),
        *("tasks-smoke-gains.csv", "tasks-smoke-dispersion.csv"),
    }
    assert 0 < dispersion(runs[2]).largest <= 1
