"""What is kept of a run: it is looked at like the run, and grows from run to run."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from make_reference import write_reference
from polars.testing import assert_frame_equal

import resharpen as rs
from resharpen.analysis.verify import verify
from resharpen.cli import main
from resharpen.experiments.keeping.opening import open_run_or_reference
from resharpen.experiments.keeping.reference import references
from resharpen.experiments.specs.variant import Variant


@pytest.fixture
def larger(tiny):
    """Two groups of draws."""
    return replace(tiny, models=20)


def keep(run, directory):
    return write_reference(run, rs.scores(run), directory)


def test_a_reference_is_looked_at_like_its_run(tiny, tmp_path, capsys):
    run = rs.run(tiny, tmp_path / "run", workers=1)
    reference = keep(run, tmp_path / "reference")
    for command in ("results", "claims"):
        main([command, str(run.directory)])
        of_run = capsys.readouterr().out
        main([command, str(reference.directory)])
        assert capsys.readouterr().out == of_run
    main(["compare", str(reference.directory), "--with", str(run.directory), "--out", str(tmp_path / "out")])
    assert "peri@run" in capsys.readouterr().out
    main(["figure", str(reference.directory), "--out", str(tmp_path / "out")])
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"figure.png", "comparison.png"}
    assert len(list(reference.directory.iterdir())) == 3, "nothing is written into a reference"


def test_pictures_of_a_reference_go_to_runs(tiny, tmp_path, monkeypatch):
    reference = keep(rs.run(tiny, tmp_path / "run", workers=1), tmp_path / "reference")
    monkeypatch.chdir(tmp_path)
    main(["figure", str(reference.directory)])
    assert (tmp_path / "runs" / tiny.name / "figure.png").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["figure", "REFERENCE", "--attention", "log-n"], "has no weights"),
        (["inspect", "REFERENCE"], "use it with report, figure, results, claims or compare"),
        (["verify", "REFERENCE"], "use it with report"),
    ],
)
def test_what_a_reference_has_not_is_one_line(tiny, tmp_path, capsys, command, said):
    reference = keep(rs.run(tiny, tmp_path / "run", workers=1), tmp_path / "reference")
    with pytest.raises(SystemExit, match="2"):
        main([str(reference.directory) if word == "REFERENCE" else word for word in command])
    assert said in " ".join(capsys.readouterr().err.split())
    with pytest.raises(rs.UserError, match=r"unknown .*table 'curves'"):
        reference.table("curves")


@pytest.mark.parametrize("name", references())
def test_what_the_package_keeps_goes_by_its_name(name):
    kept = open_run_or_reference(name)
    assert kept.table("models")["model"].is_unique().all()
    assert set(kept.table("lengths")["model"]) == set(kept.table("models")["model"])


def test_a_reference_in_python():
    ours = rs.reference("fig1-laptop")
    assert rs.scores(ours).height == 2 * ours.table("models").height
    with pytest.raises(rs.UserError, match="there is no reference for 'fig9'"):
        rs.reference("fig9")


def test_a_reference_grows_into_what_one_run_would_have_left(larger, tmp_path):
    whole = rs.run(larger, tmp_path / "whole", workers=1)
    first = rs.run(replace(larger, models=16), tmp_path / "first", workers=1)
    keep(first, tmp_path / "grown")
    rest = rs.run(larger, tmp_path / "rest", workers=1, without={shard.name for shard in first.shards()})
    assert len(rest.done()) == 4, "one shard of four draws for each setting and variant"
    grown, once = keep(rest, tmp_path / "grown"), keep(whole, tmp_path / "once")
    assert grown.experiment == once.experiment
    assert grown.built == once.built
    assert len(grown.header["made"]) == 2
    for name in ("models", "lengths"):
        assert_frame_equal(grown.table(name), once.table(name), check_row_order=False)
    assert not any(check.differs for check in verify(whole, grown))


def test_what_is_kept_stays(larger, tmp_path):
    reference = keep(rs.run(larger, tmp_path / "run", workers=1), tmp_path / "kept")
    before = reference.table("lengths")
    other = rs.run(replace(larger, models=18), tmp_path / "other", workers=1)  # ends within the second shard
    again = keep(other, tmp_path / "kept")
    assert again.experiment.models == 20
    assert_frame_equal(again.table("lengths"), before)
    assert len(again.header["made"]) == 1


def test_models_that_cannot_be_kept_are_named(larger, tmp_path):
    reference = keep(rs.run(replace(larger, models=18), tmp_path / "run", workers=1), tmp_path / "kept")
    before = reference.table("models")
    with pytest.warns(UserWarning, match="00016-00019: the others are left out"):
        again = keep(rs.run(larger, tmp_path / "other", workers=1), tmp_path / "kept")
    assert_frame_equal(again.table("models"), before)


def test_another_spec_is_not_mixed_in(tiny, tmp_path):
    keep(rs.run(tiny, tmp_path / "run", workers=1), tmp_path / "kept")
    for change in ({"steps": 13}, {"seed": 1}, {"variants": {"peri": Variant("peri")}}):
        other = rs.run(replace(tiny, **change), tmp_path / f"other-{next(iter(change))}", workers=1)
        with pytest.raises(rs.UserError, match=f"is of another spec .*{next(iter(change))}"):
            keep(other, tmp_path / "kept")


def test_variants_of_a_reference_change_only_if_asked(tiny, tmp_path):
    keep(rs.run(tiny, tmp_path / "run", workers=1), tmp_path / "kept")
    before = rs.load(tmp_path / "run").table("lengths")
    variants = {"peri": tiny.variants["peri"], "mine": Variant("none")}
    other = rs.run(replace(tiny, variants=variants), tmp_path / "other", workers=1)
    changed = write_reference(other, rs.scores(other), tmp_path / "kept", other_variants=True)
    assert set(changed.table("models")["variant"]) == {"peri", "mine"}
    assert [len(made["built"]) for made in changed.header["made"]] == [len(other.shards()) / 2] * 2
    assert set(changed.built) == {shard.name for shard in other.shards()}
    of_peri = pl.col("model").str.contains("/peri/")
    assert_frame_equal(changed.table("lengths").filter(of_peri), before.filter(of_peri), rel_tol=1e-6)
    redefined = replace(tiny, variants={**variants, "mine": Variant("post")})
    another = rs.run(redefined, tmp_path / "redefined", workers=1)
    with pytest.raises(rs.UserError, match=r"is of another spec \(variant\.mine\.placement: none -> post\)"):
        write_reference(another, rs.scores(another), tmp_path / "kept", other_variants=True)


def test_values_come_back_in_double_precision(tiny, tmp_path):
    run = rs.run(tiny, tmp_path / "run", workers=1)
    reference = keep(run, tmp_path / "reference")
    assert reference.table("lengths").schema == run.table("lengths").schema
    kept = pl.read_parquet(next(reference.directory.glob("lengths-*.parquet")))
    assert kept.schema["value"] == pl.Float32


@pytest.mark.parametrize("header", ["{}", "[]", '{"spec": {}, "drawn": {}, "made": [], "sha256": {}}', "{"])
def test_a_damaged_header_is_one_line(header, tmp_path, capsys):
    (tmp_path / "reference.json").write_text(header)
    with pytest.raises(SystemExit) as ended:
        main(["results", str(tmp_path)])
    assert ended.value.code == 2
    assert "reference.json is damaged" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


DYING = """
import os, runpy, signal, sys
left = int(sys.argv[1])

