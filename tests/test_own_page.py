"""The examples of docs/own.md run as they stand there."""

import re
import sys
from pathlib import Path

import pytest

import resharpen as rs
from resharpen.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "own.md"
SECTIONS = ("Metrics", "Tasks: where the loss is computed, and what is scored", "Further tests", "Score any model")


@pytest.mark.parametrize("section", SECTIONS)
def test_examples(section, tmp_path, monkeypatch, capsys):
    """A block that begins with the name of a file is that file; others are executed, commands too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(python|toml|sh)\n(.*?)^```", text, re.M | re.S)
    assert blocks
    for kind, code in blocks:
        if name := re.match(r"# (\w+\.(?:py|toml))\n", code):
            (tmp_path / name[1]).write_text(code)
        elif kind == "sh":
            for line in code.splitlines():
                main(line.split()[1:])
        else:
            exec(compile(code, str(PAGE), "exec"), {})
    sys.modules.pop("digit_sum", None)
    if section == "Metrics":
        assert "margin" in set(rs.load("runs/margin").table("lengths")["metric"])
        assert "margin of legal tokens" in capsys.readouterr().out
