"""Modules of the user's own all the way: trained beside built-in models, killed, resumed, compared, taken out again."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import reported
from runs import STOP_AT_ONCE, assert_same_results, refused

import resharpen as rs
from resharpen.cli import main
from resharpen.experiments.keeping.store import Run
from resharpen.own import find

pytestmark = [
    pytest.mark.xdist_group("modules"),  # two whole runs for all
    pytest.mark.filterwarnings("ignore:variant .* runs on the torch engine"),
]
NETS = Path(__file__).parent.parent.parent / "nets.py"
TOML = """
models = 2
steps = {steps}
batch = 4
checkpoints = 2
variants = ["peri", "nets.py:LSTM", "my-gru", "nets.py:Encoder", "nets.py:Convolution+muon"]

[variant.my-gru]
model = {{ kind = "nets.py:GRU", d = 6 }}

[task]
{task}
"""
TASKS = {
    "dyck": 'kind = "dyck"\nk = 2\nm = 3\nsequences = 3\nselection_sequences = 2\n',
    "sct": "v = 5\ntrain_lengths = [2]\n",
}


def place(directory: Path, task: str, steps: int = 6) -> Path:
    (directory / "nets.py").write_bytes(NETS.read_bytes())
    path = directory / "spec.toml"
    path.write_text(TOML.format(task=TASKS[task], steps=steps))
    return path


@pytest.fixture(scope="module", params=["dyck", "sct"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp(request.param)
    return rs.run(rs.read_toml(place(directory, request.param)), directory / "whole", workers=1)


def test_stopped_at_every_chunk_it_ends_with_the_same_bits(whole, tmp_path):
    spec = whole.experiment
    while len((part := rs.run(spec, tmp_path / "part", workers=1, observer=STOP_AT_ONCE)).done()) < len(part.shards()):
        pass
    assert_same_results(whole, part)


@pytest.mark.slow
def test_more_workers_change_nothing(whole, tmp_path):
    assert_same_results(whole, rs.run(whole.experiment, tmp_path / "two", workers=2))


def test_models_read_back_to_their_stored_scores(whole):
    """From the user's own class, with its own names: `load_state_dict` takes them."""
    seed, setting = whole.experiment.seed, whole.experiment.settings[0]
    for variant in whole.experiment.variants:
        model = rs.load_model(whole, f"{setting.name}/{variant}/1", selection="last")
        stored = whole.table("lengths").filter(model=model.id, weights="train", selection="last")
        found = reported(model, seed)
        assert len(found) == stored.height
        for metric, length, value in stored.select("metric", "length", "value").iter_rows():
            known = np.nan if value is None else value
            assert found[metric, length] == pytest.approx(known, abs=2e-5, nan_ok=True), (variant, metric, length)
        probabilities = model([[0, 1], [1]])
        assert np.allclose(probabilities.sum(-1), 1, atol=1e-5)
        assert "output" in model.trace([0, 1])


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export, of every nn.LSTM
def test_a_stored_module_is_the_user_s(whole):
    experiment, setting = whole.experiment, whole.experiment.settings[0]
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0]])
    for variant in list(experiment.variants)[1:]:
        model = rs.load_model(whole, f"{setting.name}/{variant}/0", selection="last")
        module, kind = model.module(), experiment.variants[variant].model.kind
        assert type(module) is find(kind)
        assert not module.training
        fresh = model.model.make((1, 2), 0)
        fresh.load_state_dict(module.state_dict())
        expected = module(tokens)
        assert torch.equal(fresh.eval()(tokens), expected)
        exported = torch.export.export(module, (tokens,)).module()
        assert torch.allclose(exported(tokens), expected, atol=1e-5)
        torch.save(module.state_dict(), io.BytesIO())
        optimizer = torch.optim.AdamW(module.train().parameters())
        module(tokens).square().mean().backward()
        optimizer.step()
        assert not torch.equal(module.eval()(tokens), expected)


