"""Code of the user's own may change the working directory, when it is read and while it trains: a run stays where it
is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import resharpen as rs
from resharpen import own
from resharpen.cli import main

CODE = """
import os
import resharpen as rs

os.chdir({elsewhere!r})

@rs.norm()
def {name}(x, p):
    os.chdir({elsewhere!r})
    return x / (1 + x * x)
"""
SPEC = """
models = 1
steps = 3
batch = 4
checkpoints = 1
engine = "torch"
variants = ["pre", "pre+code/moves.py:moves"]
task = { v = 4, train_lengths = [1, 2] }
"""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Where commands are started; code of the user's own goes elsewhere."""
    place = tmp_path / "place"
    (place / "code").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("moves", "too"):
        (place / "code" / f"{name}.py").write_text(CODE.format(name=name, elsewhere=str(tmp_path / "elsewhere")))
    (place / "spec.toml").write_text(SPEC)
    monkeypatch.chdir(place)  # and back, at the end
    return place


@pytest.fixture
def resharpen(place, capsys):
    """A command that is started in the place, and reads code of the user's own anew; what it says."""

    def call(*args: str) -> str:
        os.chdir(place)
        own._module.cache_clear()
        main([*args])
        assert Path.cwd() == place
        assert not list((place.parent / "elsewhere").iterdir())
        return capsys.readouterr().out

    return call


def test_relative_paths_lead_where_they_led(place, resharpen):
    said = resharpen("run", "spec.toml", "--out", "runs/r", "--workers", "1")
    assert {"run.json", "figure.png", "comparison.png"} <= {path.name for path in (place / "runs" / "r").iterdir()}
    assert "Figure: runs/r/figure.png" in said
    assert "resharpen report runs/r --open" in said
    assert "resharpen figure runs/r" in resharpen("status", "runs/r")
    assert "pictures/figure.png" in resharpen("figure", "runs/r", "--out", "pictures")
    assert "Report: report.html" in resharpen("report", "runs/r", "--out", "report.html")
    resharpen("results", "runs/r", "--parquet", "results.parquet")
    assert {"pictures", "report.html", "results.parquet"} <= {path.name for path in place.iterdir()}
    resharpen("run", "runs/r", "--models", "2", "--workers", "1")
    assert "8 of 8 finished" in resharpen("status", "../place/runs/r")


def test_workers_find_the_run(place):
    command = [sys.executable, "-m", "resharpen", "run", "spec.toml", "--out", "r", "--workers", "2"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Figure: r/figure.png" in done.stdout
    assert not list((place.parent / "elsewhere").iterdir())


def test_the_default_directory_and_files_on_the_command_line(place, resharpen):
    """The second file is looked for after the first has moved away."""
    variants = "pre,pre+code/moves.py:moves,pre+code/too.py:too"
    resharpen("run", "spec.toml", "--workers", "1", "--variants", variants)
    assert (place / "runs" / "spec" / "run.json").exists()


def test_a_run_in_python_stays_where_it_is(place, tmp_path):
    run = rs.run(
        rs.figure("fig1", "smoke").with_changes(models=1, steps=1, variants=["pre"], engine="torch"), "r", workers=1
    )
    os.chdir(tmp_path)
    assert run.table("models").height == len(run.shards()) > 0
    assert run.command == "resharpen run r"
