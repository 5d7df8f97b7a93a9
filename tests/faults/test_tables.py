"""Tables that make no sense though their hash is right: reading says why, and `run` trains the shard again."""

import json

import polars as pl
import pytest
from make_reference import write_reference
from polars.testing import assert_frame_equal
from runs import assert_same_results, doctor, doctor_reference, forge

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.keeping.shard import Damaged
from resharpen.experiments.keeping.store import Run


def put(**columns):
    return lambda table: table.with_columns(**columns)


def first(name, value):
    """Another value in the first row."""
    return lambda table: table.with_columns(
        pl.when(pl.int_range(pl.len()) == 0).then(pl.lit(value, table.schema[name])).otherwise(name).alias(name)
    )


WRONG = {
    "no value": ("lengths", lambda table: table.drop("value"), "column 'value' is missing"),
    "renamed": ("lengths", lambda table: table.rename({"length": "len"}), "column 'length' is missing"),
    "texts": ("lengths", put(value=pl.col("value").cast(pl.String)), "column 'value' is String, not Float64"),
    "fractions": ("models", put(draw=pl.col("draw").cast(pl.Float64)), "column 'draw' is Float64, not Int64"),
    "too large": ("models", put(draw=pl.lit(2**64 - 1, pl.UInt64)), "conversion from `u64` to `i64` failed"),
    "no rows": ("lengths", lambda table: table.head(0), "it has no values of tvd for sct-v4-s1/pre/0"),
    "no models": ("models", lambda table: table.head(0), "it has no sct-v4-s1/pre/0"),
    "a row less": ("lengths", lambda table: table.head(-1), "rows of sct-v4-s1/pre/2 is 17: it must be 18"),
    "a checkpoint less": ("curves", lambda table: table.head(-1), "rows of sct-v4-s1/pre/2 is 5: it must be 6"),
    "a row twice": ("lengths", lambda table: pl.concat([table, table.head(1)]), "two rows for sct-v4-s1/pre/0, t"),
    "a model twice": ("models", lambda table: pl.concat([table, table.head(1)]), "two rows for sct-v4-s1/pre/0"),
    "another model": ("lengths", first("model", "x"), "other models, such as x"),
    "other draws": ("models", put(draw=pl.col("draw") + 1), "draw of sct-v4-s1/pre/0 is 1: it must be 0"),
    "another variant": ("models", first("variant", "peri"), "variant of sct-v4-s1/pre/0 is 'peri': it must be 'pre'"),
    "other steps": ("models", put(steps=13), "steps of sct-v4-s1/pre is 13: it must be 12, as in the spec"),
    "another size": ("models", first("d_k", 7), "d_k of sct-v4-s1/pre is 7: it must be 1, as in the spec"),
    "a length less": (
        "lengths",
        lambda t: t.filter(pl.col("length") < 3),
        "rows of sct-v4-s1/pre/0 is 12: it must be 18",
    ),
    "another length": ("lengths", put(length=pl.col("length").replace(3, 4)), "other lengths, such as 4"),
    "no length": ("lengths", first("length", 0), "length of sct-v4-s1/pre/0 is 0: it must be at least 1"),
    "another metric": (
        "lengths",
        put(metric=pl.col("metric").replace("tvd", "x")),
        "it has no values of tvd for sct-v4-s1/pre/0",
    ),
    "a TVD above 1": ("lengths", first("value", 1.5), "is 1.5: it must be from 0 to 1 for tvd"),
    "a score below 0": ("curves", first("score", -0.5), "is -0.5: it must be from 0 to 1"),
    "not a number": ("lengths", first("value", float("nan")), "is nan: it must be a number"),
    "an endless loss": ("curves", first("loss", float("inf")), "is inf: it must be finite"),
    "fewer than none": ("lengths", first("count", -1), "count of sct-v4-s1/pre/0 is -1: it must be at least 0"),
    "other counts": ("lengths", first("count", 1), "count of sct-v4-s1/pre/0 is 1: it must be"),
    "diverged too late": ("models", first("diverged_at", 12), "is 12: it must be a step before 12"),
    "no checkpoint": ("curves", first("step", 5), "is 5: it must be a checkpoint"),
    "kept at none": ("models", first("bema_last_step", 5), "is 5: it must be a checkpoint"),
    "other weights": ("curves", first("weights", "ema"), "is 'ema': it must be train or bema"),
    "an endless rate": ("models", first("weight_decay", float("inf")), "is inf: it must be finite"),
    "a null count": ("lengths", first("count", None), "is None: it must be there"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_makes_no_sense_is_damaged(finished, wrong):
    """To who reads, and to who looks over what is left to do."""
    table, change, message = WRONG[wrong]
    doctor(finished, table, change, slice(1))
    store = Run(finished.directory)
    with pytest.raises(Damaged, match=rf"sct-v4-s1/pre/00000-00002/{table}\.parquet is not the table of this") as said:
        store.table(table)
    assert message in str(said.value)
    damaged, *others = store.look_over(store.shards())
    assert str(damaged) == str(said.value)
    assert others == [True] * 3


@pytest.mark.parametrize("wrong", ["texts", "no rows", "a model twice", "no checkpoint"])
def test_what_reading_rejects_run_repairs(finished, whole, capsys, wrong):
    """Only the invalid shard is trained again."""
    table, change, message = WRONG[wrong]
    every = {path: path.read_bytes() for path in finished.directory.rglob("*.parquet")}
    others = {path: data for path, data in every.items() if "sct-v4-s1/pre" not in str(path)}
    doctor(finished, table, change, slice(1))
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(finished.directory)])
    assert message in " ".join(capsys.readouterr().err.split())
    main(["run", str(finished.directory), "--workers", "1"])
    assert message in " ".join(capsys.readouterr().out.split())
    assert_same_results(Run(finished.directory), whole)
    assert {path: path.read_bytes() for path in others} == others


