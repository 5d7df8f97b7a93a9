"""Every file in examples/ and every snippet of the README runs as it stands, at small sizes."""

import re
import shlex
import subprocess
import sys
import webbrowser
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from make_reference import write_reference
from polars.testing import assert_frame_equal
from runs import STOP_AT_ONCE
from scipy.special import erf

import resharpen as rs
from resharpen import own
from resharpen.cli import main
from resharpen.experiments.running import estimate
from resharpen.experiments.specs import shelf
from resharpen.experiments.specs.schema import TABLES
from resharpen.experiments.specs.shelf import SCALES, SHELF, STUDIES, Size
from resharpen.tasks import TASKS, Items

ROOT = Path(__file__).parent.parent
SPECS = sorted((ROOT / "examples").glob("*.toml"))


SIZES = {"items": 512, "selection_items": 256, "sequences": 4, "selection_sequences": 2}
"""Of validation, where a task has them."""


def small(path: Path) -> rs.Experiment:
    spec = rs.read_toml(path)
    settings = []
    for setting in spec.settings:
        sizes = {field.name: SIZES[field.name] for field in fields(setting.task) if field.name in SIZES}
        settings.append(replace(setting, task=replace(setting.task, **sizes)))
    return replace(spec, settings=tuple(settings), models=2, steps=4, checkpoints=2, batch=4)


@pytest.mark.filterwarnings("ignore:variant .* runs on the torch engine")
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_goes_all_the_way(path, tmp_path, capsys):
    """Run, resumed in the middle, to figure, results, claims and a model taken out again."""
    whole = rs.run(small(path), tmp_path / "whole", workers=1)
    while len((part := rs.run(small(path), tmp_path / "part", workers=1, observer=STOP_AT_ONCE)).done()) < len(
        part.shards()
    ):
        pass
    for table in TABLES:
        assert_frame_equal(part.table(table), whole.table(table), check_exact=True)
    assert "figure" in rs.draw(whole)
    capsys.readouterr()
    main(["results", str(tmp_path / "whole"), "--csv"])
    assert capsys.readouterr().out.count("\n") == rs.tidy_results(whole).height + 1
    main(["status", str(tmp_path / "whole")])
    for variant in whole.experiment.variants:
        shard = next(shard for shard in whole.done() if shard.variant == variant)
        model = rs.load_model(whole, shard.model_ids[0], selection="last")
        sequence = [(0.5, 1), (0.25, 0)] if model.model.reads == "items" else [0, 1]
        assert model([sequence]).sum() == pytest.approx(1, abs=1e-5)


def test_an_idea_is_at_most_twenty_lines():
    for path in (ROOT / "examples").glob("my_*"):
        lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
        assert len(lines) <= 20, path.name


@pytest.mark.parametrize(
    ("name", "left_out", "n"),
    [
        ("near", {119, 377}, 400),
        ("unlike", {119, 377}, 100),
        ("fewer", set(), 100),
        ("not_377", {377}, 5),
        ("not_357", {357}, 5),
    ],
)
def test_keys_that_are_left_out(name, left_out, n):
    """The other weights are as they were, but for their sum."""
    attention = own.find(own.refer(f"{ROOT / 'examples' / 'distances.py'}:{name}"))
    e, seen = torch.randn(1, 1, 2, 500, 500), torch.ones(500, 500, dtype=torch.bool).tril()
    weights, before = attention(e, seen, None), rs.masked_softmax(e, seen)
    distance = torch.arange(500)[:, None] - torch.arange(500)
    gone = set(distance[seen & (weights[0, 0, 0] == 0)].tolist())
    assert len(gone) == n
    assert gone >= left_out
    assert gone.isdisjoint({*range(100), *({119, 377} if name == "fewer" else ())})
    kept = before * (weights > 0)
    assert torch.allclose(weights, kept / kept.sum(-1, keepdim=True))


