"""More steps for a run: the same bits as a run that was that long at first, or one line that says why not."""

from dataclasses import replace

import pytest
from polars.testing import assert_frame_equal
from runs import STOP_AT_ONCE

import resharpen as rs
from resharpen.experiments.keeping.shard import FINAL
from resharpen.experiments.specs.schema import TABLES
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.tasks import SetComplement


def spec(steps=20, checkpoints=4, variants=("peri+constant",), engine="torch", **fields):
    setting = Setting(SetComplement(4), 2)
    sizes = {"models": 3, "steps": steps, "batch": 4, "checkpoints": checkpoints, "engine": engine}
    return Experiment("x", (setting,), list(variants), **{**sizes, **fields})


def run(experiment, directory, **arguments):
    return rs.run(experiment, directory, workers=1, **arguments)


def assert_equal(got, expected):
    assert len(got.done()) == len(got.shards()) == len(expected.shards())
    for table in TABLES:
        assert_frame_equal(got.table(table), expected.table(table), check_exact=True)
    for shard in expected.shards():
        kept, whole = got.weights(shard), expected.weights(shard)
        assert all((kept[name] == x).all() for name, x in whole.items())
        assert got.files(shard).identity == expected.files(shard).identity


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_finished_run_goes_on(tmp_path, engine):
    run(spec(engine=engine), tmp_path / "a")
    got = run(spec(60, engine=engine), tmp_path / "a")
    assert got.experiment.checkpoints == 12
    assert_equal(got, run(spec(60, 12, engine=engine), tmp_path / "b"))
    assert_equal(run(spec(60, engine=engine), tmp_path / "a"), got)  # the same command again
    assert_equal(run(spec(100, engine=engine), tmp_path / "a"), run(spec(100, 20, engine=engine), tmp_path / "c"))


def test_a_run_that_was_stopped_goes_on(tmp_path):
    """Constant at any step, wsd before its decay."""
    for variant in ("peri+constant+dropout", "peri+wsd"):
        first = run(spec(variants=[variant]), tmp_path / variant, observer=STOP_AT_ONCE)
        assert not first.done()
        got = run(spec(40, variants=[variant]), tmp_path / variant)
        assert_equal(got, run(spec(40, 8, variants=[variant]), tmp_path / f"{variant}-whole"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            spec(variants=["peri"]),
            spec(40, variants=["peri"]),
            "the schedule 'linear' of peri depends on the number of steps",
        ),
        (spec(variants=["peri+wsd"]), spec(40, variants=["peri+wsd"]), "the schedule 'wsd' of peri.wsd depends"),
        (spec(), spec(33), "checkpoints are 5 steps apart; use a multiple of 5 steps"),
        (spec(), spec(40, models=4), "increase --models and --steps in two separate commands"),
        (spec(), spec(10), "holds another run .steps: 20 -> 10"),
        (spec(), spec(40, seed=1), "holds another run .seed: 0 -> 1"),
        (spec(), spec(40, 7), "holds another run .checkpoints: 4 -> 7"),
    ],
)
def test_what_cannot_go_on_says_why(tmp_path, before, after, message):
    kept = run(before, tmp_path)
    with pytest.raises(rs.UserError, match=message) as error:
        run(after, tmp_path)
    assert "\n" not in str(error.value)
    assert_equal(rs.load(tmp_path), kept)


def test_a_part_that_may_read_the_number_of_steps_is_refused(tmp_path):
    (tmp_path / "own.py").write_text("import resharpen as rs\n\n@rs.norm()\ndef same(x, p):\n    return x\n")
    text = 'models = 1\nsteps = {}\ncheckpoints = 2\nengine = "torch"\nvariants = ["peri+constant+own.py:same"]\n'
    text += "[task]\nv = 4\ntrain_lengths = [2]\n"
    (tmp_path / "a.toml").write_text(text.format(4))
    run(rs.read_toml(tmp_path / "a.toml"), tmp_path / "run")
    (tmp_path / "a.toml").write_text(text.format(8))
    with pytest.raises(rs.UserError, match=r"'same' of variant 'peri\+same\+constant' may depend on p.steps"):
        run(rs.read_toml(tmp_path / "a.toml"), tmp_path / "run")


def test_a_run_that_would_be_compiled_from_now_on_is_refused(tmp_path, monkeypatch):
    from resharpen.engines.torch import fast

    run(spec(), tmp_path)
    monkeypatch.setattr(fast, "COMPILED_FROM", 30)
    with pytest.raises(rs.UserError, match="torch compiles long runs"):
        run(spec(40), tmp_path)


def test_a_checkpoint_at_every_step_stays_one(tmp_path):
    run(spec(4, 10), tmp_path / "a")
    assert_equal(run(spec(12, 10), tmp_path / "a"), run(spec(12, 12), tmp_path / "b"))


def test_the_last_state_is_kept_only_where_it_can_be_of_use(tmp_path):
    for variant, there in (("peri+constant", True), ("peri", False), ("peri+wsd", False)):
        made = run(spec(variants=[variant]), tmp_path / variant)
        assert (made.files(made.shards()[0]).directory / FINAL).exists() == there
    lost = made = run(replace(spec(), name="y"), tmp_path / "lost")
    (lost.files(made.shards()[0]).directory / FINAL).unlink()
    with pytest.raises(rs.UserError, match="was finished without storing its state; choose another --out"):
        run(replace(spec(40), name="y"), tmp_path / "lost")
