import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from resharpen.analysis.pairing import _check_same_draws
from resharpen.analysis.verify import comparable
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.specs import shelf, toml
from resharpen.experiments.specs.shelf import SCALES, SHELF, take
from resharpen.experiments.specs.spec import Experiment, role
from resharpen.experiments.specs.toml import differences, from_data, identities, read_toml, search_data, to_data
from resharpen.experiments.specs.variant import Variant
from resharpen.optim.hyperparameters import Row
from resharpen.parts import STUDIED_PLACEMENTS, Placement
from resharpen.views.report import about

GOOD = """
name = "mine"
models = 20
steps = 1000
variants = ["pre", "mine"]

[task]
v = 9
train_lengths = [2, 3]

[variant.mine]
placement = { block_out = true }

[hyperparameters]
peak_learning_rate = 1e-3
weight_decay = [1e-6, 1e-2]
"""


def read(text: str):
    return from_data(tomllib.loads(text))


def test_a_file_says_what_it_means():
    spec = read(GOOD)
    assert [setting.name for setting in spec.settings] == ["sct-v9-s2", "sct-v9-s3"]
    assert spec.variants == {
        "pre": Variant("pre", "rms", "softmax", "nope", "adamw"),
        "mine": Variant(Placement(block_out=True), "rms", "softmax", "nope", "adamw"),
    }
    assert (spec.models, spec.steps, spec.batch, spec.checkpoints, spec.seed) == (20, 1000, 256, 100, 0)
    assert set(spec.hyperparameters) == {"peak_learning_rate", "weight_decay"}
    for variant in spec.variants.values():
        rows = spec.rows(variant)
        assert rows["peak_learning_rate"].low == rows["peak_learning_rate"].high == 1e-3
        assert (rows["weight_decay"].low, rows["weight_decay"].high) == (1e-6, 1e-2)
        assert rows["ema_lag"].high == 1e10


@pytest.mark.parametrize("spec", [read(GOOD), *(take(name, scale) for name in SHELF for scale in SCALES)])
def test_a_resolved_spec_reads_back_the_same(spec):
    assert from_data(to_data(spec)) == spec


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("v = 9", "v = 1", "v = 1: the set needs at least 2 tokens"),
        ("v = 9", "v = 3", r"training length 3: for sct-v3 1\.\.2"),
        ("v = 9", 'v = "9"', "v = '9': must be a whole number"),
        ("train_lengths = [2, 3]", "train_lengths = [0]", r"training length 0: for sct-v9 1\.\.8"),
        ("train_lengths = [2, 3]", "train_lengths = [2, 2]", "a length occurs twice"),
        ("train_lengths = [2, 3]", "train_lengths = []", "at least one training length"),
        ("train_lengths = [2, 3]", "", "needs 'train_lengths'"),
        ("train_lengths = [2, 3]", "train_length = 3", r"write a list, train_lengths = \[3\]"),
        ("models = 20", "models = 0", "models = 0: must be at least 1"),
        ("steps = 1000", "steps = -5", "steps = -5: must be at least 1"),
        ("steps = 1000", "", "'steps' is missing"),
        ("steps = 1000", "steps = 10\nstpes = 1", "unknown key 'stpes': did you mean 'steps'"),
        ('"pre", "mine"', '"prei"', "unknown variant 'prei': did you mean 'pre'"),
        ("block_out", "block_ot", r"site in \[variant\.mine\.placement\] 'block_ot': did you mean 'block_out'"),
        ("placement =", "placment =", r"unknown key in \[variant\.mine\] 'placment': did you mean 'placement'"),
        ("{ block_out = true }", '"prei"', "unknown placement 'prei': did you mean 'pre'"),
        ("{ block_out = true }", "7", "placement in .* = 7: must be a name or a table of sites"),
        ("block_out = true", "block_out = 1", "must be true or false"),
        ("[variant.mine]", '[variant."a/b"]', "letters, digits"),
        ('"mine"]', '"pre"]', "variant 'pre' is given twice"),
        ("variants =", "placements =", "unknown key 'placements': use 'variants' instead"),
        ("models = 20", 'models = 20\nattention = "log-n"', "unknown key 'attention': use 'variants' instead"),
        ("peak_learning_rate", "peak_lr", "unknown hyperparameter 'peak_lr'"),
        ("= 1e-3", "= -1.0", "allowed are a number or"),
        ("= 1e-3", "= [1, 2, 3]", "allowed are a number or"),
        ("= 1e-3", "= {low = 1e-3}", r"hyperparameters\.peak_learning_rate needs 'low' and 'high'"),
        ("= 1e-3", "= {low = 1, high = 2, scal = 1}", "unknown key in hyperparameters.peak_learning_rate 'scal'"),
        ("= 1e-3", '= {low = 1, high = 2, scale = "lin"}', "unknown scale of a Row 'lin'"),
        ("[task]", '[task]\nkind = "set-complemnt"', "did you mean 'set-complement'"),
        ("[task]", "[task]\nmodel = {d = 0}", "d = 0: model sizes are at least 1"),
        ("models = 20", 'models = 20\nengine = "natve"', "did you mean 'native'"),
    ],
)
def test_bad_files(old, new, message):
    assert old in GOOD
    with pytest.raises(UserError, match=message) as error:
        read(GOOD.replace(old, new))
    assert "\n" not in str(error.value)


