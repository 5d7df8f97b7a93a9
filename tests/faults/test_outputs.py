"""What a user asks to be written: never over the files of a run, whole or not at all, whoever else is at work."""

import contextlib
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from make_reference import write_reference
from runs import assert_same_results, refused

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.store import Run

SHARD = "shards/sct-v4-s1/pre/00000-00002"


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


AMONG = {
    "results --parquet": [f"{SHARD}/models.parquet", f"{SHARD}/x.parquet", "shards/x.parquet", ".x.parquet"],
    "score --csv": [f"{SHARD}/x.csv", "code/x.csv"],
    "report --out": ["shards/x.html", "code/x.html"],
    "figure --out": [SHARD, "shards", "code", "code/deeper"],
    "compare --out": [SHARD],
    "inspect --out": [SHARD],
    "run --out": ["shards/new", "code"],
}


@pytest.mark.parametrize("command", AMONG)
def test_no_output_among_the_files_of_a_run(finished, tmp_path, monkeypatch, capsys, command):
    """Of this run or of another, by whichever way."""
    monkeypatch.chdir(tmp_path)
    run, before = finished.directory, files_in(finished.directory)
    (tmp_path / "link").symlink_to(run / "shards")
    name, option = command.split()
    target = f"{run}:sct-v4-s1/pre/0" if name == "score" else "fig1" if name == "run" else str(run)
    for place in AMONG[command]:
        ways = [f"{run}/{place}", f"{run}/shards/../{place}", f"finished/{place}"]
        for way in ways + [f"link/{place[7:]}"] * place.startswith("shards/"):
            said = refused(capsys, name, target, option, way)
            assert f"{way} is inside the files of {run}: choose another path" in said
    assert files_in(run) == before


def test_no_output_over_a_reference(finished, tmp_path, capsys):
    kept = write_reference(finished, rs.scores(finished), tmp_path / "kept").directory
    before = files_in(kept)
    (table,) = kept.glob("models-*.parquet")
    assert "is inside the files" in refused(capsys, "results", str(finished.directory), "--parquet", str(table))
    main(["report", str(kept), "--out", str(kept / "page.html")])
    assert files_in(kept) == before | {"page.html": (kept / "page.html").read_bytes()}


def test_output_beside_the_files_of_a_run(finished, tmp_path):
    run = str(finished.directory)
    main(["results", run, "--parquet", f"{run}/results.parquet"])
    main(["figure", run, "--out", f"{run}/pictures"])
    (tmp_path / "elsewhere.png").write_text("mine")
    (finished.directory / "figure.png").unlink(missing_ok=True)
    (finished.directory / "figure.png").symlink_to(tmp_path / "elsewhere.png")
    main(["figure", run])
    assert (tmp_path / "elsewhere.png").read_text() == "mine", "written through a link"
    assert not (finished.directory / "figure.png").is_symlink()


def test_run_leaves_the_report_of_a_living_process_alone(finished, monkeypatch):
    """Which is half written: to be done with by its own process, and not removed as that of a dead one."""
    half_written, go_on, replace = threading.Event(), threading.Event(), os.replace

    def slowly(source, target):
        if str(target).endswith("report.html"):
            half_written.set()
            assert go_on.wait(30)
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", slowly)
    reporting = threading.Thread(target=main, args=(["report", str(finished.directory)],))
    reporting.start()
    assert half_written.wait(30)
    running = threading.Thread(target=rs.run, args=(finished.experiment, finished.directory), kwargs={"workers": 1})
    running.start()
    running.join(0.5)
    assert list(finished.directory.glob(".report.html.*.tmp"))
    go_on.set()
    for thread in (reporting, running):
        thread.join(30)
    assert (finished.directory / "report.html").read_text().startswith("<!")
    assert not list(finished.directory.glob(".*.tmp"))


@pytest.fixture
def disk(finished, tmp_path):
    """A finished run with a figure, on a disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    options = "size=2m,nr_inodes=100"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a full disk cannot be tried: mounting one needs rights ({mounted.stderr.strip()})")
    try:
        shutil.copytree(finished.directory, place / "run")
        main(["figure", str(place / "run")])
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_bytes(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def fill_inodes(disk: Path) -> None:
    with contextlib.suppress(OSError):
        for i in range(1000):
            (disk / f"{i}").touch()


@pytest.mark.parametrize("fill", [fill_bytes, fill_inodes])
def test_a_full_disk_while_drawing_leaves_the_good_figure(disk, capsys, fill):
    run = disk / "run"
    before = files_in(run)
    fill(disk)
    score = ["score", f"{run}:sct-v4-s1/pre/0", "--csv", f"{disk}/x.csv"]
    commands = [["figure", str(run)], ["figure", str(run), "--out", f"{disk}/new"], ["report", str(run)]]
    for args in (*commands, ["results", str(run), "--parquet", f"{disk}/x.parquet"], score):
        with pytest.raises(SystemExit) as ended:
            main(args)
        said = capsys.readouterr().err
        assert ended.value.code == 1, said
        assert said.count("\n") == 1
        assert "No space left on device" in said
    assert files_in(run) == before


def test_a_place_that_cannot_be_written_to_is_bad_input(finished, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for args in (["figure", "--out"], ["results", "--parquet"], ["report", "--out"]):
        ending = {"results": ".parquet", "report": ".html"}.get(args[0], "")
        assert "file" in refused(capsys, args[0], str(finished.directory), args[1], str(tmp_path / f"file/x{ending}"))


def test_a_reader_that_does_not_work_costs_nothing(finished, whole, monkeypatch, capsys):
    """Polars without threads panics over every table: none of them is damaged."""
    import polars as pl

    def panic(*_, **__):
        raise pl.exceptions.PanicException("no threads")

    monkeypatch.setattr(pl, "read_parquet", panic)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(finished.directory), "--workers", "1"])
    assert ended.value.code == 1
    assert "polars cannot read tables here: no threads; nothing was deleted" in capsys.readouterr().err
    monkeypatch.undo()
    assert_same_results(Run(finished.directory), whole)


DOLLARS = """
models = 2
steps = 2
batch = 4
checkpoints = 1
variants = ["peri", "pre"]
engine = "torch"
[task]
kind = "automaton"
name = "dollars"
start = "a"
train_lengths = [6]
model = { d = 4, layers = 1, heads = 1, d_mlp = 4 }
[task.states.a]
"$_$" = [0.5, "a"]
"_b^{" = [0.3, "a"]
end = 0.2
"""


def test_names_are_not_read_as_formulas(tmp_path, finished, capsys):
    """Of tokens, say. Matplotlib's own formulas, which would be shown raw, are not there."""
    (tmp_path / "dollars.toml").write_text(DOLLARS)
    main(["run", str(tmp_path / "dollars.toml"), "--out", str(tmp_path / "r"), "--workers", "1"])
    main(["inspect", str(tmp_path / "r")])
    main(["inspect", str(finished.directory), "--out", str(tmp_path / "r")])
    pictures = {path.stem: path.read_text() for path in (tmp_path / "r").glob("*.svg")}
    assert {"figure", "comparison", "attention", "inspect-model", "inspect-run", "dispersion"} <= set(pictures)
    assert not [name for name, text in pictures.items() if "mathdefault" in text]
    assert ">$_$</text>" in pictures["attention"]
