"""A run against a reference: what agrees passes, what was doctored is named."""

import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from make_reference import write_reference
from runs import doctor_reference, forge

import resharpen as rs
from resharpen.analysis.verify import verify
from resharpen.cli import main
from resharpen.experiments.keeping.reference import find_reference
from resharpen.experiments.specs.variant import Variant


@pytest.fixture
def reference(tiny, tmp_path):
    run = rs.run(tiny, tmp_path / "kept", workers=1)
    return write_reference(run, rs.scores(run), tmp_path / "reference" / "tiny")


def differing(checks):
    return {check.what: check.differs for check in checks if check.differs}


def doctored(reference, table, **columns):
    """The reference with a table changed, and its hash made to fit."""
    forge(reference.directory / "reference.json", lambda header: header.update(reference.header))
    doctor_reference(reference.directory, table, lambda found: found.with_columns(**columns))
    reference.header["sha256"] = json.loads((reference.directory / "reference.json").read_text())["sha256"]


def test_a_smaller_run_of_the_same_spec_agrees(tiny, reference, tmp_path, capsys):
    smaller = replace(tiny, models=5, variants={"peri": Variant("peri")})
    rs.run(smaller, tmp_path / "smaller", workers=1)
    main(["verify", str(tmp_path / "smaller"), "--reference", str(reference.directory)])
    out = capsys.readouterr().out
    assert "differs" not in out
    assert "10 " in out, "five models at each of two training lengths"


def test_bits_are_compared_where_the_same_kernel_made_them(tiny, tmp_path):
    native = replace(tiny, engine="native")
    run = rs.run(native, tmp_path / "run", workers=1)
    reference = write_reference(run, rs.scores(run), tmp_path / "reference")
    (made,) = reference.header["made"]
    built = made["built"]
    code = r"(-[0-9a-f]{12})-([0-9a-f]{12})@"  # hashes of sources and of what they were compiled to
    for replaced, compared in (
        (r"-0123456789ab-\2@", run.table("lengths").filter(metric="tvd").height),
        (r"\1-0123456789ab@", 0),
    ):
        made["built"] = {name: re.sub(code, replaced, of_shard) for name, of_shard in built.items()}
        checks = {check.what: check for check in verify(run, reference)}
        assert checks["values of models from the same kernel, bit for bit"].compared == compared
        assert not differing(checks.values())
    made["built"] = built
    last_bit = pl.when(pl.col("model") == "sct-v4-s2/peri/3").then(pl.col("value") * (1 + 2e-7)).otherwise("value")
    doctored(reference, "lengths", value=last_bit.cast(pl.Float32))
    (named,) = differing(verify(run, reference)).values()
    assert named[0].startswith("sct-v4-s2/peri/3")


def test_bits_are_compared_model_by_model_whatever_the_shards(tiny, tmp_path):
    """Seventeen models of thirty-two: the last shard of the run is a part of one of the reference."""
    native = replace(tiny, engine="native", variants={"peri": Variant("peri")}, models=32)
    whole = rs.run(native, tmp_path / "run", workers=1)
    reference = write_reference(whole, rs.scores(whole), tmp_path / "reference")
    some = rs.run(replace(native, models=17), tmp_path / "some", workers=1)
    checks = {check.what: check for check in verify(some, reference)}
    assert (
        checks["values of models from the same kernel, bit for bit"].compared
        == some.table("lengths").filter(metric="tvd").height
    )
    assert not differing(checks.values())


@pytest.mark.parametrize(
    ("models", "drifted", "found"),
    [(5, 5, "too few models to tell"), (8, 5, "too few models to tell"), (8, 8, "differs")],
)
def test_single_models_may_drift(tiny, reference, tmp_path, capsys, models, drifted, found):
    """Of fewer than six models there is no interval of the median, however far they are away; of eight it reaches from
    the smallest distance to the largest."""
    rs.run(replace(tiny, models=models), tmp_path / "run", workers=1)
    away = pl.when(pl.col("draw") < drifted).then(0.3).otherwise(0.0)
    doctored(reference, "models", score_train=pl.col("score_train") + away)
    arguments = ["verify", str(tmp_path / "run"), "--reference", str(reference.directory)]
    if found == "differs":
        with pytest.raises(SystemExit, match="1"):
            main(arguments)
    else:
        main(arguments)
    assert found in " ".join(capsys.readouterr().out.split())


