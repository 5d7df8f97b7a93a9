"""Formal languages through the whole path: spec, run, tables, figures."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from runs import STOP_AT_ONCE

import resharpen as rs
from resharpen.analysis.inspection import attention_of, entropy_by_length
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.shelf import SCALES, take
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.toml import from_data, from_stored, read_toml, to_data
from resharpen.parts import PAPER_PLACEMENTS
from resharpen.tasks import Dyck, OwnLanguage

EXAMPLE = Path(__file__).parents[3] / "examples" / "my_language.toml"


@pytest.fixture
def small() -> Experiment:
    """The example language with a transformer of width 16, cut to a few short steps."""
    data = tomllib.loads(EXAMPLE.read_text())
    data["task"] |= {"train_lengths": [8], "model": {"layers": 1, "d": 16, "heads": 2, "d_mlp": 32}}
    return from_data(data | {"name": "heads", "models": 2, "steps": 4, "batch": 8, "checkpoints": 2, "engine": "torch"})


def test_the_example_reads_and_resolves():
    spec = read_toml(EXAMPLE)
    assert spec.settings[0].name == "even-heads-s40"
    assert spec.batch == 64
    assert from_stored(to_data(spec), Path("run.json")) == spec


@pytest.mark.parametrize(
    ("task", "name", "cap"),
    [({"kind": "dyck", "k": 8, "m": 10}, "dyck-k8-m10-s700", 700), ({"kind": "tomita", "n": 3}, "tomita-3-s100", 100)],
)
def test_built_in_languages_take_the_paper_s_lengths(task, name, cap):
    spec = from_data({"models": 1, "steps": 1, "variants": ["peri"], "name": "x", "task": task})
    (setting,) = spec.settings
    assert (setting.name, setting.train_length) == (name, cap)
    assert (setting.model.layers, setting.model.d, setting.model.heads) == (2, 64, 4)
    assert from_stored(to_data(spec), Path("run.json")) == spec


def test_the_shelf_has_the_paper_s_languages():
    paper = {name: take(name, "paper") for name in ("fig3", "fig4", "fig6", "fig7")}
    assert [s.name for s in paper["fig3"].settings] == ["dyck-k8-m10-s700"]
    assert [s.name for s in paper["fig4"].settings] == ["tomita-3-s100", "tomita-7-s100"]
    assert [(s.task.k, s.task.m, s.train_length) for s in paper["fig6"].settings] == [
        *((2, 3, 84), (2, 5, 180), (2, 10, 700), (8, 3, 84), (8, 5, 180), (32, 3, 84), (32, 5, 180), (32, 10, 700))
    ]
    for experiment in paper.values():
        assert (experiment.models, experiment.steps, experiment.batch, experiment.checkpoints) == (
            100,
            100_000,
            64,
            100,
        )
        assert all((s.task.sequences, s.task.selection_sequences) == (1_024, 64) for s in experiment.settings)
        assert tuple(experiment.variants) == PAPER_PLACEMENTS
    assert paper["fig6"] == paper["fig7"]  # one run, two figures
    checkpoints = {scale: take("fig3", scale).checkpoints for scale in SCALES}
    assert checkpoints == {"smoke": 2, "laptop": 10, "overnight": 10, "paper": 100}


def test_sizes_of_validation_are_part_of_a_spec():
    task = {"kind": "dyck", "k": 2, "m": 3, "sequences": 6, "selection_sequences": 4}
    spec = from_data({"models": 1, "steps": 1, "variants": ["peri"], "name": "x", "task": task})
    assert spec.settings[0].name == "dyck-k2-m3-s84"
    assert spec.settings[0].task == Dyck(2, 3, sequences=6, selection_sequences=4)
    assert from_stored(to_data(spec), Path("run.json")) == spec
    with pytest.raises(UserError, match="sequences = 0: at least 2"):
        from_data({"models": 1, "steps": 1, "variants": ["peri"], "name": "x", "task": task | {"sequences": 0}})


def test_a_bad_language_names_the_state():
    data = tomllib.loads(EXAMPLE.read_text())
    data["task"]["states"]["odd"]["heads"] = [0.4, "even"]
    with pytest.raises(UserError, match=r"state 'odd': its probabilities sum to 0\.9"):
        from_data(data | {"name": "heads"})


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_from_spec_to_figures(small, tmp_path, engine):
    small = replace(small, engine=engine)
    store = run(small, tmp_path / "r", workers=1)
    lengths = store.table("lengths")
    assert set(lengths["metric"]) == {"tvd", "auc", "kl", "illegal", "error", "exact"}
    assert lengths["length"].max() == 16
    assert lengths.filter(metric="tvd")["value"].is_between(0, 1).all()
    assert set(rs.draw(store)) == {"figure", "auc"}
    check_slots(store)
    p = rs.load_model(store, store.table("models")["model"][0])([[2, 0, 1]])
    assert p.shape == (1, 4)
    for _ in range(40):  # stopped after every chunk, with the same result
        again = run(small, tmp_path / "bits", workers=1, observer=STOP_AT_ONCE)
        if len(again.done()) == len(again.shards()):
            break
    assert again.table("lengths").equals(lengths)


def check_slots(store):
    """Weights that are kept twice have one score, and all that is kept is stored."""
    models, lengths = store.table("models"), store.table("lengths").filter(pl.col("count") > 0)
    for model in models["model"]:
        for weights in ("train", "bema"):
            (row,) = models.filter(model=model).to_dicts()
            values = {
                (selection, row[f"{weights}_{selection.replace('-', '_')}_step"]): lengths.filter(
                    model=model, weights=weights, selection=selection
                )["value"].to_list()
                for selection in ("best", "best-trained", "last")
            }
            for (one, step), found in values.items():
                assert all(np.isfinite(found))
                assert all(found == other for (_, at), other in values.items() if at == step)
                stored = rs.load_model(store, model, weights=weights, selection=one)
                assert all(np.isfinite(array).all() for array in stored.weights.values())


def test_two_languages_in_one_figure(tmp_path):
    """Many lengths: one column per language. The paper's figure of Tomita is the ROC AUC."""
    tasks = [
        {"kind": "tomita", "n": n, "sequences": 2, "selection_sequences": 2, "train_lengths": [20],
         "model": {"layers": 1, "d": 16, "heads": 1, "d_mlp": 16}}
        for n in (3, 7)
    ]  # fmt: skip
    data = {"name": "t", "models": 2, "steps": 2, "batch": 4, "checkpoints": 1, "variants": ["pre", "peri"]}
    store = run(from_data(data | {"task": tasks, "engine": "native"}), tmp_path / "r", workers=1)
    figures = rs.draw(store)
    assert set(figures) == {"figure", "tvd"}
    titles = [axes.get_title() for axes in figures["figure"].axes]
    assert titles == ["Tomita 3, pre", "Tomita 7, pre", "Tomita 3, peri", "Tomita 7, peri"]
    labels = [axes.get_ylabel() for axes in figures["figure"].axes]
    assert labels == ["", "", "ROC AUC of the logit of 1", "ROC AUC of the logit of 0"]
    for figure in figures.values():
        named = [text for axes in figure.axes if (text := axes.get_xlabel())]
        assert named == ["input length (tokens, in bins)"]
    ends = {line.get_xdata()[0] for line in figures["tvd"].axes[0].lines if len(set(line.get_xdata())) == 1}
    assert 20 / 20 - 0.5 in ends  # the cap, at the end of the first bin
    axes = figures["tvd"].axes[-1]
    named = {label.get_text(): at for label, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}
    assert len(named) > 5
    assert all(at == int(end) / 20 - 0.5 for end, at in named.items())  # on the scale of the cap


