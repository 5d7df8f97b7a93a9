"""Where a run comes from: the command that makes it again is one that makes it again."""

from dataclasses import replace

from runs import STOP_AT_ONCE

import resharpen as rs
from resharpen.experiments.specs.shelf import take
from resharpen.optim.hyperparameters import narrowed
from resharpen.views.report.about import command, cut


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
