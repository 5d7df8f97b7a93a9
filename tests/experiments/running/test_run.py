"""Runs end to end: results, growth, damage, refusals, kills."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from runs import STOP_AT_ONCE, assert_same_results

from resharpen.engines.choose import SLOWER
from resharpen.engines.native import minimal
from resharpen.errors import UserError
from resharpen.experiments.keeping.shard import ShardFiles
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.stored import load_model
from resharpen.experiments.running import training
from resharpen.experiments.running.runner import Observer, run, with_engine
from resharpen.experiments.running.training import Trainer
from resharpen.experiments.specs.schema import TABLES
from resharpen.experiments.specs.spec import Setting
from resharpen.experiments.specs.toml import to_data
from resharpen.models import Minimal
from resharpen.own import refer
from resharpen.state import arrays_of
from resharpen.tasks import SetComplement, find_task


def test_a_run_fills_the_three_tables(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    models, curves, lengths = (store.table(name) for name in TABLES)
    assert models.height == models["model"].n_unique() == 2 * 2 * 16
    assert curves.height == models.height * 2 * 3
    assert curves["step"].unique().sort().to_list() == [4, 8, 12]
    assert lengths.height == models.height * 2 * 3 * 3 * 5
    assert set(lengths["metric"]) == {"tvd", "kl", "illegal", "error", "exact"}
    assert lengths.filter(metric="tvd")["value"].is_between(0, 1).all()
    assert lengths.filter(metric="tvd", length=2)["count"].unique().to_list() == [4 * 3]
    assert lengths.filter(metric="error", length=2)["count"].unique().to_list() == [0]
    assert {"peak_learning_rate", "ema_lag", "variant", "train_length", "v", "d_k"} <= set(models.columns)
    assert (models["variant"] == models["placement"]).all()
    parts = models.select("norm", "attention", "positions", "optimizer", "engine", "family").unique().row(0)
    assert parts == ("rms", "softmax", "nope", "adamw", "torch", "minimal")
    with pytest.raises(UserError, match=r"unknown table 'nope'.*allowed: curves, lengths, models"):
        store.table("nope")


OWN_MEASURE = """
from typing import ClassVar
from resharpen.tasks import Metric, SetComplement

class Sharp(SetComplement):
    kind: ClassVar[str] = "sharp"
    measures = ("tvd", "sharpness")

    @property
    def metrics(self):
        return {**super().metrics, "sharpness": Metric("largest probability")}

    def score(self, logits, truth):
        return {**super().score(logits, truth), "sharpness": logits.softmax(-1).amax(-1)}