def test_inspecting_a_transformer(small, tmp_path, capsys):
    out = tmp_path / "r"
    store = run(small, out, workers=1)
    main(["inspect", str(out)])
    assert (out / "attention.png").stat().st_size > 10_000
    main(["inspect", str(out), "--prefix", "BOS,heads,0", "--out", str(tmp_path / "p")])
    assert (tmp_path / "p" / "attention.svg").exists()
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main(["inspect", str(out), "--prefix", "BOS,head"])
    assert exit_.value.code == 2
    assert "unknown token 'head': did you mean 'heads'" in capsys.readouterr().err
    model = rs.load_model(store, store.table("models")["model"][0])
    weights = attention_of(model, [2, 0, 1, 0])
    assert weights.shape == (1, 2, 4, 4)
    assert np.allclose(weights.sum(-1), 1, atol=1e-6)
    assert np.allclose(np.triu(weights, 1), 0)
    entropy = entropy_by_length(weights)
    assert np.allclose(entropy[..., 0], 0)
    assert (entropy <= np.log(np.arange(1, 5)) + 1e-6).all()  # the weights are float32


def test_the_number_of_a_language_is_not_the_number_of_prefixes(tmp_path, capsys):
    """`n` is that of Tomita's languages, `count` that of the prefixes behind a value."""
    task = {"kind": "tomita", "n": 7, "sequences": 4, "selection_sequences": 2, "train_lengths": [12],
            "model": {"layers": 1, "d": 8, "heads": 1, "d_mlp": 8}}  # fmt: skip
    data = {"name": "t", "models": 1, "steps": 1, "batch": 4, "checkpoints": 1, "variants": ["pre"], "engine": "torch"}
    run(from_data(data | {"task": task}), tmp_path / "r", workers=1)
    main(["results", str(tmp_path / "r"), "--csv"])
    csv = pl.read_csv(capsys.readouterr().out.encode())
    assert set(csv["n"]) == {7}
    assert set(csv.filter(metric="tvd")["count"]) == {4 * 20}
    auc = csv.filter(metric="auc", selection="last")
    assert auc["count"].is_between(0, 4 * 20).all()
    assert ((auc["count"] == 0) == auc["value"].is_null()).all()  # no pair of prefixes, no value


def test_a_language_of_one_s_own_has_no_claims_to_go_on_with(small, tmp_path, capsys):
    out = tmp_path / "r"
    run(small, out, workers=1)
    main(["run", str(out)])
    said = capsys.readouterr().out
    assert f"Next: resharpen compare {out}" in said
    assert "claims" not in said
    with pytest.raises(SystemExit):
        main(["claims", str(out)])
    assert "there are no claims about this kind of task" in capsys.readouterr().err


def test_a_token_that_is_always_legal_has_no_auc_to_draw(small, tmp_path):
    """Nothing to tell apart at any length: then there is no figure of it, and the others are there."""
    states = {"a": {"x": [0.5, "a"], "end": 0.5}}
    task = OwnLanguage.from_data({"name": "single", "states": states, "marked": "x", "train_length": 4})
    model = replace(small.settings[0].model, vocabulary=task.vocabulary)
    store = run(replace(small, settings=(Setting(task, 4, model),)), tmp_path / "r", workers=1)
    assert set(store.table("lengths").filter(metric="auc")["count"]) == {0}
    assert "auc" not in rs.draw(store)
    assert rs.draw(store)["figure"]
