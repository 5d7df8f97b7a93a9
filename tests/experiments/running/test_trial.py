"""User code is tried before it is believed: what each check refuses, and that what is built in passes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runs import refused

from resharpen import own
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.running import trial
from resharpen.experiments.running.support import usual_settings
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import CATALOGS, Variant, parse_sum
from resharpen.models import Transformer
from resharpen.parts import PLACEMENTS
from resharpen.tasks import SetComplement, find_task

HEAD = """
from dataclasses import dataclass
import numpy as np
import torch
import torch.nn.functional as F
import resharpen as rs
"""
MODEL = """
@dataclass(frozen=True)
class Mine(rs.Model):
    vocabulary: int
    d: int = 8
    def parameters(self, parts):
        return {"E": rs.learned(self.vocabulary, self.d), "W": rs.learned(3 * self.d, self.vocabulary)}
    def logits(self, theta, tokens_NxL, parts, hyper, record=None):
        x = rs.embedding(theta["E"], tokens_NxL)
        LINE
        return rs.linear(x, theta["W"])
"""
PAST = "x = torch.cat([F.pad(x, (0, 0, i, 0))[:, :, : x.shape[2]] for i in range(3)], -1)"
MODELS = {
    "next token": (
        "x = F.pad(x, (0, 0, 1, 1)); x = torch.cat([x[:, :, i : i + tokens_NxL.shape[1]] for i in range(3)], -1)",
        r"the logits after 1 tokens depend on later tokens: they change by .* of the largest logit",
    ),
    "length": (PAST + "; x = x / x.shape[2]", "depend on the amount of padding"),
    "sequences": (PAST + "; x = x - x.mean(1, keepdim=True)", "depend on the other sequences of a minibatch"),
    "models": (PAST + "; x = x - x.mean(0, keepdim=True)", "depend on the other models of an ensemble"),
    "dropout": (PAST + "; x = F.dropout(x, 0.5, training=True)", "differ between two calls with the same sequences"),
    "not finite": (PAST + "; x = x / 0", "not finite at the initial weights"),
    "grad mode": (
        PAST + "; torch.set_grad_enabled(False)",
        "your code calls torch.set_grad_enabled and does not restore it",
    ),
    "dtype": (PAST + "; torch.set_default_dtype(torch.float64)", "your code calls torch.set_default_dtype"),
    "threads": (PAST + "; torch.set_num_threads(2)", "your code calls torch.set_num_threads"),
}
PARTS = {
    "ignores mask": (
        "@rs.attention()\ndef f(e, mask, p):\n    return e.softmax(-1)",
        "after 1 tokens depend on later tokens",
    ),
    "not softmax": (
        "@rs.attention(softmax=True)\ndef f(e, mask, p):\n    return rs.masked_softmax(2 * e, mask)",
        r"'f' is declared with softmax=True and is not rs\.masked_softmax\(e, mask\)",
    ),
    "mixes models": ("@rs.norm()\ndef f(x, p):\n    return x - x.mean()", "depend on"),
    "remembers": (
        "seen = []\n@rs.norm()\ndef f(x, p):\n    seen.append(1)\n    return x / len(seen)",
        "differ between two calls with the same sequences",
    ),
    "starts at zero": (  # what leaks is multiplied by a parameter that starts at 0
        "@rs.attention(a=rs.learned('heads', start=0.0))\ndef f(e, mask, p):\n"
        "    return rs.masked_softmax(e, mask) + p.a * e.softmax(-1)",
        "depend on later tokens",
    ),
}


def spec(tmp_path: Path, code: str, variant: str, task: str = "v = 4, train_lengths = [2]") -> list[str]:
    """A command that would train with a file."""
    (tmp_path / "own.py").write_text(f"{HEAD}\n{code}\n# {tmp_path}\n")
    text = f'models = 2\nsteps = 3\nbatch = 4\nvariants = ["{variant}"]\nengine = "torch"\ntask = {{ {task} }}\n'
    (tmp_path / "spec.toml").write_text(text)
    return ["run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "r"), "--workers", "1"]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_reads_what_it_must_not_is_refused(tmp_path, capsys, name):
    line, message = MODELS[name]
    said = refused(capsys, *spec(tmp_path, MODEL.replace("LINE", line), "own.py:Mine"))
    assert re.search(message, said), said
    assert "variant 'Mine+none': " in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_breaks_a_rule_is_refused(tmp_path, capsys, name):
    code, message = PARTS[name]
    said = refused(capsys, *spec(tmp_path, code, "pre+own.py:f"))
    assert re.search(message, said), said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("Random", "differ between two calls with the same sequences"), ("Mixes", "depend on the other sequences")],
)
def test_a_module_is_tried_like_other_models(name, message):
    variants = {name: Variant(model=f"{Path(__file__).parents[2] / 'nets.py'}:{name}")}
    experiment = Experiment("x", (Setting(SetComplement(5), 3),), variants, models=2, steps=2)
    with pytest.raises(UserError, match=f"variant '{name}': the logits.* {message}"):
        trial.try_own_code(experiment)


def test_a_part_that_is_never_called_is_refused(tmp_path, capsys):
    """A model that says it takes norms and has none: the user's norm, and one that is built in."""
    takes = MODEL.replace("d: int = 8", 'd: int = 8\n    takes = ("norm",)').replace("LINE", PAST)
    norm = "@rs.norm()\ndef f(x, p):\n    return x"
    said = refused(capsys, *spec(tmp_path, f"{takes}\n{norm}", "own.py:Mine+own.py:f"))
    assert "the function of 'f' is never called: it would have no effect on this variant" in said
    said = refused(capsys, *spec(tmp_path, takes, "own.py:Mine+layer"))
    assert "the function of 'layer' is never called" in said


