"""Python objects in place of FILE.py:NAME: from scripts, from notebook cells, and what cannot be made again."""

from __future__ import annotations

import linecache
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resharpen as rs
from resharpen import objects, own
from resharpen.errors import UserError
from resharpen.experiments.running.runner import load, run
from resharpen.parts.norms.layer import layer

SCRIPT = """
from dataclasses import dataclass
import numpy as np
import torch
import resharpen as rs
from helper import half

@dataclass(frozen=True)
class Urn(rs.TokenTask):
    v: int
    longest = 8
    vocabulary = property(lambda self: self.v)
    def sample(self, words_NxT):
        return rs.below(words_NxT, self.v)
    def p_star(self, inputs_NxL):
        return np.full((*inputs_NxL.shape, self.v), 1 / self.v)

@rs.norm(g=rs.learned("d", start=1.0))
def mine(x, p):
    return half(x) * p.g

@rs.optimizer()
def descent(theta, g, state, p):
    return theta - p.lr * g, {}

@dataclass(frozen=True)
class Bag(rs.Model):
    vocabulary: int
    d: int = 4
    def parameters(self, parts):
        return {"E": rs.learned(self.vocabulary, self.d), "U": rs.learned(self.d, self.vocabulary)}
    def logits(self, theta, tokens_NxL, parts, hyper, record=None):
        return rs.linear(rs.embedding(theta["E"], tokens_NxL).cumsum(2), theta["U"])

if __name__ == "__main__":
    variants = {
        "pre": rs.Variant("pre"),
        "mine": rs.Variant("peri", norm=mine, optimizer=descent),
        "bag": rs.Variant(model=Bag),
        "wide": rs.Variant(model=Bag(4, d=6)),
    }
    model = rs.Transformer(4, layers=1, d=4, heads=2, d_mlp=4)
    spec = rs.Experiment("script", (rs.Setting(Urn(4), 3, model, sizes=()),), variants, 2, 3, engine="torch")
    run = rs.run(spec, "r", workers=2)
    print(len(run.done()), run.experiment.variants["mine"].norm, run.experiment.variants["wide"].model.sizes)
"""


def test_objects_of_a_script_in_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("def half(x):\n    return x / 2\n")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    digest = own.admit(tmp_path / "script.py").digest[:12]
    assert done.stdout.split() == ["4", f"script.py:mine@{digest}", "(('d',", "6),)"]
    assert (tmp_path / "r" / "code" / f"{digest}-script.imports" / "helper.py").exists()
    store = load(tmp_path / "r")  # by the script, which is still there and the same
    assert store.experiment.settings[0].task.kind == f"script.py:Urn@{digest}"
    (tmp_path / "helper.py").write_text("def half(x):\n    return x / 3\n")
    with pytest.raises(UserError, match=r"script\.py, or a file that it imports, has changed"):
        load(tmp_path / "r")


def test_a_script_that_starts_a_run_when_it_is_loaded_is_refused(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        SCRIPT.replace('if __name__ == "__main__":', "if True:").replace("from helper import half", "half = abs")
    )
    with pytest.raises(
        UserError, match=r"script\.py, line \d+: it defines or starts a run when it is loaded: put that under"
    ):
        own.find(own.refer(f"{path}:mine"))


# ---- cells -----------------------------------------------------------------------------------------------------------


class Notebook:
    """Cells as a kernel executes them: in one namespace, with sources that only linecache has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "cells"):
        self.module, self._n, self._monkeypatch = types.ModuleType(name), 0, monkeypatch
        monkeypatch.setitem(sys.modules, name, self.module)

    def cell(self, text: str) -> types.ModuleType:
        self._n += 1
        name = f"<cell {self._n}>"
        self._monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec", dont_inherit=True), vars(self.module))
        return self.module


@pytest.fixture
def notebook(monkeypatch) -> Notebook:
    found = Notebook(monkeypatch)
    found.cell("from dataclasses import dataclass\nimport numpy as np\nimport torch\nimport resharpen as rs\n")
    return found


NORM = """
@rs.norm(g=rs.learned("d", start=1.0))
def mine(x, p):
    return scaled(x) * p.g * FACTOR