def test_the_random_query():
    """One length per minibatch; attention weights are those of a query that is an MLP of the last bits of a number."""
    spec = rs.read_toml(ROOT / "examples" / "random_query.toml")
    problem = spec.problem(spec.shards()[0])
    lengths = [problem.minibatch(0, step).inputs.length for step in range(20)]
    assert all(len(set(length_N)) == 1 for length_N in lengths)
    assert len({int(length_N[0]) for length_N in lengths}) > 5
    model, rng = replace(problem.model, hidden=8), np.random.default_rng(0)
    shapes = {name: x.shape for name, x in model.parameters(problem.parts).items()}
    theta = {name: rng.normal(size=(2, *shape)) for name, shape in shapes.items()}
    priority, kind = rng.integers(0, 2**24, (3, 5)) / 2**24, rng.integers(0, 10, (3, 5))
    items = Items(*(torch.tensor(x) for x in (priority, kind, np.array([5, 3, 4]))))
    tensors = {name: torch.tensor(x) for name, x in theta.items()}
    got = model.dispersion(tensors, items, problem.parts, {})["largest_weight"]
    for m in range(2):
        w = {name: x[m] for name, x in theta.items()}

        def layers(x, first, second, w=w):
            hidden = x @ w[f"W_{first}"] + w[f"b_{first}"]
            gelu = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
            return gelu @ w[f"W_{second}"] + w[f"b_{second}"]

        for n, length in enumerate((5, 3, 4)):
            x = np.concatenate([priority[n, :length, None], np.eye(10)[kind[n, :length]]], axis=1)
            e = layers(x, 1, 2) @ w["K"] @ layers(np.array([priority[n, 0] * 4096 % 1]), 5, 6)
            weights = np.exp(e - e.max())
            assert float(got[m, n]) == pytest.approx(weights.max() / weights.sum())


def test_the_python_example(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "examples" / "api.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "api" / "figure.png").exists()
    assert "mine" in done.stdout


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import resharpen as rs\n"
        "spec = rs.figure('fig1', 'smoke').with_changes(models=1, steps=1, engine='torch')\n"
        "rs.run(spec, 'run', workers=2)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "if __name__ == '__main__'" in done.stderr


def test_the_readme_s_python_runs(tmp_path, monkeypatch):
    """With a small run in place of the demo."""
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert snippets
    monkeypatch.chdir(tmp_path)
    spec = rs.figure("fig1", "smoke").with_changes(models=2, steps=2, variants=["pre", "peri"], engine="torch")
    rs.run(spec, "runs/demo", workers=1)
    for snippet in snippets:
        exec(snippet, {})


def commands_of(text: str) -> list[str]:
    """Command lines in a page: in code blocks, and between backticks."""
    blocks = re.findall(r"^    (resharpen [^#\n]*)", text, re.M)
    return list(dict.fromkeys(line.strip() for line in [*blocks, *re.findall(r"`(resharpen [^`\n]+)`", text)]))


@pytest.mark.filterwarnings("ignore:variant .* runs on the torch engine")
def test_the_readme_s_commands_run(tmp_path, monkeypatch, capsys):
    """Each as it stands, what trains with one model for two steps. Plain figures are planned here, and run in
    `test_reproduce.py`."""
    lines = commands_of((ROOT / "README.md").read_text())
    assert {line.split()[1] for line in lines} >= {"run", "report", "verify", "list", "reproduce", "parts"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setattr(webbrowser, "open", lambda uri: True)
    monkeypatch.setattr(estimate, "measure_pace", lambda experiment, shard, scored: estimate.Pace(1e-3, 16, 64))
    monkeypatch.setattr(estimate, "TIMES", str(tmp_path / "times.json"))
    tiny = (Size(1, 2, 1),) * len(SCALES)
    for name, entry in SHELF.items():
        small = partial(lambda settings, scale: settings("smoke")[:1], entry.settings)
        monkeypatch.setitem(shelf.SHELF, name, replace(entry, sizes=tiny, settings=small))
    main(["run", "fig1", "--out", "runs/demo", "--workers", "1"])
    demo = rs.load("runs/demo")
    write_reference(demo, rs.scores(demo), tmp_path / "reference")
    for line in lines:
        words = shlex.split(line)[1:]
        if words[0] == "run":
            words += ["--workers", "1"]
            words += ["--models", "1", "--steps", "2"] if words[1].endswith(".toml") else []
            words += ["--dry-run"] if line in {f"resharpen run {name}" for name in (*SHELF, *STUDIES)} else []
        if words[0] == "verify":
            words = [*(word for word in words if word != "--all"), "--reference", "reference"]
        if words[0] == "reproduce":  # all that there is takes minutes even so
            words += ["--only", "fig1,theory", "--workers", "1"]
        try:
            main(words)
        except SystemExit as ended:
            pytest.fail(f"{line}: exit code {ended.code}: {capsys.readouterr().err}")


def test_commands_in_docs_are_there():
    """Every `resharpen run` in README and docs names a figure, a study, a task or a file that exists."""
    text = "".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
    shown = set(re.findall(r"^# ([\w-]+\.toml)$", text, re.M))  # a page can show the file itself
    for first in re.findall(r"resharpen run ([\w./-]+)", text):
        if first not in {*shown, "FILE.toml"} and not first.startswith(("runs/", "/", "...")) and not first.isupper():
            assert (ROOT / first).exists() if "/" in first else first in {**SHELF, **STUDIES, **TASKS}, first