def test_dropout_that_is_the_user_s_is_called_in_training(tmp_path):
    code = "@rs.dropout()\ndef f(x, p):\n    return x * (p.uniform(*x.shape[2:]) > 0.1)"
    main(spec(tmp_path, code, "pre+own.py:f"))
    assert (tmp_path / "r" / "run.json").exists()


TASK = """
@dataclass(frozen=True)
class Mine(rs.TokenTask):
    v: int
    longest = 8
    vocabulary = property(lambda self: self.v)
    def sample(self, words_NxT):
        tokens = rs.below(words_NxT, self.v)
        SAMPLE
        return tokens
    def p_star(self, inputs_NxL):
        p = np.full((*inputs_NxL.shape, self.v), 1 / self.v)
        P_STAR
        return p
"""
TASKS = {
    "never": (
        "pass",
        "p[..., 0] = 0; p /= p.sum(-1, keepdims=True)",
        r"returns token 0 after \[.*\], which has p_star = 0",
    ),
    "off by a twentieth": (
        "pass",
        "p[..., 0] *= 1.2; p /= p.sum(-1, keepdims=True)",
        r"sample does not follow p_star: after \d tokens token 0 occurred \d+ times, expected from p_star",
    ),
    "last token": (  # right on average, wrong after each token
        "tokens[:, 1:] = np.where(words_NxT[:, 1:] % 7 == 0, tokens[:, :-1], tokens[:, 1:])",
        "pass",
        r"sample does not follow p_star: where the last token is \d token \d occurred",
    ),
    "later": (
        "pass",
        "p = np.eye(self.v)[np.roll(inputs_NxL, -1, 1)] * 0.4 + 0.6 * p",
        "p_star depends on later tokens",
    ),
    "random": (
        "tokens = (tokens + np.random.randint(2)) % self.v",
        "pass",
        "different tokens for the same random words",
    ),
    "sum": ("pass", "p *= 1.1", "p_star sums to 1.1"),
    "not a number": ("pass", "p[:, 3] = np.nan", "not probabilities"),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_that_does_not_sample_from_p_star_is_refused(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr(np.random, "randint", lambda n, seen=[]: seen.append(1) or len(seen) % n)
    sample, p_star, message = TASKS[name]
    code = TASK.replace("SAMPLE", sample).replace("P_STAR", p_star)
    said = refused(capsys, *spec(tmp_path, code, "pre", 'kind = "own.py:Mine", v = 4, train_lengths = [2]'))
    assert re.search(message, said), said
    assert not (tmp_path / "r").exists()


def test_a_task_that_says_sets_and_repeats_tokens_is_refused(tmp_path, capsys):
    code = (
        TASK.replace("SAMPLE", "pass").replace("P_STAR", "pass").replace("longest = 8", "longest = 4\n    sets = True")
    )
    said = refused(capsys, *spec(tmp_path, code, "pre", 'kind = "own.py:Mine", v = 4, train_lengths = [2]'))
    assert "it declares sets = True, but sample returns a token twice" in said


# ---- what is built in passes, with the same functions ----------------------------------------------------------------

EVERY = [
    *[(kind, name) for kind, catalog in CATALOGS.items() if kind not in ("model", "placement") for name in catalog],
    *[("placement", name) for name in PLACEMENTS],
]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_parts_that_are_built_in_pass(kind, name):
    setting = Setting(SetComplement(20), 3, Transformer(20, layers=2, d=8, heads=2, d_mlp=8))  # longer than a window
    experiment = Experiment(
        "x", (setting,), {"x": parse_sum(f"peri+{name}" if kind == "norm" else name)}, 2, 2, engine="torch"
    )
    trial.try_variant(experiment, experiment.cells()[0], experiment.variants["x"])


@pytest.mark.parametrize("setting", usual_settings(), ids=lambda setting: setting.model.kind)
def test_models_that_are_built_in_pass(setting):
    experiment = Experiment("x", (replace(setting, train_length=8),), {"x": Variant()}, 2, 2, engine="torch")
    trial.try_variant(experiment, experiment.cells()[0], experiment.variants["x"])


@pytest.mark.parametrize("seed", range(10))
def test_the_task_of_the_examples_passes(seed):
    urn = find_task(own.refer("my_task.py:Urn", Path(__file__).parents[3] / "examples"))
    trial.check_samples(urn(v=5), seed)  # pyright: ignore
