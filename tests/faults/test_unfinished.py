"""Looking at a run while it is trained: one line where there is too little, one set of shards where there is more."""

from dataclasses import replace

import pytest
from make_reference import write_reference
from runs import refused

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.keeping.store import Run
from resharpen.views.report.write import run_data


@pytest.mark.parametrize("results", ["run", "reference"])
def test_claims_without_a_common_draw_are_one_line(spec, tmp_path, capsys, results):
    larger = replace(spec, models=20, settings=spec.settings[:1])
    jobs = [rs.run(larger, tmp_path / "r", workers=1, job=(i, 4)) for i in (2, 3)]
    run = Run(jobs[0].directory)
    assert [shard.name for shard in run.done()] == ["sct-v4-s1/pre/00000-00015", "sct-v4-s1/peri/00016-00019"]
    kept = write_reference(run, rs.scores(run), tmp_path / "kept").directory
    where = run.directory if results == "run" else kept
    said = refused(capsys, "claims", str(where))
    assert f"no draw is finished in all variants yet; continue with: {run.command}" in said
    assert "no draw is finished in all variants" in refused(capsys, "compare", str(where))
    main(["report", str(where), "--out", str(tmp_path / "page.html")])
    main(["results", str(where)])


def test_nothing_to_compare_is_not_agreement(spec, tmp_path, capsys):
    """Of one spec, and no model of one is in a cell of the other."""
    first, second = (rs.run(spec, tmp_path / f"{i}", workers=1, job=(i, 4)) for i in (1, 2))
    kept = write_reference(first, rs.scores(first), tmp_path / "kept").directory
    assert "nothing to compare: " in refused(capsys, "verify", str(second.directory), "--reference", str(kept))
    main(["verify", str(first.directory), "--reference", str(kept)])


def test_one_command_sees_one_set_of_shards(spec, tmp_path, monkeypatch):
    """Another process finishes a shard between any two tables that a report reads."""
    names = [shard.name for shard in spec.shards()]
    run = rs.run(spec, tmp_path / "r", workers=1, without=names[2:])
    table, left = Run.table, names[2:]

    def meanwhile(self, name):
        found = table(self, name)
        if left:
            rs.run(spec, tmp_path / "r", workers=1, without=left[1:])
            left.pop(0)
        return found

    monkeypatch.setattr(Run, "table", meanwhile)
    facts, arrays = run_data(Run(run.directory))
    assert not left
    assert facts["models"] == len(arrays["draw"]) == 2 * spec.models
    assert facts["about"]["facts"]["shards"] == "2 of 4 finished"
    facts, _ = run_data(Run(run.directory))
    assert facts["about"]["facts"]["shards"] == "4 of 4 finished", "a run that is opened again is seen as it is"


def test_variants_that_are_not_begun_have_no_columns_yet(spec, tmp_path):
    """Their hyperparameters are not in the tables: a report shows those that are."""
    both = replace(spec, variants=["pre", "pre+muon"], models=2)
    run = rs.run(both, tmp_path / "r", workers=1, without={s.name for s in both.shards() if s.variant != "pre"})
    facts, _ = run_data(run)
    assert "muon_learning_rate" not in {row["name"] for row in facts["hyperparameters"]}
