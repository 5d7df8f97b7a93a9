"""The table of CONTRIBUTING is true: in a copy of the package one of each kind is added as it says, and shows up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEW = {
    "tasks/coin.py": '''
"""Every token is equally likely."""
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from resharpen.streams import below
from resharpen.tasks.task import TokenTask

@dataclass(frozen=True)
class Coin(TokenTask):
    v: int = 2
    kind: ClassVar[str] = "coin"
    longest = 8
    vocabulary = property(lambda self: self.v)

    def sample(self, words_NxT):
        return below(words_NxT, self.v)

    def p_star(self, inputs_NxL):
        return np.full((*inputs_NxL.shape, self.v), 1 / self.v)
''',
    "models/bag.py": '''
"""The embedding of the last token, unembedded."""
from dataclasses import dataclass
from typing import ClassVar
from resharpen.models.layers import embedding, linear
from resharpen.models.model import Model
from resharpen.parts.parameter import learned

@dataclass(frozen=True)
class Bag(Model):
    vocabulary: int
    d: int = 4
    kind: ClassVar[str] = "bag"

    def parameters(self, parts):
        return {"E": learned(self.vocabulary, self.d), "U": learned(self.d, self.vocabulary)}

    def logits(self, theta, tokens_NxL, parts, hyper, record=None):
        return linear(embedding(theta["E"], tokens_NxL), theta["U"])
''',
    "parts/norms/halve.py": '''
"""x / 2, whatever x is (Nobody, 2026)."""
from resharpen.optim.hyperparameters import Row
from resharpen.parts.part import norm

@norm(hyperparameters={"halving": Row(1.0, 2.0)})
def halve(x, p):
    return x / (2 * p.halving)
''',
    "parts/attention/even.py": '''
"""The same weight for every key (Nobody, 2026)."""
from resharpen.parts.part import attention

@attention()
def even(e, mask, p):
    return mask.to(e.dtype).expand_as(e) / p.n
''',
    "parts/positions/late.py": '''
"""e_ij + 1 for every key (Nobody, 2026)."""
from resharpen.parts.part import positions

@positions(on="logits")
def late(e, p):
    return e + 1
''',
    "parts/dropout/twice.py": '''
"""What a block adds is doubled in training (Nobody, 2026)."""
from resharpen.parts.part import dropout

@dropout(on=("block_out",))
def twice(x, p):
    return 2 * x
''',
    "optim/schedules/slow.py": '''
"""Half of the peak (Nobody, 2026)."""
from resharpen.optim.schedule import schedule, warmed_up

@schedule()
def slow(t, p):
    return 0.5 * warmed_up(t, p, 1.0)
''',
    "optim/still.py": '''
"""Nothing moves (Nobody, 2026)."""
from resharpen.optim.optimizer import optimizer

@optimizer()
def still(theta, g, state, p):
    return theta, state
''',
}
IMPORTS = {
    "tasks/__init__.py": ("from resharpen.tasks.coin import Coin", "SetComplement", "Coin"),
    "models/__init__.py": ("from resharpen.models.bag import Bag", "Minimal", "Bag"),
    "parts/norms/__init__.py": ("from resharpen.parts.norms.halve import halve", "rms", "halve"),
    "parts/attention/__init__.py": ("from resharpen.parts.attention.even import even", "softmax", "even"),
    "parts/positions/__init__.py": ("from resharpen.parts.positions.late import late", "rope", "late"),
    "parts/dropout/__init__.py": ("from resharpen.parts.dropout.twice import twice", "no_dropout", "twice"),
    "optim/schedules/__init__.py": ("from resharpen.optim.schedules.slow import slow", "linear", "slow"),
    "optim/__init__.py": ("from resharpen.optim.still import still", "adamw", "still"),
}
"""Catalogs: the import, and what comes before the first entry."""
FIGURE = """    "coins": Entry(
        "Ours", lambda scale: (Setting(SetComplement(4), 2),), ("pre", "peri"), (Size(1, 2, 1),) * 4
    ),
