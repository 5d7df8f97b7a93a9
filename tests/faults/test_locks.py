"""One lock and one lease a shard: who may write, and through what."""

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from runs import STOP_AT_ONCE

from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping import files, lock
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.toml import to_data

posix = pytest.mark.skipif(os.name != "posix", reason="links and modes of POSIX")
START = """
import json, sys
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.toml import from_data
from resharpen.errors import UserError
specs = [from_data(json.loads(text)) for text in sys.argv[2:]]
for i in range(5):
    print("ready", flush=True); sys.stdin.readline()
    try:
        run(specs[0], f"{sys.argv[1]}/{i}", workers=1)
        print("trained", flush=True)
    except UserError as error:
        print("refused" if "holds another run (seed" in str(error) else error, flush=True)
"""

HOLD = """
import pathlib, sys
from resharpen.experiments.keeping import lock
with lock.if_free(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


def test_two_different_specs_on_one_new_directory(spec, tmp_path):
    """Five times at the same moment: one trains its own, the other is told that this is another run."""
    small = replace(spec, models=1, steps=3, variants=["pre"], settings=spec.settings[:1])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(tmp_path), json.dumps(to_data(replace(small, seed=seed)))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (0, 1)
    ]
    for i in range(5):
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.stdout.readline().strip() for process in started]
        assert sorted(said) == ["refused", "trained"]
        store = Run(tmp_path / str(i))
        assert store.experiment.seed == said.index("trained")
        assert set(store.table("models")["seed"]) == {said.index("trained")}
    for process in started:
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_lock_is_for_one_and_ends_with_its_holder(tmp_path):
    path = tmp_path / "lock"
    assert not lock.is_held(path)
    assert not path.exists()  # asking makes no file
    with lock.if_free(path) as held:
        assert held
        assert lock.is_held(path)
        with lock.if_free(path) as again:
            assert not again
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    assert lock.is_held(path)
    holder.kill()
    holder.communicate()
    assert not lock.is_held(path)


def test_who_waits_gets_it_when_it_is_free(tmp_path):
    got = []

    def wait():
        with lock.waiting(tmp_path / "lock"):
            got.append(True)

    waiter = threading.Thread(target=wait)
    with lock.if_free(tmp_path / "lock"):
        waiter.start()
        waiter.join(0.2)
        assert not got
    waiter.join(5)
    assert got


@posix
@pytest.mark.parametrize("name", [".lock", "lease"])
def test_a_lock_that_is_a_link_is_refused_and_its_target_untouched(spec, tmp_path, name):
    precious = tmp_path / "thesis.tex"
    precious.write_text("do not touch")
    place = tmp_path / "r" if name == ".lock" else tmp_path / "r" / "shards" / spec.shards()[0].name
    if name == "lease":
        run(replace(spec, models=1, variants=["pre"]), tmp_path / "r", workers=1)
        for path in place.parent.rglob("manifest.json"):
            path.unlink()
        place = next(place.parent.iterdir())
    place.mkdir(parents=True, exist_ok=True)
    (place / (".lock" if name == ".lock" else ".lease")).symlink_to(precious)
    with pytest.raises(UserError, match=r"cannot lock .*is a symbolic link"):
        run(replace(spec, models=1, variants=["pre"]), tmp_path / "r", workers=1)
    assert precious.read_text() == "do not touch"


@posix
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_damaged_shard_behind_a_link_is_refused_and_nothing_deleted_there(finished, spec, tmp_path, depth):
    where = finished.files(finished.shards()[0])
    linked = finished.directory.joinpath(*where.directory.relative_to(finished.directory).parts[:depth])
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    (where.directory / "lengths.parquet").write_bytes(b"damaged")
    (where.directory / "thesis.tex").write_text("do not touch")
    before = sorted(path.name for path in (tmp_path / "elsewhere").rglob("*"))
    with pytest.raises(UserError, match="is a symbolic link: runs are not written through links"):
        run(spec, finished.directory, workers=1)
    assert sorted(path.name for path in (tmp_path / "elsewhere").rglob("*")) == before


def test_discarding_leaves_what_is_not_ours(finished, spec):
    where = finished.files(finished.shards()[0])
    (where.directory / "lengths.parquet").write_bytes(b"damaged")
    (where.directory / "notes.txt").write_text("mine")
    run(spec, finished.directory, workers=1)
    assert (where.directory / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["lengths.parquet", "manifest.json", "state.safetensors"])
def test_a_directory_in_place_of_a_file_is_one_line(finished, spec, name):
    path = finished.files(finished.shards()[0]).directory / name
    path.unlink(missing_ok=True)
    path.mkdir()
    if name == "state.safetensors":
        (path.parent / "manifest.json").unlink()
        with pytest.warns(UserWarning, match="cannot be read"), pytest.raises(Failed, match="cannot write"):
            run(replace(spec), finished.directory, workers=1, observer=STOP_AT_ONCE)
        return
    with pytest.raises(UserError, match=f"{name} (is damaged|cannot be read|is not a manifest)"):
        Run(finished.directory).table("lengths")
    with pytest.raises(UserError, match="is a directory where a file should be"):
        run(spec, finished.directory, workers=1)


@posix
def test_all_files_have_the_same_rights(finished):
    modes = {stat.S_IMODE(path.stat().st_mode) for path in finished.directory.rglob("*") if path.is_file()}
    mask = os.umask(0)
    os.umask(mask)
    assert modes == {0o666 & ~mask}


def test_a_finished_run_has_nothing_left_over(whole):
    names = {path.name for path in whole.directory.rglob("*") if path.is_file()}
    results = {"models.parquet", "curves.parquet", "lengths.parquet", "weights.safetensors", "manifest.json"}
    assert names == results | {"run.json", "README.md", ".lock"}


def test_what_killed_writers_left_is_removed(under_way, spec):
    shards = under_way.shards()
    left = [
        under_way.directory / ".run.json.17-0123abcd.tmp",
        under_way.files(shards[0]).directory / ".state.safetensors.17-0123abcd.tmp",
        under_way.files(shards[1]).directory / ".lengths.parquet.99-0123abcd.tmp",
    ]
    for path in left:
        path.write_bytes(b"half")
    run(spec, under_way.directory, workers=1)
    assert not [path for path in under_way.directory.rglob("*") if path.suffix == ".tmp"]
    assert not list(under_way.directory.rglob("state.safetensors"))


def test_an_old_state_beside_a_finished_shard_is_removed(finished, under_way, spec):
    """A kill between the manifest and the removal of the state."""
    shard = finished.shards()[0]
    state = finished.files(shard).state
    state.write_bytes(under_way.files(shard).state.read_bytes())
    run(spec, finished.directory, workers=1)
    assert not state.exists()


@pytest.mark.parametrize("after", ["nothing", "temporary", "run.json"])
def test_a_stop_between_the_files_of_a_new_run(spec, tmp_path, after):
    out = tmp_path / "r"
    if after == "run.json":
        run(spec, out, workers=1, observer=STOP_AT_ONCE)
        (out / "README.md").unlink()
    else:
        out.mkdir()
        (out / ".lock").touch()
        if after == "temporary":
            (out / ".run.json.17-0123abcd.tmp").write_text("{")
    store = run(replace(spec, models=1), out, workers=1) if after != "run.json" else run(spec, out, workers=1)
    assert len(store.done()) == 4
    assert (out / "README.md").exists()


def test_an_extension_that_is_refused_is_not_written(spec, tmp_path, monkeypatch):
    store = run(replace(spec, models=1), tmp_path / "r", workers=1)
    before = (store.directory / "run.json").read_bytes()
    with pytest.raises(UserError, match="holds another run"):
        run(replace(spec, models=9, seed=1), store.directory, workers=1)
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    with lock.if_free(store.directory / ".lock"), pytest.raises(Failed, match="another process has held"):
        run(replace(spec, models=9), store.directory, workers=1)
    assert (store.directory / "run.json").read_bytes() == before


def test_writing_is_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(Failed, match="cannot write "):
        files.write_bytes(tmp_path / "file" / "below", b"x")
    files.write_bytes(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert Path(tmp_path / "file").read_bytes() == b"new"
