"""Formal languages through the whole path: spec, run, tables, figures."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import resharpen as rs
from resharpen.analysis.attention import attention_of, entropy_by_length
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.runner import run
from resharpen.experiments.spec import Experiment
from resharpen.experiments.toml import from_data, read_toml, to_data

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_language.toml"


@pytest.fixture
def small() -> Experiment:
    """The example language with a transformer of width 16, cut to a few short steps."""
    data = tomllib.loads(EXAMPLE.read_text())
    data["task"] |= {"train_length": 8, "model": {"layers": 1, "d": 16, "heads": 2, "d_mlp": 32}}
    return from_data(data | {"name": "heads", "models": 2, "steps": 4, "batch": 8, "checkpoints": 2, "engine": "torch"})


def test_the_example_reads_and_resolves():
    spec = read_toml(EXAMPLE)
    assert spec.settings[0].name == "even-heads-s40"
    assert spec.batch == 64
    assert from_data(to_data(spec)) == spec


@pytest.mark.parametrize(
    ("task", "name", "cap"),
    [({"kind": "dyck", "k": 8, "m": 10}, "dyck-k8-m10-s700", 700), ({"kind": "tomita", "n": 3}, "tomita-3-s100", 100)],
)
def test_built_in_languages_take_the_paper_s_lengths(task, name, cap):
    spec = from_data({"models": 1, "steps": 1, "placements": ["peri"], "name": "x", "task": task})
    (setting,) = spec.settings
    assert (setting.name, setting.train_length) == (name, cap)
    assert (setting.model.layers, setting.model.d, setting.model.heads) == (2, 64, 4)
    assert from_data(to_data(spec)) == spec


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
    assert set(lengths["metric"]) == {"tvd", "auc"}
    assert lengths["length"].max() == 16
    assert lengths.filter(metric="tvd")["value"].is_between(0, 1).all()
    assert set(rs.draw(store)) == {"figure", "auc"}
    p = rs.load_model(store, store.table("models")["model"][0])([[2, 0, 1]])
    assert p.shape == (1, 4)
    for _ in range(40):  # stopped after every chunk, with the same result
        again = run(small, tmp_path / "bits", workers=1, should_stop=lambda: True)
        if len(again.done()) == len(again.shards()):
            break
    assert again.table("lengths").equals(lengths)


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