LINEAR = """
import resharpen as rs

@rs.norm(hyperparameters={"alpha": rs.Row(0.1, 1.0, scale="linear")})
def straight(x, p):
    return x * p.alpha

@rs.norm(hyperparameters={"alpha": rs.Row(0.1, 1.0)})
def log(x, p):
    return x * p.alpha

@rs.optimizer(hyperparameters={"peak_learning_rate": rs.Row(0.1, 1.0, scale="linear")})
def descent(theta, g, state, p):
    return theta - p.lr * g, {}
"""


def scales(spec, name: str) -> list[str]:
    rows = [spec.rows(variant) for variant in spec.variants.values()]
    return [each[name].scale for each in rows if name in each]


def test_every_variant_s_row_is_narrowed_in_its_own_scale(tmp_path):
    """Whichever variant comes first, and also where the paper's row of that name has another scale."""
    (tmp_path / "own.py").write_text(f"{LINEAR}# {tmp_path}\n")
    data = {"name": "x", "models": 1, "steps": 1, "task": {"v": 4, "train_lengths": [2]}}
    data["variants"] = ["peri", *(f"peri+own.py:{name}" for name in ("log", "straight", "descent"))]
    data["hyperparameters"] = {"alpha": [0.2, 0.5], "peak_learning_rate": [0.2, 0.5]}
    spec = from_data(data, tmp_path)
    assert scales(spec, "alpha") == ["log", "linear"]
    assert scales(spec, "peak_learning_rate") == ["log", "log", "log", "linear"]
    assert {spec.rows(variant)["peak_learning_rate"].low for variant in spec.variants.values()} == {0.2}
    assert from_data(to_data(spec)) == spec
    assert to_data(spec)["hyperparameters"] == data["hyperparameters"]
    linear = {"low": 0.2, "high": 0.5, "scale": "linear", "floor": False}
    assert search_data(spec)["peri+descent"]["peak_learning_rate"] == linear


def test_a_row_keeps_its_scale_and_floor_when_it_is_written(tmp_path):
    lag, warmup, rate = Row(1, 9, scale="linear", floor=True), Row(1, 9, floor=True), Row(1e-4, 1e-2)
    spec = replace(read(GOOD), hyperparameters={"ema_lag": lag, "warmup_steps": warmup, "peak_learning_rate": rate})
    data = json.loads(json.dumps(to_data(spec)))
    assert data["hyperparameters"] == {
        "ema_lag": {"low": 1, "high": 9, "scale": "linear", "floor": True},
        "warmup_steps": [1, 9],
        "peak_learning_rate": [1e-4, 1e-2],
    }
    for variant in spec.variants.values():
        assert from_data(data).rows(variant) == spec.rows(variant)
        assert (spec.rows(variant)["ema_lag"].scale, spec.rows(variant)["ema_lag"].floor) == ("linear", True)


def test_rows_in_python_are_what_they_are_in_a_file():
    assert replace(read(GOOD), hyperparameters={"peak_learning_rate": 1e-3, "weight_decay": (1e-6, 1e-2)}) == read(GOOD)
    for given in (Row(2, 3), 1.5, "x", [1, 2, 3], True):
        with pytest.raises(UserError, match=r"one_minus_beta1 = .*: allowed are a number or"):
            replace(read(GOOD), hyperparameters={"one_minus_beta1": given})


COIN = """
from dataclasses import dataclass
import numpy as np
import resharpen as rs

@dataclass(frozen=True)
class Coin(rs.TokenTask):
    sides: int
    longest = 6
    vocabulary = property(lambda self: self.sides + 1)
    opening = property(lambda self: self.sides)

    def sample(self, words):
        return rs.below(words, self.sides)

    def p_star(self, inputs):
        return np.full((*inputs.shape, SIDES), 1 / self.sides)
"""


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ("self.sides", r"task 'coin-sides2': p_star has the shape \[64, 6, 2\], not \[64, 6, 3\]"),
        ("self.vocabulary", r"p_star sums to 1\.5"),
        ("self.side", "task 'coin-sides2' failed in your own code:(.|\n)*has no attribute 'side'"),
    ],
)
def test_an_own_task_is_tried_before_anything_is_trained(tmp_path, sides, message):
    (tmp_path / "coin.py").write_text(COIN.replace("SIDES", sides) + f"# {tmp_path}\n")
    task = {"kind": "coin.py:Coin", "sides": 2, "train_lengths": [3]}
    with pytest.raises(UserError, match=message):
        from_data({"name": "x", "models": 1, "steps": 1, "variants": ["pre"], "task": task}, tmp_path)


def test_not_toml(tmp_path: Path):
    path = tmp_path / "bad.toml"
    path.write_text("name = ")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(path)
    with pytest.raises(UserError, match="No such file"):
        read_toml(tmp_path / "nothing.toml")


