"""Whose a file is, and whether it makes sense: swapped, foreign, re-hashed, out of range."""

import errno
import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from polars.testing import assert_frame_equal
from runs import STOP_AT_ONCE, forge, refused, rehash

from resharpen.engines.torch.fast import TorchEngine
from resharpen.errors import Failed, UserError
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.shard import RESULTS, Damaged, Foreign, _read_manifest
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import Observer, plan_of, run
from resharpen.experiments.running.training import Trainer
from resharpen.experiments.specs.schema import TABLES
from resharpen.experiments.specs.spec import Setting
from resharpen.experiments.specs.toml import identities, search_data
from resharpen.models import Minimal
from resharpen.optim.hyperparameters import narrowed
from resharpen.tasks import SetComplement


def assert_same_tables(a: Run, b: Run):
    for name in TABLES:
        assert_frame_equal(a.table(name), b.table(name), check_exact=True)


def identity(spec, shard=0):
    return identities(spec, search_data(spec))(spec.shards()[shard])


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 13},
        {"batch": 9},
        {"checkpoints": 4},
        {"seed": 1},
        {"engine": "native"},
        {"variants": ["peri", "pre"]},
        {"settings": (Setting(SetComplement(4), 1, Minimal(4, 3, 2, 3)),)},
        {"hyperparameters": {"weight_decay": narrowed("weight_decay", 0.1)}},
    ],
)
def test_an_identity_says_all_that_changes_a_result(spec, change):
    assert identity(replace(spec, **change)) != identity(spec)


def test_an_identity_says_nothing_else(spec):
    assert identity(replace(spec, models=400, name="other", variants=["pre"])) == identity(replace(spec, models=16))
    assert len({identity(spec, i) for i in range(4)}) == 4


def test_swapped_states_are_not_taken(under_way, whole, spec):
    a, b = (under_way.files(shard).state for shard in under_way.shards()[:2])
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    with pytest.warns(
        UserWarning, match="belongs to another shard: shard is .*this shard starts from the beginning"
    ) as said:
        done = run(spec, under_way.directory, workers=1)
    assert len(said) == 2
    assert_same_tables(done, whole)


def test_the_state_of_another_seed_is_not_taken(under_way, whole, spec, tmp_path):
    other = run(replace(spec, seed=1), tmp_path / "other", workers=1, observer=STOP_AT_ONCE)
    shard = under_way.shards()[0]
    shutil.copy(other.files(other.shards()[0]).state, under_way.files(shard).state)
    with pytest.warns(UserWarning, match="belongs to another shard: identity"):
        assert_same_tables(run(spec, under_way.directory, workers=1), whole)


def changed(name, value):
    def change(arrays):
        arrays[name][...] = value

    return change


def retyped(arrays):
    arrays["state.theta.E"] = arrays["state.theta.E"].astype(np.float64)


def reshaped(arrays):
    arrays["state.theta.E"] = arrays["state.theta.E"][:, :-1]


def without(arrays):
    del arrays["state.ema.E"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("state.step", -5), "step -5 of 12"),
        (changed("state.step", 10**12), "step 1000000000000 of 12"),
        (changed("state.diverged_at", 11), "diverged at"),
        (changed("state.diverged_at", -7), "diverged at"),
        (changed("state.theta.E", np.nan), "theta.E is not finite"),
        (changed("state.loss", np.inf), "losses"),
        (changed("kept_step.train.best", 5), "not checkpoints"),
        (changed("score.train", 0.5), "scores of checkpoints after"),
        (retyped, "theta.E is float64"),
        (reshaped, "theta.E is float32"),
        (without, "other arrays .*ema.E"),
    ],
)
def test_a_state_that_makes_no_sense_is_not_taken(under_way, whole, spec, change, message):
    """Even with a checksum that is right."""
    where = under_way.files(under_way.shards()[0])
    arrays = {name: array.copy() for name, array in where.saved().items()}
    change(arrays)
    where.save(arrays)
    with pytest.warns(UserWarning, match=f"is invalid: .*{message}.*starts from the beginning"):
        assert_same_tables(run(spec, under_way.directory, workers=1), whole)


def test_a_diverged_model_s_state_is_taken(under_way, spec):
    """Weights that are not numbers are what divergence is."""
    where = under_way.files(under_way.shards()[0])
    arrays = {name: array.copy() for name, array in where.saved().items()}
    arrays["state.diverged_at"][1] = 0
    arrays["state.theta.E"][1] = np.nan
    where.save(arrays)
    done = run(spec, under_way.directory, workers=1)
    assert done.table("models")["diverged_at"].to_list().count(0) == 1


def test_a_shard_of_two_builds_says_so(under_way, whole, spec, monkeypatch):
    """A state that another build of the engine left is gone on with; only the manifest can tell, so it does."""
    monkeypatch.setattr(TorchEngine, "built", "torch@another version")
    shards = under_way.shards()
    with pytest.warns(UserWarning, match="started by another build"):
        assert Trainer(spec, shards[0], under_way.files(shards[0])).run()
    monkeypatch.undo()
    with warnings.catch_warnings(action="error"):
        run(spec, under_way.directory, workers=1)
    told = [under_way.files(shard).told("built") for shard in shards]
    assert told == [
        "torch@another version, begun by another build",
        *(whole.files(s).told("built") for s in shards[1:]),
    ]


@pytest.mark.parametrize("facts", [{}, {"shard": "x"}])
def test_the_checksum_covers_types_shapes_and_facts(tmp_path, facts):
    path, a = tmp_path / "a", np.zeros((2, 3), np.float32)
    files.write_arrays(path, {"a": a}, facts)
    good = path.read_bytes()
    assert files.read_arrays(path, facts)["a"].shape == (2, 3)
    for old, new in ((b"[2,3]", b"[3,2]"), (b'"F32"', b'"I32"'), (b'"a"', b'"b"'), (b'"x"', b'"y"')):
        if old in good:
            path.write_bytes(good.replace(old, new))
            with pytest.raises(files.TornFile):
                files.read_arrays(path, {})


