"""`resharpen tasks`, and every task run by its name."""

from __future__ import annotations

import numpy as np
import pytest
from runs import refused

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.specs.shelf import take
from resharpen.tasks import TASKS, Language

NAMED = [name for name in TASKS if name != "automaton"]
SMALL = {
    "minimal": "model={d=4}",
    "retriever": "model={hidden=8},longest=16,items=64,selection_items=64",
    "transformer": "model={layers=1,d=8,heads=1,d_mlp=8},train_lengths=[5],sequences=3",
}


@pytest.mark.parametrize("name", NAMED)
def test_every_task_runs_by_its_name(name, tmp_path):
    """Trained, stored, read again, scored by every metric and drawn; models, lengths and sets are small."""
    text = f"{name},{SMALL[TASKS[name].usual_model]}{',selection_sequences=2' * issubclass(TASKS[name], Language)}"
    experiment = take(text, "smoke").with_changes(models=1, steps=2, engine="torch")
    assert list(experiment.variants) == ["pre", "peri"]
    run = rs.run(experiment, tmp_path / "run", workers=1)
    run = rs.load(run.directory)
    task, lengths = experiment.settings[0].task, run.table("lengths")
    assert set(lengths["metric"]) >= set(task.metrics)
    assert set(lengths["test"]) == {"", *TASKS[name].usual_tests}
    figures = rs.draw(run)
    assert "figure" in figures
    if task.reads == "tokens":
        model = rs.load_model(run, run.table("models")["model"][0])
        found = rs.score(model, task).means().filter(metric=task.metric)["value"][0]
        rows = rs.scores(run).filter(model=model.id, weights="train")
        assert np.isclose(found, rows["score"][0], atol=1e-4)


def test_the_list_and_one_task(capsys):
    main(["tasks"])
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in TASKS)
    assert said.count("native") >= len(NAMED)
    main(["tasks", "dyck,k=2,m=3"])
    said = " ".join(capsys.readouterr().out.split())
    assert "parameters sequences = 1024, selection_sequences = 64, k = 2, m = 3" in said
    assert "A sequence: BOS" in said
    main(["tasks", "flip-flop"])
    said = " ".join(capsys.readouterr().out.split())
    assert "tests sparse: p_ignore = 0.98; dense: p_ignore = 0.1" in said
    assert "w 0 i 0.8, w 0.1, r 0.1" in said or "w 1 i 0.8, w 0.1, r 0.1" in said


def test_a_question_shows_where_it_is_scored(capsys):
    main(["tasks", "majority,v=3"])
    said = capsys.readouterr().out
    scored = said.split("scored after")[1].split()
    assert scored[: scored.index("SEP") + 1][-1] == "SEP"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("flip-flob", "unknown figure or task 'flip-flob': did you mean 'flip-flop'"),
        ("dyck,k=x", "write KIND,KEY=VALUE"),
        ("dyck,j=2", "unknown key in [task] 'j'"),
        ("flip-flop,p_ignore=2.0", "p_ignore = 2.0: a probability between 0 and 1"),
        ("automaton", "a language needs states"),
    ],
)
def test_bad_tasks_are_one_line(task, message, capsys):
    for command in ("tasks", "run"):
        assert message in refused(capsys, command, task)


def test_a_task_with_parameters_and_tests_runs_from_the_command_line(tmp_path, capsys):
    text = "flip-flop,p_ignore=0.5,train_lengths=[4],model={layers=1,d=8,heads=1,d_mlp=8},sequences=4"
    out = tmp_path / "run"
    main(
        [
            "run",
            text,
            *["--scale", "smoke", "--models", "1", "--steps", "2", "--workers", "1", "--engine", "torch", "--out"],
            str(out),
        ]
    )
    assert "--test sparse" in capsys.readouterr().out
    run = rs.load(out)
    assert [setting.name for setting in run.experiment.settings] == ["flip-flop-i0.5-s4"]
    assert list(run.experiment.variants) == ["pre", "peri"]
    assert {"figure.png", "comparison.png"} <= {path.name for path in out.iterdir()}