def test_a_shift_and_another_spread_are_found(tiny, reference, tmp_path):
    run = rs.run(tiny, tmp_path / "run", workers=1)
    one = (pl.col("variant") == "peri") & (pl.col("setting") == "sct-v4-s2")
    doctored(reference, "models", score_train=pl.when(one).then(pl.col("score_train") + 0.015).otherwise("score_train"))
    assert set(differing(verify(run, reference))) == {"scores of common models, within rounding"}


def test_other_draws_are_compared_as_distributions(tiny, reference, tmp_path):
    run = rs.run(replace(tiny, seed=1, models=32), tmp_path / "run", workers=1)
    assert not differing(verify(run, reference))
    doctored(reference, "models", score_train=pl.col("score_train") + 0.3)
    assert set(differing(verify(run, reference))) == {"distributions of scores of draws not in the reference"}


def test_hyperparameters_that_were_changed_are_named(tiny, reference, tmp_path):
    run = rs.run(tiny, tmp_path / "run", workers=1)
    changed = np.where(np.arange(64) == 7, 1 + 1e-9, 1.0)
    doctored(reference, "models", weight_decay=pl.col("weight_decay") * pl.Series(changed))
    (named,) = differing(verify(run, reference)).values()
    assert named == ("weight_decay of sct-v4-s1/pre/7",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 13}, "steps = 13, not 12"),
        ({"variants": {"post": Variant("post")}}, "no setting and variant in common"),
        ({"hyperparameters": {"weight_decay": rs.Row(0.1, 0.2)}}, "its hyperparameter table differs"),
    ],
)
def test_another_spec_is_refused(tiny, reference, tmp_path, capsys, change, said):
    rs.run(replace(tiny, models=1, **change), tmp_path / "other", workers=1)
    with pytest.raises(SystemExit, match="2"):
        main(["verify", str(tmp_path / "other"), "--reference", str(reference.directory)])
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_damaged_or_missing_reference_is_one_line(tiny, reference):
    with next(reference.directory.glob("models-*.parquet")).open("ab") as file:
        file.write(b"x")
    with pytest.raises(rs.UserError, match="damaged"):
        reference.table("models")
    with pytest.raises(rs.UserError, match="there is no reference for 'nothing'"):
        find_reference("nothing")


def test_a_run_of_a_kernel_with_a_known_fault_says_so(tmp_path, capsys):
    """Rather than that it differs; only at the training length that the fault touches, and not where both have it."""
    spec = rs.figure("fig1", "smoke")
    lengths = tuple(setting for setting in spec.settings if setting.train_length in (1, 2))
    tiny = replace(spec, settings=lengths, models=6, steps=20, checkpoints=1, variants={"peri": Variant("peri")})
    run = rs.run(tiny, tmp_path / "run", workers=1)
    reference = write_reference(run, rs.scores(run), tmp_path / "reference")
    (made,) = reference.header["made"]
    assert not any(check.faulty for check in verify(run, reference))
    made["built"] = {name: built.replace("minimal.2-", "minimal-") for name, built in made["built"].items()}
    doctored(
        reference,
        "models",
        score_train=pl.col("score_train") + pl.when(pl.col("train_length") == 1).then(0.3).otherwise(0),
    )
    checks = verify(run, reference)
    assert not differing(checks)
    (named,) = [name for check in checks for name in check.faulty]
    assert named.startswith(
        "sct-v9-s1/peri: the reference was trained by a kernel with a fault (inputs of one token trained"
    )
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path / "run"), "--reference", str(reference.directory)])
    assert ended.value.code == 1
    assert "not compared" in capsys.readouterr().out
