"""What own code imports: found beside it, hashed with it, kept with it, and not mixed with that of other files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from resharpen import imports, own
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.keeping.store import CODE
from resharpen.experiments.running import ray_launcher
from resharpen.experiments.running.runner import load, run
from resharpen.parts import find_norm

MAIN = """
import torch
import resharpen as rs
import helper
from package.deep import inner
from package import number

@rs.norm()
def mine(x, p):
    import lazy
    assert (inner.DEEP, number.N) == (1, 2)
    return lazy.scaled(x) * helper.FACTOR
"""
FILES = {
    "own.py": MAIN,
    "helper.py": "from other import FACTOR\n",
    "other.py": "FACTOR = 0.5\n",
    "lazy.py": "def scaled(x):\n    return x / (1 + x * x)\n",
    "package/__init__.py": "from . import number\n",
    "package/number.py": "N = 2\n",
    "package/deep/inner.py": "from .. import number\nDEEP = number.N - 1\n",
    "unused.py": "raise RuntimeError('nobody imports this')\n",
}


def write(directory: Path, **changed: str) -> Path:
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(name.removesuffix(".py").replace("/", "_"), text))
    (directory / "own.py").write_text(f"{MAIN}\n# {directory}\n")
    return directory / "own.py"


@pytest.fixture
def file(tmp_path) -> Path:
    return write(tmp_path / "mine")


def test_all_that_is_imported_is_found_without_executing_it(file):
    source = own.admit(file)
    found = {each.module: str(each.path.relative_to(file.parent)) for each in source.imports}
    assert found == {
        "helper": "helper.py",
        "lazy": "lazy.py",
        "other": "other.py",
        "package": "package/__init__.py",
        "package.deep.inner": "package/deep/inner.py",
        "package.number": "package/number.py",
    }
    assert all(each.beside for each in source.imports)
    assert own.refer(f"{file}:mine") == f"own.py:mine@{source.digest[:12]}"


def test_code_without_helpers_goes_by_the_hash_of_its_file(tmp_path):
    path = tmp_path / "alone.py"
    path.write_text("import os, numpy as np, torch.nn.functional as F, resharpen as rs\nfrom collections import abc\n")
    source = own.admit(path)
    assert source.imports == ()
    assert source.digest == source.sha256


@pytest.mark.parametrize(
    "name", ["helper", "other", "lazy", "package/__init__", "package/number", "package/deep/inner"]
)
def test_another_helper_is_another_reference(file, name):
    before = own.refer(f"{file}:mine")
    helper = file.parent / f"{name}.py"
    helper.write_text(helper.read_text() + "\n# changed\n")
    assert own.refer(f"{file}:mine") != before
    with pytest.raises(UserError, match=r"own\.py, or a file that it imports, has changed since"):
        own.find(before)


def test_what_is_not_imported_does_not_count(file):
    before = own.refer(f"{file}:mine")
    (file.parent / "unused.py").write_text("changed\n")
    assert own.refer(f"{file}:mine") == before


def test_helpers_of_one_name_do_not_mix(tmp_path):
    files = [write(tmp_path / str(i), other=f"FACTOR = {i}.0\n") for i in (1, 2)]
    norms = [find_norm(own.refer(f"{file}:mine")) for file in files]
    import torch

    x = torch.ones(3)
    for factor in (1.0, 2.0):  # each time they are called, lazy imports included
        for i, norm in enumerate(norms, 1):
            assert torch.equal(norm.function(x, None), torch.full((3,), i / 2)), factor


def test_a_package_that_is_installed_in_place_counts_and_the_environment_does_not(tmp_path, monkeypatch):
    """As editable installs and PYTHONPATH have it."""
    package = tmp_path / "elsewhere" / "my_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from my_library.core import VALUE\n")
    (package / "core.py").write_text("import scipy\nVALUE = 3\n")
    monkeypatch.syspath_prepend(package.parent)
    path = tmp_path / "own.py"
    path.write_text("import my_library\nvalue = my_library.VALUE\n")
    source = own.admit(path)
    assert [(each.module, each.beside) for each in source.imports] == [
        ("my_library", False),
        ("my_library.core", False),
    ]
    before = own.refer(f"{path}:value")
    assert own.find(before) == 3
    (package / "core.py").write_text("VALUE = 4\n")
    assert own.refer(f"{path}:value") != before


@pytest.mark.parametrize(("workers", "then"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_a_run_keeps_its_helpers_and_says_so(tiny, tmp_path, file, capsys, workers, then):
    out = tmp_path / "r"
    spec = replace(tiny, variants=[f"pre+{file}:mine"], models=1)
    store = run(spec, out, workers=workers)
    digest = own.admit(file).digest
    (entry,) = json.loads((out / "run.json").read_text())["code"]
    assert entry["sha256"] == digest
    assert {x["module"] for x in entry["imports"]} == {x.module for x in own.admit(file).imports}
    kept = out / CODE / f"{digest[:12]}-own.imports"
    assert (kept / "package" / "deep" / "inner.py").read_text() == FILES["package/deep/inner.py"]
    main(["status", str(out)])
    said = capsys.readouterr().out.replace("\n", " ")
    assert "your code" in said
    assert "helper.py" in said

    # a helper that changed is refused like a file that changed, and the copies run for who trusts them
    before = store.table("lengths")
    (file.parent / "helper.py").write_text("FACTOR = 0.25\n")
    with pytest.raises(
        UserError, match=r"own\.py, or a file that it imports, has changed since this run .*--trust-code"
    ):
        load(out)
    with pytest.raises(UserError, match=r"own\.py, or a file that it imports, has changed|holds another run"):
        run(replace(tiny, variants=[f"pre+{file}:mine"], models=2), out, workers=1)
    shutil.rmtree(file.parent)
    own._admitted.clear()
    grown = run(load(out, trust_code=True).experiment.with_changes(models=2), out, workers=then, trust_code=True)
    assert len(grown.done()) == 4
    (kept / "other.py").write_text("FACTOR = 9.0\n")
    own._admitted.clear()
    with pytest.raises(UserError, match="no longer exists"):
        load(out, trust_code=True)
    assert before.height


def test_helpers_travel(tiny, tmp_path, file):
    """What Ray gets: a directory with it runs, though nothing else is there."""
    store = run(replace(tiny, variants=[f"pre+{file}:mine"], models=1), tmp_path / "r", workers=1)
    for name, content in ray_launcher._content(store).items():
        path = tmp_path / "node" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shutil.rmtree(file.parent)
    own._admitted.clear()
    assert load(tmp_path / "node", trust_code=True).experiment == store.experiment


def test_another_helper_behind_a_link_is_not_executed(tiny, tmp_path, file):
    """A link in place of a package, into a run that came from somebody else."""
    run(replace(tiny, variants=[f"pre+{file}:mine"], models=1), tmp_path / "r", workers=1)
    received = shutil.move(file.parent / "package", tmp_path / "received")
    (file.parent / "package").symlink_to(received)
    own._admitted.clear()
    load(tmp_path / "r")
    with (received / "__init__.py").open("a") as helper:
        helper.write("\nraise RuntimeError('executed')\n")
    own._admitted.clear()
    with pytest.raises(UserError, match=r", or a file that it imports, has changed since this run started"):
        load(tmp_path / "r")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import a.b as c, d", ("a", "a.b", "d")),
        ("from a import b, c", ("a", "a.b", "a.c")),
        ("from .a import b", ("a", "a.b")),
        ("from . import a", ("a",)),
        ("from .. import a", ()),
        ("def f():\n    import a", ("a",)),
        ("def broken(:", ()),
    ],
)
def test_names_that_may_be_modules(text, names):
    assert imports._names(text.encode(), "", True) == names
