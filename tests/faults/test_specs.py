"""Specs that were let in, or ended in a traceback; and fuzzed ones, command lines and headers."""

import re
import shlex
import shutil
import time
from dataclasses import dataclass

import pytest
from runs import refused

import resharpen as rs
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.keeping import machine
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.toml import from_data, read_toml
from resharpen.tasks import MaxRetrieval, OwnLanguage, SetComplement

GOOD = {"models": 1, "steps": 3, "batch": 4, "checkpoints": 1, "variants": ["pre"], "engine": "torch"}
GOOD |= {"task": {"v": 3, "train_lengths": [1]}}
COIN = {"train_length": 8, "states": {"a": {"x": [0.5, "a"], "end": 0.5}}}


def language(**changes):
    return OwnLanguage.from_data(
        {key: x for key, x in (COIN | changes).items() if key not in ("kind", "train_lengths")}
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (MaxRetrieval(longest=64), MaxRetrieval(longest=128)),
        (MaxRetrieval(items=512), MaxRetrieval(items=256)),
        (language(sequences=10), language(sequences=20)),
        (language(), language(states={"a": {"x": [0.25, "a"], "end": 0.75}})),
        (SetComplement(4), SetComplement(4)),
    ],
)
def test_two_tasks_never_share_a_directory(a, b):
    """Names leave out what makes no other sequences; two of one name are refused before anything is written."""
    length = a.usual_train_length or 1
    with pytest.raises(UserError, match="two tasks are called"):
        Experiment("x", (Setting(a, length), Setting(b, length)), ["pre"], 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": []}, "at least one training length"),
        ({"task": [[]]}, "task = .*must be a table"),
        ({"task": 7}, "task = 7"),
        ({"task": [GOOD["task"], GOOD["task"]]}, "two tasks are called"),
        ({"task": {"v": 3, "train_lengths": [[1]]}}, "train_lengths"),
        ({"task": {"v": 3, "train_lengths": [1, 1]}}, "twice"),
        ({"variants": [[]]}, "variants"),
        ({"variants": [["pre"]]}, "variants"),
        ({"variants": {}}, "variants"),
        ({"models": 10**400}, "models = .*at most 2,147,483,647"),
        ({"models": 2**31}, "models = .*at most 2,147,483,647"),
        ({"seed": 2**63}, "seed = .*at most 9,223,372,036,854,775,807"),
        ({"steps": 1e3}, "steps"),
        ({"task": {"v": 10**6, "train_lengths": [1]}}, "weights is too large"),
        ({"task": {"kind": "dyck", "k": 10**9, "m": 3}}, "k times m is at most"),
        ({"hyperparameters": {"weight_decay": 10**400}}, "weight_decay = .*too large"),
        ({"hyperparameters": {"weight_decay": [[1]]}}, "weight_decay"),
        ({"hyperparameters": {"weight_decay": float("nan")}}, "weight_decay"),
        ({"name": "../../outside"}, "name = "),
        ({"name": "/tmp/outside"}, "name = "),
        ({"name": ".."}, "name = "),
        ({"name": ""}, "name = "),
        ({"name": "a\nb"}, "name = "),
        ({"name": "x" * 1000}, "at most 200"),
        ({"variant": {"Pre-x": {}, "pre-x": {}}, "variants": ["Pre-x", "pre-x"]}, "capitals"),
    ],
)
def test_what_is_wrong_is_one_line(change, message):
    with pytest.raises(UserError, match=message) as said:
        from_data({"name": "x", **GOOD, **change})
    assert len(str(said.value)) < 500


LARGE = """
models = 16
steps = 4
variants = ["pre"]
engine = "torch"
[task]
kind = "dyck"
k = 2
m = 3
train_lengths = [6]
model = { d = 15000, layers = 1, heads = 1, d_mlp = 8 }
"""


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_models_that_cannot_fit_are_refused_before_anything_is_written(tmp_path, monkeypatch, capsys, more):
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 2**22 if name == "SC_PHYS_PAGES" else 4096)
    (tmp_path / "spec.toml").write_text(LARGE.replace("torch", "torch"))
    said = refused(capsys, "run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "r"), *more)
    assert "variant 'pre' of dyck-k2-m3-s6: 16 models of 900,450,000 weights need at least 537 GiB" in said
    assert "this machine has 16 GiB" in said
    assert not (tmp_path / "r").exists()


def test_kernels_that_cannot_be_built_are_not_tried():
    wide = from_data(
        {**GOOD, "name": "wide", "engine": "auto", "task": {"v": 4, "train_lengths": [2], "model": {"d": 99_999}}}
    )
    with pytest.warns(UserWarning, match="a width of 99,999: it supports up to 512"):
        assert {variant.engine for variant in with_engine(wide).variants.values()} == {"torch"}


@pytest.mark.parametrize(
    "text", ["models = " + "9" * 5000, "a = " + "[" * 5000, "a = " + "{a = " * 2000, "\0", "[[task]]\n"]
)
def test_a_file_that_is_no_toml_is_one_line(tmp_path, text):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=r"x\.toml"):
        read_toml(tmp_path / "x.toml")