def test_random_constants_are_those_of_the_draw(whole):
    name = whole.experiment.settings[0].name
    first, again, other = (
        rs.load_model(whole, f"{name}/Convolution+muon/{draw}", selection="last").module().features
        for draw in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_they_are_compared_with_what_is_built_in(whole, capsys):
    """On the same draws; and how many parameters each has stands beside."""
    hyper = whole.table("models").select("draw", "variant", "peak_learning_rate", "weight_decay")
    assert hyper.drop("variant").unique().height == 2
    main(["compare", str(whole.directory), "--baseline", "peri"])
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    counts = {
        variant: sum(x.size for x in rs.load_model(whole, f"{shard.setting.name}/{variant}/0").weights.values())
        for shard in whole.shards()
        for variant in (shard.variant,)
    }
    assert f"Parameters: {', '.join(f'{variant} {n:,}' for variant, n in counts.items())}" in said
    for variant, n in counts.items():
        warned = f"Warning: '{variant}' has" in said
        assert warned == (abs(n / counts["peri"] - 1) > 0.1), variant
    found = rs.compare(whole)
    assert found.parameters == {(whole.experiment.settings[0].name, v): n for v, n in counts.items()}


def test_the_report_says_how_large_models_are(whole, tmp_path):
    from resharpen.analysis.compare import compare
    from resharpen.views.report.about import about
    from resharpen.views.report.write import comparison_data

    facts = about(whole)["facts"]
    assert facts["parameters"].startswith("peri ")
    assert "LSTM" in facts["parameters"]
    said = comparison_data(compare(whole))["warnings"]
    assert any("fewer parameters" in line or "more parameters" in line for line in said)


SCRIPT = """
import sys
from resharpen.experiments.running import training
training.SAVE_EVERY, training.CHUNK_SECONDS = 0.0, 0.0
if __name__ == "__main__":
    from resharpen import cli, commands
    import resharpen.commands.training
    commands.training.save_figures = commands.training.show_result = lambda *_: None
    cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_bits(tmp_path):
    """kill -9 in the middle of training, dropout on, from the command line."""
    spec = place(tmp_path, "dyck", steps=150)
    spec.write_text(spec.read_text().replace('["peri", "nets.py:LSTM", "my-gru", ', '["nets.py:LSTM", '))
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(out: str) -> subprocess.Popen[bytes]:
        words = ["run", str(spec), "--out", str(tmp_path / out), "--workers", "1"]
        return subprocess.Popen([sys.executable, str(tmp_path / "script.py"), *words], stdout=subprocess.DEVNULL)

    assert start("whole").wait(timeout=300) == 0
    for _ in range(3):
        process, saved = start("killed"), set()
        until = time.monotonic() + 120
        while process.poll() is None and len(saved) < 3 and time.monotonic() < until:
            for path in (tmp_path / "killed").rglob("state.safetensors"):
                saved |= {path.stat().st_mtime_ns} if path.exists() else set()
            time.sleep(0.01)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert start("killed").wait(timeout=300) == 0
    assert_same_results(Run(tmp_path / "whole"), Run(tmp_path / "killed"))


# ---- sizes -----------------------------------------------------------------------------------------------------------


def spec_of(directory: Path, text: str) -> Path:
    (directory / "nets.py").write_bytes(NETS.read_bytes())
    path = directory / "spec.toml"
    path.write_text(f"models = 1\nsteps = 1\n{text}")
    return path


def test_a_module_as_the_model_of_a_task(tmp_path):
    text = 'variants = ["none", "none+sgd"]\n[task]\nv = 5\ntrain_lengths = [2]\nmodel = '
    spec = rs.read_toml(spec_of(tmp_path, text + '"nets.py:LSTM"\n'))
    assert spec.settings[0].model.d == 12
    spec = rs.read_toml(spec_of(tmp_path, text + '{ kind = "nets.py:GRU", d = 7 }\n'))
    assert spec.settings[0].model.d == 7
    assert list(spec.variants) == ["none", "none+sgd"]


def test_on_the_command_line(capsys):
    main(["run", "fig1", "--scale", "smoke", "--variants", f"pre,{NETS}:LSTM", "--engine", "torch", "--dry-run"])
    assert "variants    pre (torch), LSTM (torch)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ('"nets.py:GRU"', r"the model 'GRU' needs d, as in model = { kind = ..., d = 32 } \(it takes: d\)"),
        ('{ kind = "nets.py:LSTM", heads = 2 }', r"unknown size .* 'heads': .*\(allowed: d, layers, vocabulary\)"),
        ('{ kind = "nets.py:LSTM", d = 2.5 }', "d .*= 2.5: must be a whole number"),
        ('"nets.py:BatchNorm"', r"the module 'BatchNorm' has batch norm \(bn\)"),
        ('"nets.py:Sets"', "the model 'Sets' reads items, but sct-v5 has tokens"),
    ],
)
@pytest.mark.parametrize("where", ["task", "variant"])
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, capsys, model, message, where):
    task = "v = 5\ntrain_lengths = [2]\n"
    text = {
        "task": f'variants = ["none"]\n[task]\n{task}model = {model}\n',
        "variant": f'variants = ["pre", "mine"]\n[variant.mine]\nmodel = {model}\n[task]\n{task}',
    }[where]
    said = refused(capsys, "run", str(spec_of(tmp_path, text)), "--out", str(tmp_path / "r"))
    assert re.search(message, said), said
    assert not (tmp_path / "r").exists()


def test_parts_that_a_module_has_no_use_for_are_refused(tmp_path):
    for part in ("peri", "ssmax", "rope", "layer"):
        with pytest.raises(rs.UserError, match=r"has no (placement|attention|positions|norm)"):
            rs.read_toml(
                spec_of(tmp_path, f'variants = ["pre", "nets.py:LSTM+{part}"]\n[task]\nv = 5\ntrain_lengths = [2]\n')
            )


DEEP = """
from dataclasses import dataclass
import resharpen as rs

@dataclass(frozen=True)
class Deep(rs.Transformer):
    pass
"""


def test_sizes_of_the_task_s_model_reach_own_models(tmp_path):
    """Modules and classes derived from ours alike; what a variant says itself counts more; the run keeps it."""
    (tmp_path / "deep.py").write_text(DEEP)
    text = """variants = ["peri", "deep.py:Deep+peri", "nets.py:Encoder", "wide"]
[variant.wide]
model = { kind = "nets.py:LSTM", d = 20 }
[task]
kind = "dyck"
k = 2
m = 3
sequences = 2
selection_sequences = 2
model = { d = 16, heads = 4 }
"""
    run = rs.run(rs.read_toml(spec_of(tmp_path, text)), tmp_path / "r", workers=1)
    for experiment in (rs.read_toml(tmp_path / "spec.toml"), rs.load(tmp_path / "r").experiment):
        models = {name: experiment.settings[0].model_of(variant) for name, variant in experiment.variants.items()}
        assert {name: model.d for name, model in models.items()} == {
            "peri": 16,
            "Deep+peri": 16,
            "Encoder": 16,
            "wide": 20,
        }
        assert models["Encoder"].heads == 4
    assert len(run.done()) == 4
    (tmp_path / "spec.toml").write_text(
        (tmp_path / "spec.toml").read_text().replace('"wide"]', '"wide", "nets.py:LSTM"]')
    )
    with pytest.raises(
        rs.UserError, match=r"'LSTM' does not accept heads, a size in \[task\] model \(it accepts: d, layers"
    ):
        rs.read_toml(tmp_path / "spec.toml")


def test_in_python_sizes_that_are_not_usual_reach_own_models():
    setting = rs.Setting(rs.Dyck(2, 3), 20, rs.Transformer(6, d=16))
    spec = rs.Experiment("x", (setting,), ["peri", f"{NETS}:LSTM"], models=1, steps=1)
    assert setting.model_of(spec.variants["LSTM"]).d == 16


def test_tasks_of_different_sizes_are_refused(tmp_path):
    tasks = "".join(f"[[task]]\nv = {v}\ntrain_lengths = [2]\nmodel = {{ d = {v} }}\n" for v in (5, 6))
    with pytest.raises(rs.UserError, match="variant 'LSTM': the tasks have different sizes d"):
        rs.read_toml(spec_of(tmp_path, f'variants = ["pre", "nets.py:LSTM"]\n{tasks}'))


def test_the_plan_says_what_every_parameter_is(tmp_path, capsys):
    (tmp_path / "bag.py").write_text(
        "from dataclasses import dataclass\nimport resharpen as rs\n\n"
        "@dataclass(frozen=True)\nclass Bag(rs.Model):\n    vocabulary: int\n\n"
        "    def parameters(self, parts):\n        v = self.vocabulary\n        return {\n"
        "            'E': rs.learned(v, 4, role='embedding', std=1.0),\n"
        "            'W': rs.learned(4, 4, uniform=0.5),\n"
        "            'b': rs.learned(4, start=0.0),\n            'U': rs.learned(4, v, role='output'),\n"
        "        }\n\n"
        "    def logits(self, theta, tokens, parts, hyper, record=None):\n"
        "        x = rs.embedding(theta['E'], tokens).cumsum(2)\n"
        "        x = rs.linear(x, theta['W']) + theta['b'][:, None, None]\n"
        "        return rs.linear(x, theta['U'])\n"
    )
    text = 'variants = ["pre", "nets.py:LSTM", "bag.py:Bag"]\n[task]\nv = 5\ntrain_lengths = [2]\n'
    main(["run", str(spec_of(tmp_path, text)), "--dry-run"])
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(re.fullmatch(r"parameters pre [\d,]+, LSTM [\d,]+, Bag\+none 60", line) for line in said)
    assert any(line.startswith("warning 'LSTM' has") for line in said)
    for line in (
        "embedding.weight 5 x 12 by the module no no",
        "lstm.weight_ih_l0 48 x 12 by the module yes yes",
        "out.weight 5 x 12 by the module yes no",
        "E 5 x 4 normal, std 1 no no",
        "W 4 x 4 uniform, at most 0.5 yes yes",
        "b 4 constant 0 no no",
        "U 4 x 5 normal, std 0.02 yes no",
    ):
        assert line in said, line
