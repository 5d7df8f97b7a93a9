"""One run, one kind of bits: on a machine that rounds differently it is neither continued nor extended."""

import json
from dataclasses import replace

import pytest

import resharpen as rs
from resharpen.engines.native import build


@pytest.fixture
def native(tiny):
    return replace(tiny, engine="native", models=2, settings=tiny.settings[:1])


def test_a_run_says_how_it_rounds(native, tmp_path):
    run = rs.run(native, tmp_path / "run", workers=1)
    (rounding,) = json.loads((tmp_path / "run" / "run.json").read_text())["rounding"].values()
    assert [run.files(shard).told("built").partition("@")[2] for shard in run.done()] == [rounding] * 2


def test_another_processor_is_refused_and_reading_is_not(native, tmp_path, monkeypatch):
    rs.run(native, tmp_path / "run", workers=1)
    monkeypatch.setattr(build, "_cpu", lambda: "another processor")
    for models in (2, 3):
        with pytest.raises(rs.UserError, match=r"another processor or compiler.*--march x86-64-v3"):
            rs.run(replace(native, models=models), tmp_path / "run", workers=1)
    assert rs.load(tmp_path / "run").table("models").height == 4


def test_a_run_for_an_instruction_set_moves_between_processors(native, tmp_path, monkeypatch):
    portable = replace(native, march="x86-64")
    rs.run(portable, tmp_path / "run", workers=1)
    monkeypatch.setattr(build, "_cpu", lambda: "another processor")
    assert rs.run(replace(portable, models=3), tmp_path / "run", workers=1).table("models").height == 6


@pytest.mark.parametrize("march", ["", "../x", "a b", "-native", "x*"])
def test_an_instruction_set_is_a_name(native, march):
    with pytest.raises(rs.UserError, match="march"):
        replace(native, march=march)


def test_without_the_compiler_of_torch_a_run_is_not_continued(native, tmp_path, monkeypatch):
    begun = replace(native, engine="torch")
    rs.run(begun, tmp_path / "run", workers=1)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(rs.UserError, match=r"another processor or compiler.*cpu-uncompiled here"):
        rs.run(replace(begun, models=3), tmp_path / "run", workers=1)