"""
LINES = {
    "parts/placement.py": {
        '    "none": Placement(),\n': '    "first": Placement(embedding_out=True),\n',
        '    "none": "ours",\n': '    "first": "nobody",\n',
    },
    "tasks/metrics.py": {
        '    return wrong.masked_fill(~determined(p_star) | p.isnan().any(-1), float("nan"))\n': (
            '\n\n@metric("sharpness", range=(0.0, 1.0))\ndef sharpness(p, p_star):\n    return p.amax(-1)\n'
        ),
        "known for known in (": "sharpness, ",
    },
    "optim/hyperparameters.py": {"TABLE: Mapping[str, Row] = {\n": '    "mood": Row(1.0, 2.0),\n'},
    "experiments/specs/shelf.py": {"SHELF = {\n": FIGURE},
    "experiments/keeping/tables.py": {
        "    data |= {step_column(slot): _step(at) for slot, at in kept_step.items()}\n": (
            '    data["shoe"] = ["42"] * shard.count\n'
        )
    },
    "experiments/specs/schema.py": {
        '    Column("device", str, "where", shared=True),\n': '    Column("shoe", str, null=True, needed=False),\n'
    },
}
"""What is already there -> what is written after it."""
COIN = """
models = 1
steps = 2
checkpoints = 1
variants = ["bag"]
[task]
kind = "coin"
train_lengths = [3]
model = { kind = "bag" }
"""
CHECK = """
import contextlib, io
import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.keeping.reference import references

said = io.StringIO()
with contextlib.redirect_stdout(said):
    main(["parts"])
for name in ("bag", "halve", "even", "late", "still", "twice", "slow", "first", "halving: 1 to 2"):
    assert name in said.getvalue(), name
variants = ["pre", "first+halve+even+late+twice+still+slow"]
spec = rs.figure("coins", "smoke").with_changes(engine="torch", variants=variants)
run = rs.run(spec, "run", workers=1)
assert {"mood", "halving", "shoe"} <= set(run.table("models").columns)
main(["run", "coin.toml", "--workers", "1"])
assert {"tvd", "sharpness"} <= set(rs.load("runs/coin").table("lengths")["metric"])
for name in references():  # what was kept before is still read
    rs.reference(name).table("models")
"""


def test_one_of_each_kind_is_added_as_the_table_says(tmp_path):
    package = tmp_path / "src" / "resharpen"
    shutil.copytree(ROOT / "src" / "resharpen", package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "reference").symlink_to(ROOT / "reference")
    for name, text in NEW.items():
        (package / name).write_text(text.lstrip())
    for name, (line, first, new) in IMPORTS.items():
        before = re.search(rf" in \(\s*(?={first},)", (package / name).read_text())
        assert before, name
        change(package / name, before[0], f"{before[0]}{new}, ")
        change(package / name, "from resharpen", f"{line}\nfrom resharpen")
    for name, after in LINES.items():
        for old, new in after.items():
            change(package / name, old, old + new)
    (tmp_path / "coin.toml").write_text(COIN)
    (tmp_path / "check.py").write_text(CHECK)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "check.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def change(path, old, new):
    text = path.read_text()
    assert old in text, f"{path.name}: {old}"
    path.write_text(text.replace(old, new, 1))


def test_every_file_and_list_of_the_table_is_there():
    rows = re.findall(r"^\| ([a-z ]+) \| (.*) \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    kinds = {kind for kind, _, _ in rows}
    assert kinds >= {"task", "model", "metric", "hyperparameter", "column of a table", "native attention", "launcher"}
    for kind, _, lists in rows:
        for constant, name in re.findall(r"`(\w+)` in `([\w/]+\.py)`", lists):
            path = ROOT / name if name.startswith("tools/") else ROOT / "src" / "resharpen" / name
            assert re.search(rf"\b{constant}\b", path.read_text()), f"{kind}: {constant} in {name}"