@dataclass(frozen=True)
class Sneaky(SetComplement):
    where: str = "x"

    @property
    def name(self) -> str:
        return f"sneaky-{self.where}"


def test_a_task_s_name_is_one_directory():
    with pytest.raises(UserError, match="name of a task"):
        Experiment("x", (Setting(Sneaky(3, "../../.."), 1),), ["pre"], 1, 1)


def test_misspelt_arguments_in_python(finished):
    shard = finished.shards()[0]
    for call in (
        lambda: rs.scores(finished, selection="bset"),
        lambda: rs.rescore(finished, "log-n", selection="bset"),
        lambda: rs.rescore(finished, "logn"),
        lambda: rs.draw(finished, "bset"),
        lambda: rs.load_model(finished, shard.model_ids[0], weights="trian"),
        lambda: rs.load_model(finished, f"{shard.setting.name}/pre/01"),
        lambda: rs.figure("fig1", scale="smok"),
        lambda: finished.table("length"),
        lambda: Experiment("x", finished.experiment.settings, ["pre"], "3", 1),
        lambda: Experiment("x", finished.experiment.settings, ["pre"], 2.5, 1),
    ):
        with pytest.raises(UserError):
            call()


def test_an_unfinished_run_read_with_another_attention(under_way, finished, capsys):
    assert code_of(["figure", str(under_way.directory), "--attention", "log-n"]) == 2
    assert "has no finished shard yet" in capsys.readouterr().err
    shutil.rmtree(finished.files(finished.shards()[-1]).directory)
    assert code_of(["figure", str(finished.directory), "--attention", "log-n"]) == 0


def code_of(args: list[str]) -> int:
    try:
        main(args)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize("models", [10**6, 10**9])
def test_a_dry_run_of_any_size_answers_at_once(models, capsys):
    """The time is that of the processor: shards are counted, not made."""
    main(["run", "fig1", "--scale", "smoke", "--engine", "native", "--dry-run"])  # kernels are there from now on
    started = time.process_time()
    main(["run", "fig1", "--engine", "native", "--models", str(models), "--dry-run"])
    assert time.process_time() - started < 2
    assert f"{8 * 4 * models // 16:,}" in capsys.readouterr().out


def test_a_glob_pattern_is_a_name(whole, tmp_path, monkeypatch, capsys):
    """`G[1]` is not `G1`; neither are `*` and `?`."""
    monkeypatch.chdir(tmp_path)
    spec = dict(GOOD, name="g")
    for name, seed in {"G1": 1, "G[1]": 2, "G*": 3, "G?": 4}.items():
        rs.run(from_data({**spec, "seed": seed}), name, workers=1)
        main(["results", name, "--csv"])
        rows = capsys.readouterr().out.splitlines()
        column = rows[0].split(",").index("seed")
        assert {row.split(",")[column] for row in rows[1:]} == {str(seed)}


@pytest.mark.parametrize("name", ["[/x]", "[red]", "a b", "it's", ":smile:", "-x", "$HOME", "\u2713", "x" * 250])
def test_names_are_shown_as_they_are_and_quoted_for_the_shell(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rs.run(from_data({**GOOD, "name": "plain"}), name, workers=1)
    assert code_of(["status", f"./{name}"]) == 0
    assert code_of(["results", f"./{name}"]) == 0
    assert code_of(["run", f"./{name}", "--workers", "1"]) == 0
    said = re.sub(r"\s+", "", capsys.readouterr().out)
    quoted = re.sub(r"\s+", "", shlex.quote(f"./{name}" if name.startswith("-") else name))
    assert f"resharpenreport{quoted}--open" in said