"""


def test_a_measure_of_the_users_own_is_reported_whatever_trains(tiny, tmp_path):
    (tmp_path / "own.py").write_text(OWN_MEASURE)
    setting = Setting(find_task(refer(f"{tmp_path / 'own.py'}:Sharp"))(4), 2, Minimal(4, 3, 1, 3))
    tables = []
    for engine in ("native", "torch"):
        store = run(replace(tiny, settings=(setting,), engine=engine), tmp_path / engine, workers=1)
        tables.append(store.table("lengths").sort("model", "weights", "selection", "metric", "length"))
    native, expected = tables
    assert set(native["metric"]) == {"tvd", "sharpness", "kl", "illegal", "error", "exact"}
    assert native.drop("value").equals(expected.drop("value"))
    assert np.allclose(native["value"].fill_null(-1), expected["value"].fill_null(-1), atol=1e-3)


def test_kept_checkpoints_are_the_best_the_earliest_and_the_last(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    models = store.table("models")
    for which in ("train", "bema"):
        curves = store.table("curves").filter(weights=which).sort("score", "step").unique("model", keep="first")
        joined = models.join(curves, on="model")
        assert (joined[f"{which}_best_step"] == joined["step"]).all()
        by_length = store.table("lengths").filter(weights=which, selection="best", metric="tvd")
        mean = by_length.group_by("model").agg(pl.col("value").mean())
        both = joined.join(mean, on="model")
        # for v <= 9 both validation sets are the enumeration, so the reported score is the selected one
        assert np.allclose(both["value"], both["score"], atol=1e-6)
    assert (models["train_last_step"] == 12).all()


def test_draws_and_results_do_not_depend_on_sharding(tiny, tmp_path):
    store = run(replace(tiny, models=20), tmp_path / "twenty", workers=1)
    small = run(replace(tiny, models=5), tmp_path / "five", workers=1)
    names = ["model", "peak_learning_rate", "ema_lag", "warmup_steps"]
    first = store.table("models").filter(pl.col("draw") < 5).select(names).sort("model")
    assert_frame_equal(first, small.table("models").select(names).sort("model"), check_exact=True)


@pytest.mark.parametrize(("before", "after"), [(16, 32), (5, 20)])
def test_a_grown_run_equals_one_of_its_final_size(tiny, tmp_path, before, after, engine):
    tiny = replace(tiny, engine=engine)
    run(replace(tiny, models=before), tmp_path / "grown", workers=1)
    untouched = {path: path.stat().st_mtime_ns for path in (tmp_path / "grown").rglob("manifest.json")}
    grown = run(replace(tiny, models=after), tmp_path / "grown", workers=1)
    whole = run(replace(tiny, models=after), tmp_path / "whole", workers=1)
    assert all(path.stat().st_mtime_ns == then for path, then in untouched.items())
    if engine == "native" or before % 16 == 0:
        assert_same_results(grown, whole)
    assert grown.table("models").height == whole.table("models").height


def test_a_second_run_does_nothing(tiny, tmp_path):
    run(tiny, tmp_path / "r", workers=1)
    seen = []
    run(tiny, tmp_path / "r", workers=1, observer=Observer(plan=lambda plan: seen.append(plan.todo)))
    assert seen == [[]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 11}, "steps: 12 -> 11"),
        ({"models": 8}, "models: 16 -> 8"),
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"engine": "native"}, "engine: torch -> native"),
        ({"variants": ["pre"]}, "variants: .*peri"),
        ({"variants": ["pre", "peri+log-n"]}, r"peri\+log-n"),
    ],
)
def test_anything_else_in_the_same_directory_is_refused(tiny, tmp_path, change, message):
    run(tiny, tmp_path / "r", workers=1)
    before = (tmp_path / "r" / "run.json").read_bytes()
    with pytest.raises(UserError, match=message):
        run(replace(tiny, **change), tmp_path / "r", workers=1)
    assert (tmp_path / "r" / "run.json").read_bytes() == before


@pytest.mark.parametrize("name", ["lengths.parquet", "weights.safetensors", "manifest.json"])
def test_a_damaged_file_is_named_and_only_its_shard_is_run_again(tiny, tmp_path, name):
    store = run(tiny, tmp_path / "r", workers=1)
    expected = {table: store.table(table) for table in TABLES}
    victim = store.files(store.shards()[1]).directory / name
    victim.write_bytes(victim.read_bytes()[:-20])
    with pytest.raises(UserError, match=name):
        Run(tmp_path / "r").table("lengths")
    plans = []
    again = run(tiny, tmp_path / "r", workers=1, observer=Observer(plan=plans.append))
    assert [shard.name for shard in plans[0].todo] == [store.shards()[1].name]
    assert name in plans[0].damaged[0]
    for table in TABLES:
        assert_frame_equal(again.table(table), expected[table], check_exact=True)


def test_a_missing_result_is_damage_too(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    (store.files(store.shards()[0]).directory / "curves.parquet").unlink()
    with pytest.raises(UserError, match="is missing"):
        store.table("curves")


@pytest.mark.parametrize("tear", [lambda data: data[:100], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_torn_state_is_named_and_not_trusted(tiny, tmp_path, tear):
    """States are renamed into place, so only a disk can do this; the shard then starts again."""
    store = run(tiny, tmp_path / "a", workers=1)
    other = run(tiny, tmp_path / "b", workers=1, observer=STOP_AT_ONCE)
    state = other.files(other.shards()[0]).state
    state.write_bytes(tear(state.read_bytes()))
    with pytest.warns(UserWarning, match="state.safetensors is damaged"):
        resumed = run(tiny, tmp_path / "b", workers=1)
    assert_same_results(store, resumed)


def test_foreign_and_unwritable_directories(tiny, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("do not touch")
    with pytest.raises(UserError, match="not empty and is not a run"):
        run(tiny, tmp_path / "foreign", workers=1)
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a directory"):
        run(tiny, tmp_path / "file", workers=1)
    with pytest.raises(UserError, match="cannot write to"):
        run(tiny, tmp_path / "file" / "below", workers=1)


def test_two_runs_at_once_share_the_work(tiny, tmp_path):
    """The second takes what nobody has, and leaves the shard that the first is training alone."""
    whole, seen = run(tiny, tmp_path / "whole", workers=1), []

    def again(progress):
        if not seen and progress.step == 0:
            second = run(tiny, tmp_path / "r", workers=1, observer=Observer(update=seen.append))
            assert [shard.name for shard in second.shards() if shard not in second.done()] == [progress.shard]

    first = run(tiny, tmp_path / "r", workers=1, observer=Observer(update=again))
    assert {event.shard for event in seen} == {shard.name for shard in tiny.shards()}
    assert_same_results(whole, first)


def test_stopping_saves_and_resuming_gives_the_same_bits(tiny, tmp_path, engine):
    tiny = replace(tiny, engine=engine)
    whole = run(tiny, tmp_path / "whole", workers=1)
    for _ in range(80):  # each call is stopped after its first chunk
        store = run(tiny, tmp_path / "bits", workers=1, observer=STOP_AT_ONCE)
        if len(store.done()) == len(store.shards()):
            break
    else:
        pytest.fail("stopping at every chunk never ends")
    assert_same_results(whole, store)


def test_states_are_saved_by_the_clock(tiny, tmp_path, monkeypatch):
    """With a clock that jumps a minute at every look, every chunk is saved; with one that stands still, none is."""
    saves = []
    monkeypatch.setattr(ShardFiles, "save", lambda self, arrays: saves.append(int(arrays["state.step"][0])))
    shard = tiny.shards()[0]
    where = ShardFiles(tmp_path, shard.name, "")
    minutes = iter(range(0, 10_000, 60))
    Trainer(tiny, shard, where, clock=lambda: float(next(minutes))).run()
    assert saves[-1] == 12
    assert len(saves) > 3
    saves.clear()
    Trainer(tiny, shard, where, clock=lambda: 0.0).run()
    assert saves == []


def test_a_diverged_model_is_a_result(tiny, tmp_path):
    from resharpen.optim.hyperparameters import narrowed

    rows = {**tiny.hyperparameters, "peak_learning_rate": narrowed("peak_learning_rate", 1e30)}
    rows["warmup_steps"] = narrowed("warmup_steps", 0)
    store = run(replace(tiny, hyperparameters=rows, models=2), tmp_path / "r", workers=1)
    models, lengths = store.table("models"), store.table("lengths")
    lost = models.filter(pl.col("diverged_at").is_not_null() & pl.col("train_best_step").is_null())
    assert lost.height > 0
    assert lengths.join(lost, on="model", how="semi")["value"].is_null().all()
    with pytest.raises(UserError, match="diverged before its first checkpoint"):
        load_model(store, lost["model"][0])


def test_workers_give_the_same_bits(tiny, tmp_path, engine):
    tiny = replace(tiny, engine=engine)
    one = run(tiny, tmp_path / "one", workers=1)
    events = []
    two = run(tiny, tmp_path / "two", workers=2, observer=Observer(update=events.append))
    assert_same_results(one, two)
    assert {event.shard for event in events} == {shard.name for shard in tiny.shards()}


def test_stored_models_can_be_called(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    model = load_model(store, "sct-v4-s2/peri/3", weights="bema", selection="last")
    p = model([[0], [2, 1], [3, 0, 1]])
    assert p.shape == (3, 4)
    assert np.allclose(p.sum(1), 1)
    # the callable and the ordinary evaluation agree: TVD by length from the table
    task = model.setting.task
    rows = [[[a] for a in range(4)], [[a, b] for a in range(4) for b in range(4) if a != b]]
    for length, sequences in enumerate(rows, start=1):
        p_star = task.p_star(np.array(sequences))[:, -1]
        tvd = 0.5 * np.abs(model(sequences) - p_star).sum(1).mean()
        stored = store.table("lengths").filter(
            model=model.id, weights="bema", selection="last", length=length, metric="tvd"
        )
        assert np.isclose(tvd, stored["value"][0], atol=1e-6)
    with pytest.raises(UserError, match=r"tokens are 0\.\.3"):
        model([[4]])
    with pytest.raises(UserError, match="no model 'x'"):
        load_model(store, "x")
    with pytest.raises(UserError, match="no weights"):
        load_model(store, model.id, selection="worst")


DRIVER = """
import json, sys
from resharpen.experiments.running import training
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.toml import from_data
training.SAVE_EVERY = 0.0
training.CHUNK_SECONDS = 0.02
run(from_data(json.loads(sys.argv[1])), sys.argv[2], workers=1)
"""


def test_killed_at_random_moments_and_resumed(tiny, tmp_path):
    """kill -9, again and again, at moments that a seeded generator picks; then the same bits as without."""
    spec = replace(tiny, steps=300, checkpoints=10, batch=64)
    whole = run(spec, tmp_path / "whole", workers=1)
    out, rng, kills, resumed = tmp_path / "killed", random.Random(4), 0, 0
    while True:
        before = work_seen(out)
        resumed += any(path.name == "state.safetensors" for path in before)
        process = subprocess.Popen([sys.executable, "-c", DRIVER, json.dumps(to_data(spec)), str(out)])
        # wait for the first sign of work, so that no kill falls into the start of Python
        while process.poll() is None and work_seen(out) == before:
            time.sleep(0.002)
        if kills < 4:
            time.sleep(rng.uniform(0.0, 0.2))
        else:
            process.wait()
        if process.poll() is not None:
            assert process.returncode == 0
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 3
    assert resumed >= 2
    assert_same_results(whole, Run(out))


def work_seen(directory: Path) -> dict[Path, int]:
    seen = {}
    for path in [*directory.rglob("state.safetensors"), *directory.rglob("manifest.json")]:
        with contextlib.suppress(FileNotFoundError):  # a state goes when its shard is done
            seen[path] = path.stat().st_mtime_ns
    return seen


def test_a_run_explains_itself(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    header = json.loads((store.directory / "run.json").read_text())
    assert header["command"] == f"resharpen run {store.directory}"
    assert header["spec"]["engine"] == "torch"
    assert {"versions", "cpu", "git", "cores"} <= set(header["provenance"])
    manifest = json.loads((store.files(store.shards()[0]).directory / "manifest.json").read_text())
    assert set(manifest["sha256"]) == {"models.parquet", "curves.parquet", "lengths.parquet", "weights.safetensors"}
    assert not list(store.directory.rglob("state.safetensors"))
    assert arrays_of(store.weights(store.shards()[0]), "train.best").keys() >= {"E", "U"}


def test_chunks_grow_towards_half_a_second():
    assert training.next_chunk(100, 0.05) == 400
    assert training.next_chunk(100, 1.0) == 50
    assert training.next_chunk(1, 60.0) == 1


def engines(experiment):
    return {name: variant.engine for name, variant in with_engine(experiment).variants.items()}


def test_without_a_compiler_torch_takes_over(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("RESHARPEN_CACHE", str(tmp_path / "cache"))
    minimal.kernel.cache_clear()
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler found") as said:
        assert engines(replace(tiny, engine="auto")) == {"pre": "torch", "peri": "torch"}
    assert f"about {SLOWER['minimal']} times as slow as native" in str(said[0].message)
    with pytest.raises(UserError, match="cannot run variant 'pre': no C"):
        with_engine(replace(tiny, engine="native"))


def test_auto_is_native_where_it_can_run(tiny):
    assert engines(replace(tiny, engine="auto")) == {"pre": "native", "peri": "native"}
    task = SetComplement(40)
    large = replace(tiny, engine="auto", settings=(Setting(task, 2, Minimal.usual(task.v)),))
    with pytest.warns(UserWarning, match="v = 40"):
        assert engines(large) == {"pre": "torch", "peri": "torch"}


@pytest.mark.parametrize("engine", ["auto", "native", "torch"])
def test_an_instruction_set_that_the_compiler_does_not_know_is_bad_input(tiny, tmp_path, engine):
    """The native engine is not given up for a misspelt word."""
    with pytest.raises(UserError, match="march = banana"):
        run(replace(tiny, engine=engine, march="banana"), tmp_path / "r", workers=1)
    assert not (tmp_path / "r").exists()


def test_every_variant_has_the_engine_that_can_run_it(tiny, tmp_path):
    mixed = replace(tiny, engine="auto", variants=["pre", "pre+entmax"], models=2)
    with pytest.warns(UserWarning, match=r"variant 'pre\+entmax' runs on the torch engine.*attention 'entmax'"):
        store = run(mixed, tmp_path / "r", workers=1)
    kept = {name: variant.engine for name, variant in store.experiment.variants.items()}
    assert kept == {"pre": "native", "pre+entmax": "torch"}
    assert dict(store.table("models").select("variant", "engine").unique().iter_rows()) == kept
    again = run(mixed, tmp_path / "r", workers=1)  # no new choice, and no warning: the run has made its own
    assert len(again.done()) == len(again.shards()) == 4
    with pytest.raises(UserError, match=r"cannot run variant 'pre\+entmax'"):
        run(replace(mixed, engine="native"), tmp_path / "other", workers=1)