@pytest.mark.parametrize("wrong", [name for name in WRONG if WRONG[name][0] != "curves"])
def test_the_same_is_rejected_in_a_reference(finished, tmp_path, capsys, wrong):
    table, change, message = WRONG[wrong]
    kept = write_reference(finished, rs.scores(finished), tmp_path / "kept").directory
    doctor_reference(kept, table, change)
    with pytest.raises(SystemExit, match="2"):
        main(["results", str(kept)])
    said = capsys.readouterr().err
    assert "is not the table of a reference: " in said
    assert message.partition(" of sct")[0].partition("rows of")[0] in said
    assert said.count("\n") == 1


def test_scores_of_a_reference_are_in_range(finished, tmp_path):
    kept = write_reference(finished, rs.scores(finished), tmp_path / "kept").directory
    doctor_reference(kept, "models", first("score_new_bema", 2.0))
    with pytest.raises(rs.UserError, match=r"score_new_bema of sct-v4-s1/pre/0 is 2\.0: it must be from 0 to 1"):
        Reference(kept).table("models")


WIDTHS = {
    "models": put(draw=pl.col("draw").cast(pl.UInt8), steps=pl.col("steps").cast(pl.Int32), seed=pl.lit(0, pl.UInt64)),
    "curves": put(step=pl.col("step").cast(pl.Int16)),
    "lengths": put(length=pl.col("length").cast(pl.UInt32), count=pl.col("count").cast(pl.Int16)),
}


@pytest.mark.parametrize("table", WIDTHS)
def test_numbers_of_another_width_are_cast(finished, whole, table):
    doctor(finished, table, WIDTHS[table])
    assert_frame_equal(Run(finished.directory).table(table), whole.table(table))
    main(["run", str(finished.directory), "--workers", "1"])
    assert pl.read_parquet(next(finished.directory.rglob(f"{table}.parquet"))).schema != whole.table(table).schema


def change_manifest(run, **fields):
    path = run.files(run.shards()[0]).directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("fields", [{"seconds": "x"}, {"seconds": float("nan")}, {"built": 7}, {"bytes": []}])
def test_a_manifest_that_is_none_is_repaired(finished, whole, capsys, fields):
    change_manifest(finished, **fields)
    with pytest.raises(Damaged, match=r"manifest\.json is not a manifest"):
        Run(finished.directory).table("models")
    main(["run", str(finished.directory), "--workers", "1"])
    assert_same_results(Run(finished.directory), whole)


def test_what_an_older_version_did_not_write_is_not_recorded(finished, tmp_path, capsys):
    """Neither the time that a shard took nor the cores of a machine are worth training it again."""
    change_manifest(finished, seconds=None, built=None, engine=None)
    forge(
        finished.directory / "run.json",
        lambda header: [header["provenance"].pop(x) for x in ("cores", "versions", "git")],
    )
    page = tmp_path / "page.html"
    main(["report", str(finished.directory), "--out", str(page)])
    kept = write_reference(finished, rs.scores(finished), tmp_path / "kept").directory
    main(["report", str(kept), "--out", str(page)])
    main(["verify", str(finished.directory), "--reference", str(kept)])
    before = {path: path.read_bytes() for path in finished.directory.rglob("shards/**/*") if path.is_file()}
    main(["run", str(finished.directory), "--workers", "1"])
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    "change",
    [{"cores": "two"}, {"versions": ["torch"]}, {"versions": {"torch": 2}}, {"git": 7}, {"platform": "x\x1b[2J"}],
)
def test_what_a_header_says_of_a_machine_is_plain(finished, capsys, change):
    forge(finished.directory / "run.json", lambda header: header["provenance"].update(change))
    for command in ("report", "status"):
        with pytest.raises(SystemExit, match="2"):
            main([command, str(finished.directory)])
        assert "run.json is damaged: 'provenance." in capsys.readouterr().err
