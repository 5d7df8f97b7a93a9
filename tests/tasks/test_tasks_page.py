"""The examples of docs/tasks.md run as they stand there, and its table has every task."""

import re
from pathlib import Path

import resharpen as rs
from resharpen.cli import main
from resharpen.tasks import TASKS

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


def test_examples(tmp_path, monkeypatch):
    """A block that begins with the name of a file is that file; others are executed, commands too."""
    monkeypatch.chdir(tmp_path)
    for kind, code in re.findall(r"^```(python|toml|sh)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        if name := re.match(r"# (\w+\.(?:py|toml))\n", code):
            (tmp_path / name[1]).write_text(code)
        elif kind == "sh":
            main(code.split()[1:])
        else:
            exec(compile(code, str(PAGE), "exec"), {})
    lengths = rs.load("runs/second").table("lengths").filter(metric="error")["length"]
    assert sorted(set(lengths)) == [2, 3, 4, 6, 8, 9, 10, 12, 14, 15, 16, 18]


def test_both_tables_have_every_task():
    first, second = PAGE.read_text().split("## From Python")[0].split("\n| task | from |")
    for kind in TASKS:
        assert re.search(rf"^\|[^|]*`{kind}`", first, re.M)
        assert kind == "automaton" or re.search(rf"^\|[^|]*`{kind}`", second, re.M)