def test_swapped_and_foreign_shards_are_not_taken(finished, whole, spec, tmp_path):
    a, b = (finished.files(shard).directory for shard in finished.shards()[:2])
    a.rename(tmp_path / "a")
    b.rename(a)
    (tmp_path / "a").rename(b)
    with pytest.raises(Foreign, match="belongs to another shard"):
        finished.table("lengths")
    with pytest.raises(UserError, match=r"2 finished shards do not belong to .*Nothing was deleted"):
        run(spec, finished.directory, workers=1)
    plans = []
    again = run(spec, finished.directory, workers=1, discard=True, observer=Observer(plan=plans.append))
    assert [shard.name for shard in plans[0].todo] == [shard.name for shard in finished.shards()[:2]]
    assert_same_tables(again, whole)


@pytest.mark.parametrize("name", RESULTS)
def test_re_hashed_results_of_another_shard_are_not_used(finished, name):
    mine, other = (finished.files(shard) for shard in finished.shards()[:2])
    rehash(mine, name, other.read(name))
    with pytest.raises(Damaged, match=name):
        finished.weights(finished.shards()[0]) if name == "weights.safetensors" else finished.table(name.split(".")[0])


def test_a_flipped_bit_is_found_by_who_reads_and_by_who_runs(finished, whole, spec):
    where = finished.files(finished.shards()[2])
    path = where.directory / "curves.parquet"
    path.write_bytes(bytes([*path.read_bytes()[:-1], path.read_bytes()[-1] ^ 1]))
    with pytest.raises(Damaged, match="its hash differs from"):
        finished.table("curves")
    assert len(finished.table("lengths")) == len(whole.table("lengths"))  # what it has to read is right
    plan = plan_of(Run(finished.directory))
    assert [shard.name for shard in plan.todo] == [finished.shards()[2].name]
    assert_same_tables(run(spec, finished.directory, workers=1), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extents": [-2]}, "extents"),
        ({"extents": [2, 1]}, "extents"),
        ({"extents": [3]}, "extents"),
        ({"extents": ["1"]}, "extents"),
        ({"extents": {}}, "extents"),
        ({"code": ["x"]}, "code"),
        ({"code": [{"path": "x", "sha256": "../../x"}]}, "code"),
        ({"provenance": 7}, "provenance"),
        ({"spec": []}, "spec"),
        ({"spec": {}}, "'task' is missing"),
        ({"drawn": None}, "drawn"),
        ({"format": 2}, "format 2, this version reads format 4"),
        ({"format": []}, "format"),
        ({"command": None}, "command"),
    ],
)
def test_a_damaged_header_is_one_line(finished, change, message):
    forge(finished.directory / "run.json", lambda header: header.update(change))
    with pytest.raises(UserError, match=message) as said:
        Run(finished.directory).shards()
    assert "run.json" in str(said.value)


def test_a_header_that_cannot_be_read_is_not_called_damaged(finished, monkeypatch, capsys):
    """Without rights, say; root has them all."""
    header, read = finished.directory / "run.json", Path.read_bytes

    def forbidden(path):
        if path == header:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert (
        refused(capsys, "status", str(finished.directory)) == f"resharpen: {header} cannot be read: Permission denied\n"
    )
    monkeypatch.undo()
    header.unlink()
    header.mkdir()
    assert "run.json cannot be read: Is a directory" in refused(capsys, "run", str(finished.directory))


@pytest.mark.parametrize("text", ["", "[]", "7", "{", '{"format": 4}', "[" * 100_000, '{"format": ' + "9" * 5000 + "}"])
def test_a_header_that_is_none_is_one_line(finished, text):
    (finished.directory / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json"):
        Run(finished.directory).shards()


def test_a_changed_search_in_the_header_is_nobody_s(finished, spec):
    """What was drawn is part of what a shard is."""
    forge(finished.directory / "run.json", lambda header: header["drawn"]["pre"].update(weight_decay=0.5))
    with pytest.raises(Foreign, match="identity"):
        Run(finished.directory).table("models")
    with pytest.raises(UserError, match=r"drawn\.pre\.weight_decay"):
        run(spec, finished.directory, workers=1)


@pytest.mark.parametrize("name", ["weights.safetensors", "manifest.json", "state.safetensors"])
def test_a_bad_moment_of_the_system_costs_nothing(name, finished, under_way, spec, monkeypatch):
    """What cannot be read now may be there tomorrow: only what is gone or is something else is trained again."""
    store = under_way if name == "state.safetensors" else finished
    before = {path: path.read_bytes() for path in store.directory.rglob(name)}
    read = Path.read_bytes

    def stale(path):
        if path.name == name:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", stale)
    _read_manifest.cache_clear()
    with pytest.raises(Failed, match=r"cannot be read: Stale .*nothing was deleted"):
        run(spec, store.directory, workers=1)
    monkeypatch.undo()
    _read_manifest.cache_clear()
    assert before
    assert {path: path.read_bytes() for path in store.directory.rglob(name)} == before


def test_growing_keeps_where_a_run_began(finished, spec):
    forge(finished.directory / "run.json", lambda header: header["provenance"].update(started="long ago"))
    began = json.loads((finished.directory / "run.json").read_text())
    run(replace(spec, models=spec.models + 1), finished.directory, workers=1)
    now = json.loads((finished.directory / "run.json").read_text())
    assert (now["provenance"], now["rounding"], now["code"]) == (began["provenance"], began["rounding"], began["code"])
