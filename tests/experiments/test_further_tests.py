"""Further test distributions: the same task with other parameters, scored once on the weights that were kept."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from make_reference import write_reference
from polars.testing import assert_frame_equal
from runs import parquet, refused, weights_by_model

import resharpen as rs
from resharpen.analysis.scores import lengths_of
from resharpen.analysis.verify import verify
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.keeping.reading import Reader
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.toml import from_data, from_stored, read_toml, to_data
from resharpen.models import Transformer
from resharpen.tasks import Dyck, FlipFlop
from resharpen.views.report.write import run_data

TESTS = {"sparse": {"p_ignore": 0.98}, "dense": {"p_ignore": 0.1}}
SMALL = Transformer(5, layers=1, d=8, heads=1, d_mlp=8)


def experiment(tests=None, **changes):
    settings = (Setting(FlipFlop(0.8, sequences=12).with_options(tests=tests), 9, SMALL),)
    fields = {"models": 2, "steps": 8, "batch": 8, "checkpoints": 2, "engine": "torch"} | changes
    return Experiment("x", settings, ["pre", "peri"], **fields)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("tests")


@pytest.fixture(scope="module")
def plain(directory):
    return rs.run(experiment(), directory / "plain", workers=1)


@pytest.fixture(scope="module")
def tested(directory):
    return rs.run(experiment(TESTS), directory / "tested", workers=1)


def test_a_test_changes_neither_models_nor_their_own_scores(plain, tested):
    for name in ("models", "curves"):
        assert_frame_equal(plain.table(name), tested.table(name), check_exact=True)
    assert weights_by_model(plain) == weights_by_model(tested)
    assert_frame_equal(plain.table("lengths"), tested.table("lengths").filter(test=""), check_exact=True)
    assert set(tested.table("lengths")["test"]) == {"", *TESTS}
    assert_frame_equal(rs.scores(plain), rs.scores(tested), check_exact=True)
    assert rs.compare(plain).table().equals(rs.compare(tested).table())


@pytest.mark.parametrize("test", TESTS)
def test_values_are_those_of_the_kept_weights_on_the_other_task(tested, test):
    model = tested.table("models")["model"][-1]
    task = tested.experiment.settings[0].task.tested(test)
    assert task == FlipFlop(TESTS[test]["p_ignore"], sequences=12)
    expected = rs.score(rs.load_model(tested, model), task, seed=tested.experiment.seed).table
    found = lengths_of(tested, test).filter(model=model, weights="train", selection="best")
    both = found.join(expected, on=["metric", "length"], suffix="_there")
    assert set(both["metric"]) >= {"tvd", "kl", "error"}
    assert np.allclose(both["value"].to_numpy(), both["value_there"].to_numpy(), atol=1e-5, equal_nan=True)
    assert (both["count"] == both["count_there"]).all()
    other = lengths_of(tested).filter(model=model, weights="train", selection="best", metric="tvd")["value"]
    assert not np.allclose(found.filter(metric="tvd")["value"].to_numpy(), other.to_numpy())


def test_every_view_shows_one_test(tested, directory, capsys):
    run = str(tested.directory)
    whole, sparse = (rs.tidy_results(tested, test) for test in (None, "sparse"))
    assert whole.height == 3 * sparse.height
    assert set(sparse["test"]) == {"sparse"}
    compared = rs.compare(tested, test="sparse")
    assert "of test sparse" in compared.sentences()[0]
    assert not compared.table().equals(rs.compare(tested).table())
    by_hand = lengths_of(tested, "sparse").filter(weights="train", selection="best", metric="tvd")
    mean = by_hand.filter(pl.col("count") > 0).group_by("model").agg(pl.col("value").mean())
    found = rs.scores(tested, test="sparse").filter(weights="train").join(mean, on="model")
    assert np.allclose(found["score"].to_numpy(), found["value"].to_numpy())
    main(["figure", run, "--test", "sparse", "--metric", "tvd"])
    main(["compare", run, "--test", "sparse"])
    main(["results", run, "--test", "sparse"])
    main(["report", run, "--test", "sparse"])
    said = capsys.readouterr().out
    assert "of test sparse" in said
    assert "on test sparse" in said
    names = {path.name for path in tested.directory.iterdir()}
    assert {"tvd-sparse.png", "comparison-sparse.png", "report-sparse.html"} <= names
    facts, arrays = run_data(tested, test="sparse")
    assert facts["name"].endswith("test sparse")
    assert facts["claims"] == []
    own = run_data(tested)[1]
    assert not np.array_equal(arrays["mean"], own["mean"], equal_nan=True)
    rescored = rs.rescore(tested, "softmax", test="sparse")
    assert set(rescored["test"]) == {"sparse"}
    both = rescored.join(lengths_of(tested, "sparse"), on=["model", "weights", "selection", "metric", "length"])
    assert np.allclose(both["value"].to_numpy(), both["value_right"].to_numpy(), atol=1e-5, equal_nan=True)


def test_unknown_tests_are_one_line(plain, tested, capsys):
    for command in ("figure", "compare", "results", "report"):
        said = refused(capsys, command, str(tested.directory), "--test", "spare")
        assert "has no test 'spare': did you mean 'sparse'?" in said
        assert "has no further tests" in refused(capsys, command, str(plain.directory), "--test", "sparse")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"ignore": 1}, r"test 'x': unknown key in \[task\] 'ignore': did you mean 'p_ignore'"),
        ({"p_ignore": 1.5}, "test 'x': p_ignore = 1.5: a probability"),
        ({"p_ignore": "a"}, "test 'x': p_ignore = 'a': must be a number"),
        ({}, "test 'x': no field differs from the task"),
        (3, "test.x = 3: must be a table"),
        (Dyck(2, 3), "must be a table"),
    ],
)
def test_wrong_parameters_are_one_line(test, message):
    with pytest.raises(UserError, match=message):
        FlipFlop().with_options(tests={"x": test})


def test_names_and_vocabularies_are_checked():
    with pytest.raises(UserError, match="test 'a/b': names may have letters"):
        FlipFlop().with_options(tests={"a/b": {"p_ignore": 0.5}})
    with pytest.raises(UserError, match="test 'more': its vocabulary is 8, that of the task is 6"):
        Dyck(2, 3).with_options(tests={"more": {"k": 3}})
    assert Dyck(2, 3).with_options(tests={"deep": Dyck(2, 2)}).tests == {"deep": {"m": 2}}


def test_a_spec_goes_to_toml_and_json_and_back(tmp_path):
    (tmp_path / "x.toml").write_text(
        'models = 2\nsteps = 8\nvariants = ["pre"]\n[task]\nkind = "flip-flop"\n[task.test.sparse]\np_ignore = 0.98\n'
    )
    read = read_toml(tmp_path / "x.toml")
    assert read.settings[0].task.tests == {"sparse": {"p_ignore": 0.98}}
    data = json.loads(json.dumps(to_data(read)))
    assert data["task"][0]["test"] == {"sparse": {"p_ignore": 0.98}}
    for again in (from_data(data), from_stored(data, tmp_path)):
        assert to_data(again) == to_data(read)
    with pytest.raises(UserError, match=r"test = 3: must be tables of fields, \[task.test.NAME\]"):
        from_data({**data, "task": {**data["task"][0], "test": 3}})


def test_a_run_keeps_its_tests(tested, directory, capsys):
    with pytest.raises(UserError, match="sparse"):
        rs.run(experiment({"sparse": {"p_ignore": 0.98}}), directory / "tested", workers=1)


def test_runs_pair_whatever_they_are_tested_on(plain, tested):
    found = rs.compare(plain, other=tested, baseline="pre")
    assert "pre@tested" in found.variants
    with pytest.raises(UserError, match="has no further tests"):
        rs.compare(tested, other=plain, test="sparse")


def read(run, table):
    """A table as it is read from a file."""
    reader, shards = Reader(run.experiment), run.shards()
    found = reader.parse("lengths", parquet(table), shards)
    reader.check("lengths", found, shards)
    return found


def test_tables_are_read_with_their_tests_and_no_others(plain, tested):
    table = tested.table("lengths")
    assert_frame_equal(read(tested, table), table)
    assert set(read(plain, plain.table("lengths").drop("test"))["test"]) == {""}  # as older versions wrote it
    sparse = table.filter(test="sparse")
    for changed, message in (
        (pl.concat([table, sparse.with_columns(test=pl.lit("other"))]), "values of another test, 'other'"),
        (table.filter(pl.col("test") != "sparse"), "no values of test 'sparse'"),
        (table.filter(pl.col("test") != ""), "no values of test ''"),
        (table.with_columns(test=pl.lit(None, pl.String)), "test of .* must be there"),
        (table.filter((pl.col("test") != "sparse") | (pl.col("length") > 16)), "rows of .*: it must be"),
    ):
        with pytest.raises(ValueError, match=message):
            read(tested, changed)


def test_a_reference_keeps_tests(tested, directory):
    kept = write_reference(tested, rs.scores(tested), directory / "kept")
    theirs, ours = (rs.scores(x, test="sparse").select("model", "weights", "score") for x in (kept, tested))
    assert_frame_equal(theirs, ours, abs_tol=1e-6)
    checks = verify(tested, kept)
    assert not any(check.differs for check in checks)
    counted = next(check for check in checks if "sizes of validation sets" in check.what)
    own = tested.table("lengths").filter(pl.col("metric").is_in(["tvd"]))
    assert counted.compared == own.height
