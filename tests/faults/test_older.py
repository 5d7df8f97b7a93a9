"""Runs and references of other versions: what was added later is not recorded, what is unknown is left alone."""

import json

import polars as pl
import pytest
from make_reference import write_reference
from polars.testing import assert_frame_equal
from runs import doctor, doctor_reference

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.keeping.store import Run
from resharpen.views.report.write import run_data

MODEL = "sct-v4-s2/peri/1"


def unknown_metric(table):
    new = table.filter(metric="tvd").with_columns(metric=pl.lit("surprise"), value=pl.col("value") + 7)
    return pl.concat([table, new])


CHANGES = {
    "a hyperparameter that was not drawn yet": ("models", lambda table: table.drop("weight_decay")),
    "a part that was not there yet": ("models", lambda table: table.drop("positions", "d_k")),
    "a column of a later version": ("models", lambda table: table.with_columns(mood=pl.lit("good"), curfew=7)),
    "of lengths, too": ("lengths", lambda table: table.with_columns(mood=pl.lit("good"))),
    "a metric of a later version": ("lengths", unknown_metric),
    "only the metric that was there": ("lengths", lambda table: table.filter(metric="tvd").drop("without")),
}


@pytest.fixture(params=["run", "reference"])
def older(request, finished, tmp_path):
    """Changes a run or a reference and opens it."""
    if request.param == "run":
        return lambda table, change: doctor(finished, table, change) or Run(finished.directory)
    kept = write_reference(finished, rs.scores(finished), tmp_path / "kept").directory
    return lambda table, change: doctor_reference(kept, table, change) or Reference(kept)


@pytest.mark.parametrize("change", CHANGES)
def test_older_and_later_tables_are_read(older, whole, tmp_path, capsys, change):
    results, page = older(*CHANGES[change]), tmp_path / "page.html"
    scores, expected = rs.scores(results), rs.scores(whole)
    assert_frame_equal(scores.select("model", "weights", "score"), expected.select("model", "weights", "score"))
    main(["results", str(results.directory)])
    of_older = capsys.readouterr().out
    main(["results", str(whole.directory)])
    of_whole = capsys.readouterr().out
    fewer = "only" in change
    assert of_whole.startswith(of_older) if fewer else of_whole == of_older
    main(["compare", str(results.directory), "--out", str(tmp_path / "out")])
    main(["compare", str(results.directory), "--with", str(whole.directory), "--out", str(tmp_path / "out")])
    main(["claims", str(results.directory)])
    main(["figure", str(results.directory), "--out", str(tmp_path / "out")])
    main(["report", str(results.directory), "--out", str(page)])
    facts, arrays = run_data(results)
    names = ["tvd"] if fewer else ["tvd", "kl", "illegal", "error", "exact"]
    assert [metric["name"] for metric in facts["metrics"]] == names
    assert len(arrays["hyper"]) == len(facts["hyperparameters"]) == 12 - ("hyperparameter" in change)
    assert facts["about"]["facts"].get("not recorded") == ("weight decay" if "hyperparameter" in change else None)


@pytest.mark.parametrize("change", CHANGES)
def test_models_of_other_versions_are_opened(finished, whole, change):
    doctor(finished, *CHANGES[change])
    store = Run(finished.directory)
    model, expected = rs.load_model(store, MODEL), rs.load_model(whole, MODEL)
    assert (model([[2, 0]]) == expected([[2, 0]])).all()
    assert ("weight_decay" in model.hyperparameters) == ("hyperparameter" not in change)
    assert rs.inspect(store, store.experiment.settings[1]).summary().height == 2
    assert all(done is True for done in store.look_over(store.shards())), "nothing is trained again for it"


def test_a_model_without_what_it_reads_is_one_line(finished):
    doctor(finished, "models", lambda table: table.drop("rms_epsilon"))
    with pytest.raises(rs.UserError, match=f"model '{MODEL}' cannot be loaded: its rms_epsilon is not recorded in"):
        rs.load_model(Run(finished.directory), MODEL)


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_is_verified_against_an_older_reference(finished, whole, tmp_path, capsys, change):
    kept = write_reference(finished, rs.scores(finished), tmp_path / "kept").directory
    doctor_reference(kept, *CHANGES[change])
    main(["verify", str(whole.directory), "--reference", str(kept)])
    assert "12 " in capsys.readouterr().out, "three models of two variants at two training lengths"


def test_what_is_missing_comes_from_the_spec(finished, whole):
    doctor(finished, "models", lambda table: table.drop("placement", "norm", "v", "d"))
    assert_frame_equal(Run(finished.directory).table("models"), whole.table("models"))


def test_an_older_reference_grows(finished, whole, spec, tmp_path):
    kept = write_reference(finished, rs.scores(finished), tmp_path / "kept").directory
    doctor_reference(kept, "models", lambda table: table.drop("weight_decay"))
    grown = write_reference(whole, rs.scores(whole), kept, [spec.settings[1].name])
    assert grown.table("models")["weight_decay"].null_count() == 6
    assert len(json.loads((kept / "reference.json").read_text())["made"]) == 2