unrelated = object()
"""
URN = SCRIPT[SCRIPT.index("@dataclass(frozen=True)\nclass Urn") : SCRIPT.index("@rs.norm(g")]


@pytest.mark.parametrize("workers", [1, 2])
def test_objects_of_cells(notebook, tmp_path, workers):
    notebook.cell(f"FACTOR = 0.5 + {workers}\n\ndef scaled(x):\n    return torch.tanh(x)\n")
    cells = notebook.cell(f"{NORM}\n{URN}")
    variants = {"pre": rs.Variant("pre"), "mine": rs.Variant("pre", norm=cells.mine)}
    model = rs.Transformer(4, layers=1, d=4, heads=2, d_mlp=4)
    spec = rs.Experiment("cells", (rs.Setting(cells.Urn(4), 3, model),), variants, 2, 3, engine="torch")
    store = run(spec, tmp_path / "r", workers=workers)
    assert len(store.done()) == 2
    sources = {path.name.split("-", 1)[1]: path.read_text() for path in (tmp_path / "r" / "code").iterdir()}
    assert f"FACTOR = {0.5 + workers}" in sources["mine.py"]
    assert "def scaled(x):\n    return torch.tanh(x)" in sources["mine.py"]
    assert "unrelated" not in sources["mine.py"]
    assert "import numpy as np" in sources["Urn.py"]

    # the same cells again continue it; other ones are another run; without them, who trusts the copies continues it
    again = run(replace(spec, models=3), tmp_path / "r", workers=1)
    assert len(again.done()) == 4
    cells.FACTOR = 7.0
    other = replace(spec, variants={**variants, "mine": rs.Variant("pre", norm=cells.mine)})
    with pytest.raises(
        UserError, match=r"holds another run \(models.*variant\.mine\.norm: mine\.py:mine@.* -> mine\.py:mine@"
    ):
        run(other, tmp_path / "r", workers=1)
    own._admitted.clear()
    for path in objects._directory().iterdir():
        shutil.rmtree(path)
    with pytest.raises(UserError, match=r"no longer exists.*--trust-code"):
        load(tmp_path / "r")
    assert len(load(tmp_path / "r", trust_code=True).done()) == 4


REFUSED = {
    "lambda": ("mine = rs.norm()(lambda x, p: x)", None),  # it has a name, and a statement
    "lambda without a name": ("parts = [rs.norm()(lambda x, p: x)]", "a lambda cannot be rebuilt in a worker"),
    "local": (
        "def make():\n    @rs.norm()\n    def inner(x, p):\n        return x\n    return inner\nparts = [make()]",
        "'inner' is defined inside a function, where a worker cannot find it: move it to the top level",
    ),
    "closure over a number": (
        "def make(k):\n    @rs.norm()\n    def inner(x, p):\n        return k * x\n    return inner\nmine = make(2)",
        None,
    ),
    "an array": (
        "W = np.ones(3)\n@rs.norm()\ndef mine(x, p):\n    return x * W[0]",
        "'mine' uses 'W', a ndarray that a worker cannot rebuild: compute it in the function, or put both",
    ),
    "an object": ("f = object()\n@rs.norm()\ndef mine(x, p):\n    return x * hash(f)", "'mine' uses 'f', a object"),
    "not a number": ("K = float('nan')\n@rs.norm()\ndef mine(x, p):\n    return x * K", "'mine' uses 'K', a float"),
    "a part of another kind": (
        "@rs.attention()\ndef mine(e, mask, p):\n    return e",
        "norm = Attention.*must be a name",
    ),
    "nothing": ("mine = 3", "norm = 3: must be a name, FILE.py:NAME, or a function with @rs.norm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_again_is_refused_in_a_line(notebook, name):
    text, message = REFUSED[name]
    cells = notebook.cell(text)
    part = cells.mine if hasattr(cells, "mine") else cells.parts[0]
    if message is None:
        assert own.find(rs.Variant("pre", norm=part).norm).function(1.0, None) in (1.0, 2.0)
        return
    with pytest.raises(UserError, match=message) as error:
        rs.Variant("pre", norm=part)
    assert "\n" not in str(error.value)


def test_code_without_a_source_is_refused(monkeypatch):
    module = types.ModuleType("typed")
    monkeypatch.setitem(sys.modules, "typed", module)
    exec("import resharpen as rs\n@rs.norm()\ndef mine(x, p):\n    return x", vars(module))
    with pytest.raises(UserError, match="the source of 'mine' is unknown: define it in a file or in a notebook cell"):
        rs.Variant("pre", norm=module.mine)


def test_what_is_built_in_goes_by_its_name():
    given: Any = {"norm": layer, "model": rs.Transformer(5, layers=3)}
    variant = rs.Variant("pre", **given)
    assert variant.norm == "layer"
    assert variant.model is not None
    assert (variant.model.kind, dict(variant.model.sizes)["layers"]) == ("transformer", 3)
    given = {"model": rs.Transformer}
    assert rs.Variant(**given).model == rs.ModelChange("transformer")


@dataclass(frozen=True)
class Coin(rs.TokenTask):
    longest = 4  # pyright: ignore
    vocabulary = 2  # pyright: ignore

    def sample(self, words_NxT):
        return rs.below(words_NxT, 2)

    def p_star(self, inputs_NxL):
        return np.full((*inputs_NxL.shape, 2), 0.5)


def test_objects_of_a_module_go_by_its_file():
    setting = rs.Setting(Coin(), 2)
    assert setting.task.kind == own.refer(f"{Path(__file__)}:Coin")
    assert type(setting.task) is Coin
