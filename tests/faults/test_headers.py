"""A header that was changed: it is the one that is blamed, and no result is lost to it."""

import json
import re

import pytest
from runs import assert_same_results, forge, refused

from resharpen.cli import main
from resharpen.experiments.keeping.store import Run


def contents(directory):
    """Every file of a run but its lock; figures are drawn anew."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"steps": 12', '"steps": 13'),
        ('"seed": 0', '"seed": 1'),
        ('"models": 3', '"models": 2'),
        ('"batch": 8', '"batch": 9'),
        ('"extents": \\[\\]', '"extents": [1]'),
        ('"cores": \\d+', '"cores": 1000'),
        ('"checksum": "', '"checksum": "0'),
        ('"format": (\\d+)', '"format": 9\\1'),
    ],
)
def test_one_changed_digit_deletes_nothing(finished, capsys, old, new):
    path = finished.directory / "run.json"
    text, n = re.subn(old, new, path.read_text(), count=1)
    assert n == 1
    path.write_text(text)
    before = contents(finished.directory)
    for command in (["run"], ["run", "--discard"], ["status"], ["results"]):
        said = refused(capsys, command[0], str(finished.directory), *command[1:])
        expected = "this version reads format" if "format" in old else "run.json was changed after it was written"
        assert expected in said
    assert contents(finished.directory) == before


def test_what_a_header_says_counts_not_how_it_is_written(finished, capsys):
    path = finished.directory / "run.json"
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items()))))
    main(["status", str(finished.directory)])
    assert "4 of 4 finished" in capsys.readouterr().out


def test_a_header_without_checksum_is_refused(finished, capsys):
    path = finished.directory / "run.json"
    header = json.loads(path.read_text())
    del header["checksum"]
    path.write_text(json.dumps(header))
    assert "run.json has no checksum" in refused(capsys, "run", str(finished.directory))


def with_other_steps(header):
    header["spec"]["steps"] = 13


@pytest.mark.parametrize("change", [with_other_steps, lambda header: header["spec"].update(seed=1)])
def test_shards_of_another_spec_are_not_deleted(finished, capsys, change):
    """Even where the checksum of the header is right."""
    forge(finished.directory / "run.json", change)
    before = contents(finished.directory)
    said = refused(capsys, "run", str(finished.directory), "--workers", "1")
    assert "4 finished shards do not belong to" in said
    assert "Nothing was deleted" in said
    assert "--discard" in said
    assert "Nothing was deleted" in refused(capsys, "status", str(finished.directory))
    assert contents(finished.directory) == before


def test_with_damaged_ones_among_them_nothing_is_deleted_either(finished, capsys):
    a, b = (finished.files(shard).directory for shard in finished.shards()[:2])
    (a / "lengths.parquet").write_bytes(b"damaged")
    (b / "manifest.json").write_bytes((a / "manifest.json").read_bytes())
    before = contents(finished.directory)
    assert "1 finished shards do not belong to" in refused(capsys, "run", str(finished.directory))
    assert contents(finished.directory) == before


def test_discard_throws_them_away_and_trains_them(finished, whole, capsys):
    original = (finished.directory / "run.json").read_bytes()
    forge(finished.directory / "run.json", with_other_steps)
    main(["run", str(finished.directory), "--workers", "1", "--discard"])
    assert set(Run(finished.directory).table("models")["steps"]) == {13}
    (finished.directory / "run.json").write_bytes(original)
    main(["run", str(finished.directory), "--workers", "1", "--discard"])
    assert_same_results(Run(finished.directory), whole)


def test_discard_keeps_what_belongs_here(finished, capsys):
    before = {path: x for path, x in contents(finished.directory).items() if "shards" in path.parts}
    main(["run", str(finished.directory), "--workers", "1", "--discard"])
    assert {path: x for path, x in contents(finished.directory).items() if "shards" in path.parts} == before


def test_an_extended_run_has_a_checksum_of_its_own(finished, capsys):
    old = json.loads((finished.directory / "run.json").read_text())["checksum"]
    main(["run", str(finished.directory), "--models", "4", "--workers", "1"])
    assert json.loads((finished.directory / "run.json").read_text())["checksum"] != old
    main(["status", str(finished.directory)])
    assert "8 of 8 finished" in capsys.readouterr().out
