"""Where a run comes from: the command that makes it again is one that makes it again."""

from dataclasses import replace

from runs import STOP_AT_ONCE

import resharpen as rs
from resharpen.experiments.specs.shelf import take
from resharpen.optim.hyperparameters import narrowed
from resharpen.views.report.about import _origins, command, cut


def made(experiment, tmp_path):
    """A run of it that has not begun."""
    return rs.run(experiment, tmp_path / "r", workers=1, observer=STOP_AT_ONCE)


def test_a_figure_of_the_shelf_by_its_name(tmp_path):
    smaller = take("fig1", "smoke").with_changes(models=2, steps=7, variants=["pre", "peri+log-n"])
    words = "resharpen run fig1 --scale smoke --models 2 --steps 7 --variants pre,peri+log-n --out"
    assert command(made(smaller, tmp_path)) == f"{words} {tmp_path / 'r'}"


def test_what_the_command_line_cannot_say_is_not_said(tmp_path):
    usual = take("fig1", "smoke").with_changes(models=2, steps=7)
    narrow = replace(usual, hyperparameters={"weight_decay": narrowed("weight_decay", (0.01, 0.1))})
    fewer = replace(usual, settings=usual.settings[:1])
    for i, experiment in enumerate((narrow, fewer)):
        run = made(experiment, tmp_path / str(i))
        assert command(run) == run.command
    assert {"what": "weight decay", "here": "[0.01, 0.1]", "paper": "the whole range"} in cut(narrow)
    assert {row["what"]: row["here"] for row in cut(fewer)}["settings"] == "sct-v9-s1"


def test_code_of_one_s_own_has_no_name_on_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text("import resharpen as rs\n\n@rs.norm()\ndef mine(x, p):\n    return x\n")
    own = take("fig1", "smoke").with_changes(
        models=2, steps=7, engine="torch", variants=["pre", f"pre+{tmp_path / 'mine.py'}:mine"]
    )
    run = made(own, tmp_path)
    assert command(run) == run.command


def test_shards_of_one_machine_and_commit_are_one_row():
    def made(count, started, git, cpu="a processor"):
        where = {"started": f"2026-01-0{started}T10:00:00+00:00", "cpu": cpu, "cores": 2, "git": git * 40}
        return count, where | {"versions": {"torch": "2.13.0"}}

    same, rows = _origins([made(3, 2, "b"), made(4, 1, "a"), made(5, 3, "b"), made(6, 4, "b", "another")])
    assert same == {"versions": "torch 2.13.0"}
    assert [(row["shards"], row["started"], row["git"]) for row in rows] == [
        ("4", "2026-01-01 10:00", "a" * 12),
        ("8", "2026-01-02 10:00", "b" * 12),
        ("6", "2026-01-04 10:00", "b" * 12),
    ]
    same, rows = _origins([made(3, 2, "a"), made(1, 1, "a")])
    assert same["started"] == "2026-01-01 10:00"
    assert rows == []
