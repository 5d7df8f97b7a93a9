"""A full disk, and one that must not be written to."""

import os
import subprocess

import pytest
from polars.testing import assert_frame_equal

from resharpen.cli import main
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.schema import TABLES


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a full disk cannot be tried: mounting one needs rights ({mounted.stderr.strip()})")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(small_disk, whole, spec, workers, capsys, monkeypatch):
    out = small_disk / "run"
    monkeypatch.setattr("resharpen.commands.training.RunFigure._experiment", lambda self: (spec, out))
    monkeypatch.setattr("resharpen.commands.training.save_figures", lambda *_: None)
    with pytest.raises(SystemExit, match="1"):
        main(["run", "fig1", "--out", str(out), "--workers", workers])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "No space left on device; finished work is kept. Continue with: resharpen run" in error
    before = {path: path.stat().st_mtime_ns for path in out.rglob("manifest.json")}
    assert not list(out.rglob("*.tmp"))
    with pytest.raises(SystemExit, match="1"):  # full is full
        main(["run", "fig1", "--out", str(out), "--workers", "1"])
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    main(["run", "fig1", "--out", str(out), "--workers", "1"])
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    for name in TABLES:
        assert_frame_equal(Run(out).table(name), whole.table(name), check_exact=True)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_rights_is_one_line(finished, spec, capsys):
    (finished.directory / ".lock").chmod(0o400)
    with pytest.raises(SystemExit, match="2"):
        main(["run", str(finished.directory)])
    assert "cannot lock" in capsys.readouterr().err


def test_a_read_only_disk(tmp_path, finished, spec, capsys):
    """Reading works, writing is refused in one line."""
    place = finished.directory
    bound = subprocess.run(["mount", "--bind", str(place), str(place)], capture_output=True, text=True)
    if bound.returncode:
        pytest.skip(f"a read-only disk cannot be tried: mounting one needs rights ({bound.stderr.strip()})")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        main(["results", str(place)])
        capsys.readouterr()
        for args in (["run", str(place)], ["figure", str(place)]):
            with pytest.raises(SystemExit, match="2"):
                main(args)
            error = capsys.readouterr().err
            assert "Read-only file system" in error
            assert error.count("\n") == 1
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    assert len(run(spec, place, workers=1).done()) == 4
