"""The sections of docs/own.md on parts: examples run as they stand there, and the table of hyperparameters is whole."""

import re
from pathlib import Path

import pytest

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.specs.variant import CATALOGS, PARTS
from resharpen.optim.hyperparameters import TABLE

PAGE = Path(__file__).parent.parent / "docs" / "own.md"


def section(name: str) -> str:
    return PAGE.read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", ["Parts of a variant", "Schedules"])
def test_examples(name, tmp_path, monkeypatch):
    """A block that begins with the name of a file is that file; others are executed, commands too."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|toml|sh)\n(.*?)^```", section(name), re.M | re.S)
    assert blocks
    for kind, code in blocks:
        if file := re.match(r"# (\w+\.(?:py|toml))\n", code):
            (tmp_path / file[1]).write_text(code)
        elif kind == "sh":
            for line in code.splitlines():
                main(line.split()[1:])
        else:
            exec(compile(code, str(PAGE), "exec"), {})
    if name == "Parts of a variant":
        run = rs.load("runs/parts")
        assert len(run.done()) == len(run.shards()) == 8
        assert {"power", "skip", "dropout_rate"} <= set(run.table("models").columns)
        norms = dict(run.table("models").select("variant", "norm").iter_rows())
        assert re.fullmatch(r"parts.py:power_norm@\w+ & rezero at block_out", norms["mixed"])


def test_every_kind_has_its_signature():
    kinds = re.findall(r"^\| (\w+) \| `", section("Parts of a variant"), re.M)
    assert kinds == [kind for kind in PARTS if kind != "placement"]


def test_every_row_and_every_schedule_is_there():
    rows = {row for kind in PARTS for part in CATALOGS[kind].values() for row in getattr(part, "hyperparameters", {})}
    table = section("Hyperparameters")
    for row in {*TABLE, *rows}:
        assert f"`{row}`" in table, row
    for name in CATALOGS["schedule"]:
        assert f"| `{name}` |" in section("Schedules")
