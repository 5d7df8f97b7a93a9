"""`verify --quick`: a few draws of references are trained and compared, and nothing stays behind."""

import contextlib
import re
import tempfile
from dataclasses import replace

import polars as pl
import pytest
from make_reference import write_reference
from runs import doctor_reference, refused

import resharpen as rs
from resharpen.analysis.verify import summarize, verify
from resharpen.cli import main
from resharpen.experiments.keeping import reference as keeping
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.running.estimate import Pace
from resharpen.experiments.running.quick import plan_quick
from resharpen.experiments.specs.variant import Variant


@pytest.fixture
def kept(tiny, tmp_path, monkeypatch):
    """Two references, the only ones that there are, and a directory for temporary files."""
    for name, steps in (("short", 12), ("long", 24)):
        variants = {variant: Variant(variant) for variant in ("pre", "post", "peri")}
        spec = replace(tiny, name=name, steps=steps, models=32, variants=variants, engine="auto")
        run = rs.run(spec, tmp_path / "runs" / name, workers=1)
        write_reference(run, rs.scores(run), tmp_path / "reference" / name)
    monkeypatch.setattr(keeping, "PLACES", (tmp_path / "reference",))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path


def shown(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_every_reference_is_one_line_and_nothing_stays(kept, capsys):
    main(["verify", "--all", "--quick"])
    out = shown(capsys)
    values = pl.read_parquet(next((kept / "reference" / "short").glob("lengths-*.parquet"))).filter(metric="tvd")
    mine = values.filter(values["model"].str.contains(r"^sct-v4-s2/(pre|peri)/([0-9]|1[0-5])$")).height
    for name, steps in (("short", 12), ("long", 24)):
        rests_on = f"sct-v4-s2: 2 x 16 models, {steps} steps, {mine} values"
        assert f"{name} {rests_on} agrees bit for bit" in out
    assert out.index("First draws to train") < out.index("Compared with the references")
    assert list((kept / "scratch").iterdir()) == []


def test_one_reference_in_a_directory_that_stays(kept, capsys):
    main(["verify", "--quick", "--reference", "short", "--out", str(kept / "out")])
    assert "agrees bit for bit" in shown(capsys)
    run = rs.load(kept / "out" / "short")
    assert list(run.experiment.variants) == ["pre", "peri"]
    assert [setting.name for setting in run.experiment.settings] == ["sct-v4-s2"]
    main(["verify", str(kept / "out" / "short")])


def test_what_differs_ends_with_1(kept, capsys):
    moved = pl.col("value") + pl.when(pl.col("model") == "sct-v4-s2/pre/3").then(0.01).otherwise(0.0)
    doctor_reference(kept / "reference" / "long", "lengths", lambda table: table.with_columns(value=moved))
    with pytest.raises(SystemExit, match="1"):
        main(["verify", "--all", "--quick"])
    out = shown(capsys)
    assert re.search(r"long .*? values differs: sct-v4-s2/pre/3", out)
    assert re.search(r"short .*? values agrees", out)


def test_a_stop_is_told_and_leaves_nothing(kept, capsys, monkeypatch):
    def stopped_twice(asked):
        for _ in range(2):
            asked.stop(2, None)
        return contextlib.nullcontext(asked)

    monkeypatch.setattr("resharpen.commands.quick.orderly", stopped_twice)
    with pytest.raises(SystemExit, match="130"):
        main(["verify", "--all", "--quick"])
    assert shown(capsys).count("not compared: stopped") == 2
    assert list((kept / "scratch").iterdir()) == []


def test_what_does_not_fit_is_skipped_with_the_reason(kept, monkeypatch):
    """At one second per model and step, of two variants one after the other, 12 steps take 24 seconds, and each shard
    0.2 more. All get one model, then enough models to tell a difference, then a group, the cheaper first."""
    both = [Reference(kept / "reference" / name) for name in ("long", "short")]
    assert {plan.experiment.models for plan in plan_quick(both, 1)} == {16}
    one_second = {("sct-v4-s2", variant): Pace(1.0, 1, 8) for variant in ("pre", "peri")}
    monkeypatch.setattr("resharpen.experiments.running.quick.calibrate", lambda experiment: one_second)
    long, short = plan_quick(both, 1, minutes=1)
    assert (short.experiment.models, short.why_not, short.seconds) == (1, "", pytest.approx(24.4))
    assert long.why_not == "1 model per variant for 24 steps would take about 0.8 min here, more than the time left"
    assert all(plan.why_not for plan in plan_quick(both, 1, minutes=0.4))
    for minutes, models in ((2.0, (1, 1)), (3.6, (1, 6)), (8.0, (6, 6)), (12.4, (6, 16)), (21.2, (16, 16))):
        assert tuple(plan.experiment.models for plan in plan_quick(both, 1, minutes)) == models


def test_models_that_a_cheaper_reference_checks_come_last(kept, tiny, monkeypatch):
    """`short` and `long` train the same models; `other`, with larger minibatches, is checked before `long`,
    although it takes twice as long."""
    other = rs.run(replace(tiny, name="other", steps=24, batch=16, models=16, engine="auto"), kept / "runs" / "other")
    write_reference(other, rs.scores(other), kept / "reference" / "other")
    every = [Reference(kept / "reference" / name) for name in ("long", "other", "short")]
    one_second = {("sct-v4-s2", variant): Pace(1.0, 1, 8) for variant in every[1].experiment.variants}
    monkeypatch.setattr("resharpen.experiments.running.quick.calibrate", lambda experiment: one_second)
    plans = plan_quick(every, 1, minutes=2.05)
    assert [plan.seconds for plan in plans] == pytest.approx([48.4, 96.4, 24.4])
    assert [bool(plan.why_not) for plan in plans] == [True, False, False]


@pytest.mark.parametrize(
    "words", ["", "--all", "--quick", "--quick --all --reference short", "RUN --quick", "RUN --out x"]
)
def test_combinations_without_a_meaning_are_refused(words, capsys):
    assert "--quick" in refused(capsys, "verify", *words.split())


def test_the_summary_names_the_weakest_agreement(tiny, tmp_path):
    """Torch promises no bits; with a drifted model too few to tell is said, and a difference wins."""
    run = rs.run(replace(tiny, models=3), tmp_path / "run", workers=1)
    reference = write_reference(run, rs.scores(run), tmp_path / "reference")
    found = summarize(verify(run, reference))
    assert found.values == run.table("lengths").filter(metric="tvd").height
    assert found.result.startswith("agrees within rounding")
    doctor_reference(reference.directory, "models", lambda x: x.with_columns(score_train=pl.col("score_train") + 0.3))
    unclear = summarize(verify(run, Reference(reference.directory)))
    assert unclear.agrees
    assert unclear.result.startswith("too few models to tell: ")
    doctor_reference(reference.directory, "models", lambda x: x.with_columns(weight_decay=pl.col("weight_decay") * 2))
    assert not summarize(verify(run, Reference(reference.directory))).agrees