def test_differences_name_the_leaf():
    old = to_data(read(GOOD))
    new = to_data(read(GOOD.replace("1e-3", "2e-3").replace("steps = 1000", "steps = 2000")))
    assert differences(old, new) == [
        "hyperparameters.peak_learning_rate: 0.001 -> 0.002",
        "steps: 1000 -> 2000",
    ]


def test_checkpoints_are_even_and_end_at_the_last_step():
    spec = read(GOOD)
    assert spec.checkpoint_steps() == list(range(10, 1001, 10))
    assert replace(spec, steps=7).checkpoint_steps() == [1, 2, 3, 4, 5, 6, 7]


def test_shards_are_groups_and_stay_whole_when_a_run_grows():
    spec = read(GOOD)
    ranges = {(shard.first, shard.count) for shard in spec.shards()}
    assert ranges == {(0, 16), (16, 4)}
    assert len(spec.shards()) == 2 * 2 * 2
    grown = {(shard.first, shard.count) for shard in replace(spec, models=40).shards([20])}
    assert grown == {(0, 16), (16, 4), (20, 12), (32, 8)}


def test_settings_go_by_task_and_length_alone():
    """Nothing of the model is in the name, because the random streams go by it."""
    usual = read(GOOD).settings[0]
    wide = read(GOOD.replace("[task]", "[task]\nmodel = {d = 16, d_k = 2}")).settings[0]
    assert usual.name == wide.name == "sct-v9-s2"
    assert (wide.model.d, wide.model.d_k, wide.model.d_v) == (16, 2, 8)
    data = tomllib.loads(GOOD)
    with pytest.raises(UserError, match=r"two tasks are called 'sct-v9-s[23]'"):
        from_data(data | {"task": [data["task"], data["task"] | {"model": {"d": 16}}]})


def test_a_path_may_be_a_text(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace('name = "mine"\n', ""))
    assert read_toml(str(path)) == read_toml(path) == read(GOOD)


def test_the_shelf_at_paper_scale_is_the_protocol():
    figure1, figure5 = take("fig1", "paper"), take("fig5", "paper")
    for spec, vocabularies in ((figure1, {9}), (figure5, {16, 25})):
        assert (spec.models, spec.steps, spec.batch, spec.checkpoints) == (1000, 1_000_000, 256, 100)
        assert list(spec.variants) == ["pre", "post", "peri", "peri-init"]
        assert {s.task.v for s in spec.settings} == vocabularies
        assert {(s.train_length) for s in spec.settings} == set(range(1, 9))
        assert all((s.model.d, s.model.d_k, s.model.d_v) == (s.task.v - 1, 1, s.task.v - 1) for s in spec.settings)
    assert tuple(take("placements", "paper").variants) == STUDIED_PLACEMENTS


@dataclass(frozen=True)
class Wider(Experiment):
    """An experiment with one field more."""

    turns: int = role(int, default=1, trains=True, pairs=True, option=True, shown="turns")


def test_a_field_is_declared_once_and_found_everywhere(monkeypatch):
    """In TOML files, the spec that workers read, identities, pairs, references, commands and reports."""
    for module in (toml, shelf):
        monkeypatch.setattr(module, "Experiment", Wider)
    usual = shelf.take("fig1", "smoke")
    wider = usual.with_changes(turns=3)
    assert (usual.turns, wider.turns) == (1, 3)
    assert toml.from_stored(toml.to_data(wider), Path("run.json")) == wider
    assert toml.from_data({**toml.to_data(usual), "turns": 5}).turns == 5
    with pytest.raises(UserError, match="turns"):
        toml.from_data({**toml.to_data(usual), "turns": "five"})
    shard = usual.shards()[0]
    assert identities(usual, {})(shard) != identities(wider, {})(shard)
    assert any("turns" in line for line in toml.differences(toml.to_data(usual), toml.to_data(wider)))
    with pytest.raises(UserError, match="turns = 3, not 1"):
        comparable(wider, usual)
    runs = (SimpleNamespace(experiment=spec, directory="r") for spec in (usual, wider))
    with pytest.raises(UserError, match=r"cannot be paired with r \(turns: 1 -> 3"):
        _check_same_draws(*runs)
    assert {"what": "turns", "here": "3", "paper": "1"} in about.cut(wider)
    assert "--turns 3" in about.command(SimpleNamespace(experiment=wider, directory="r", command="continue"))


def test_a_spec_is_checked_once_on_its_way_to_a_run(tmp_path, monkeypatch):
    """And the header of the run once, which is read from the disk."""
    checked = []
    check = Experiment._check_variants
    monkeypatch.setattr(Experiment, "_check_variants", lambda self: checked.append(self.name) or check(self))
    arguments = ["--models", "1", "--steps", "2", "--workers", "1", "--engine", "torch", "--variants", "pre"]
    main(["run", "fig1", "--scale", "smoke", *arguments, "--out", str(tmp_path / "r")])
    assert len(checked) <= 3  # the figure of the shelf, what the command line made of it, the header