def dying(call):
    def before(*args):
        global left
        path = str(args[-1])
        if "/reference/" in path and not path.endswith(".tmp"):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return call(*args)
    return before

os.replace, os.unlink = dying(os.replace), dying(os.unlink)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A program that is killed right before it puts the n-th file of a reference in its place, or removes one."""


def test_killed_while_it_grows_a_reference_is_the_old_or_the_new_one(larger, tmp_path, capsys):
    def seen(directory):
        main(["results", str(directory), "--csv"])
        return capsys.readouterr().out

    first = rs.run(replace(larger, models=16), tmp_path / "first", workers=1)
    whole = rs.run(larger, tmp_path / "whole", workers=1, without={shard.name for shard in first.shards()})
    directory = tmp_path / "reference" / larger.name
    keep(first, directory)
    keep(first, tmp_path / "grown")
    old, new = seen(directory), seen(keep(whole, tmp_path / "grown").directory)
    tool, killed = Path(__file__).parents[3] / "tools" / "make_reference.py", []
    for steps in range(10):
        command = [sys.executable, "-c", DYING, str(steps), str(tool), str(whole.directory)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed.append("old" if seen(directory) == old else "new" if seen(directory) == new else "neither")
    assert killed == ["old", "old", "old", "new", "new"], "two tables, the switch, two tables that go"
    assert seen(directory) == new
    assert len(list(directory.iterdir())) == 3, "nothing is left over"


def test_settings_that_are_trained_again_replace_what_was_kept(larger, tmp_path):
    first = rs.run(larger, tmp_path / "first", workers=1)
    directory = tmp_path / "reference" / larger.name
    old = keep(first, directory)
    models = sorted(old.table("models")["model"])
    other = rs.run(larger, tmp_path / "second", workers=1)
    (again, *_), kept = sorted({shard.setting.name for shard in other.shards()}), set(old.built)
    new = write_reference(other, rs.scores(other), directory, [again])
    by_command = {made["command"]: set(made["built"]) for made in new.header["made"]}
    replaced = {name for name in kept if name.startswith(f"{again}/")}
    assert by_command == {first.command: kept - replaced, other.command: replaced}
    assert sorted(new.table("models")["model"]) == models
