"""Anything that maps tokens to logits, scored like the models of a run."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from runs import refused

import resharpen as rs
from resharpen.cli import main
from resharpen.errors import UserError

TASK = rs.Dyck(2, 3, sequences=20)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two tasks would be two runs: the minimal transformer on Set Complement, whose weights NumPy can use."""
    spec = rs.Experiment(
        name="small", settings=(rs.Setting(rs.SetComplement(12).with_options(sequences=50), 3),), variants=["pre"],
        models=3, steps=30, checkpoints=2, batch=16, seed=4,
    )  # fmt: skip
    return rs.run(spec, tmp_path_factory.mktemp("score") / "run", workers=1)


def minimal_in_numpy(model):
    """The definition of the minimal transformer with `pre` norms, in float64."""
    w = {name: x.astype(np.float64) for name, x in model.weights.items()}
    epsilon = model.hyperparameters["rms_epsilon"]

    def f(tokens):
        x = w["E"][tokens]
        h = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w["g_block_in"]
        q, k, v = h @ w["W_Q"], h @ w["W_K"], h @ w["W_V"]
        e = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        e = np.where(np.tril(np.ones(e.shape[-2:], bool)), e, -np.inf)
        a = np.exp(e - e.max(-1, keepdims=True))
        return (x + a / a.sum(-1, keepdims=True) @ v @ w["W_O"]) @ w["U"]

    return f


def test_a_stored_model_its_module_and_numpy_agree_with_the_run(run):
    model = rs.load_model(run, "sct-v12-s3/pre/1")
    stored = run.table("lengths").filter(model=model.id, weights="train", selection="best")
    task = run.experiment.settings[0].task
    for f in (model, model.module(), minimal_in_numpy(model)):
        found = rs.score(f, task, beside=run)
        both = found.table.join(stored, on=["metric", "length"], suffix="_stored")
        assert both.height == stored.height
        assert np.allclose(both["value"].fill_null(-1), both["value_stored"].fill_null(-1), atol=2e-5)
        assert (both["count"] == both["count_stored"]).all()
    ranks = dict(found.means().select("metric", "rank").iter_rows())
    scores = rs.scores(run, metric="kl").filter(weights="train").sort("score")["model"].to_list()
    assert ranks["kl"] == 1 + scores.index(model.id)
    assert found.table["models"].unique().to_list() == [3]


def p_star(tokens):
    return TASK.p_star(tokens)


def test_the_exact_distribution_is_perfect_and_a_guess_is_not():
    found = rs.score(p_star, TASK, probabilities=True)
    perfect = {"tvd": 0, "kl": 0, "illegal": 0, "error": 0, "exact": 1, "auc": 1, "closing": 1, "closing_distance": 1}
    for name, value in found.means().select("metric", "value").iter_rows():
        assert value == pytest.approx(perfect[name], abs=1e-9), name
    assert set(found.table["metric"]) == set(perfect)
    assert "sequences)" in str(found)
    guess = rs.score(lambda tokens: np.zeros((*tokens.shape, 6)), TASK)
    assert guess.read_as == "its output was interpreted as logits"
    values = guess.table.filter(metric="tvd")
    assert (values["value"] > values["trivial"]).all()
    assert (guess.table.filter(metric="auc")["value"] - 0.5).abs().max() < 1e-9


def test_torch_modules_and_outputs_with_logits():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Linear(6, 6)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, tokens):
            x = torch.nn.functional.one_hot(tokens, 6).float()
            return SimpleNamespace(logits=self.drop(self.table(x)))

    net = Net().train()
    found = rs.score(net, TASK)
    assert net.training  # as it was
    w, b = net.table.weight.detach().double().numpy(), net.table.bias.detach().double().numpy()
    same = rs.score(lambda tokens: np.eye(6)[tokens] @ w.T + b, TASK)
    assert np.allclose(*(x.table["value"].fill_null(-1) for x in (found, same)), atol=1e-5)


def test_standard_errors_are_those_of_other_report_sets():
    """As far apart as the values on other sets of sequences are. The function is confident after small first tokens."""
    task, errors, values = rs.SetComplement(12).with_options(sequences=60), [], []

    def f(tokens):
        return np.eye(12)[tokens] * 4.0 * (tokens[:, :1, None] < 4)

    for seed in range(60):
        table = rs.score(f, task, seed=seed).table.filter(metric="tvd", length=5)
        values.append(table["value"][0])
        errors.append(table["error"][0])
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.3)
    every = rs.score(
        lambda tokens: np.eye(5)[tokens], rs.SetComplement(5)
    )  # every state there is: nothing to err about
    assert every.table["error"].is_null().all()


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda t: np.zeros((*t.shape, 5)), r"f returns the shape \[\d+, \d+, 5\], not \[\d+, \d+, 6\]"),
        (lambda t: np.zeros((*t.shape, 6), int), "f returns int64: logits and probabilities must be floating-point"),
        (
            lambda t: np.where(t[..., None] == 0, np.nan, np.zeros((*t.shape, 6))),
            r"not finite after \d+ tokens of \[4, ",
        ),
        (lambda t: np.zeros((*t.shape, 6)) + t[:, ::-1, None], r"f is not causal: its output after 1 tokens of \[4\]"),
        (lambda t: np.random.default_rng().normal(size=(*t.shape, 6)), "f returns different outputs for the same"),
        (3, "score takes a function of tokens or a model, not int"),
    ],
)
def test_bad_functions_are_one_line(f, message):
    with pytest.raises(UserError, match=message):
        rs.score(f, TASK)


def test_probabilities_are_checked():
    with pytest.raises(UserError, match="f does not return probabilities: they are 0 to 0 and sum to 0 to 0"):
        rs.score(lambda t: np.zeros((*t.shape, 6)), TASK, probabilities=True)
    detected = rs.score(p_star, TASK)
    assert detected.read_as == "its output was interpreted as probabilities"
    assert detected.table.equals(rs.score(p_star, TASK, probabilities=True).table)
    with pytest.raises(UserError, match="score needs a task"):
        rs.score(p_star)
    with pytest.raises(UserError, match="max has inputs of items"):
        rs.score(p_star, rs.MaxRetrieval())


def test_metrics_of_ones_own():
    @rs.metric("likeliest token's probability", range=(0, 1))
    def sharpness(p, p_star):
        return p.amax(-1).masked_fill(p_star.amax(-1) < 0.9, float("nan"))

    found = rs.score(p_star, TASK, metrics=[sharpness]).table.filter(metric="sharpness")
    assert np.allclose(found["value"], 1)
    assert (found["count"] < rs.score(p_star, TASK).table.filter(metric="tvd")["count"]).all()


OWN = """
import numpy as np

def f(tokens):
    return np.zeros((*tokens.shape, 12))

class Net:
    pass
"""


def test_the_command(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    main(["score", "own.py:f", "--with", str(run.root), "--csv", "out.csv"])
    said = capsys.readouterr().out
    assert "f on Set Complement, v = 12 (its output was interpreted as logits)" in said
    assert "of 3 in small" in said
    table = pl.read_csv("out.csv")
    assert np.allclose(table.filter(metric="tvd")["value"], np.arange(1, 12) / 12)
    main(["score", "own.py:f", "--task", "set-complement,v=12,sequences=20"])
    assert "(TVD; 220 places)" in capsys.readouterr().out
    main(["score", f"{run.root}:sct-v12-s3/pre/0"])
    assert "sct-v12-s3/pre/0 on Set Complement" in capsys.readouterr().out
    assert "choose KIND" not in refused(capsys, "score", "own.py:f", "--task", "dyck,k=2,m=3")
    assert "'own.py:Net' is a class" in refused(capsys, "score", "own.py:Net", "--task", "dyck,k=2,m=3")
    assert "score needs a task" in refused(capsys, "score", "own.py:f")
    assert "has no models on dyck-k2-m3" in refused(
        capsys, "score", "own.py:f", "--task", "dyck,k=2,m=3", "--with", str(run.root)
    )
    assert "score takes FILE.py:NAME, or RUN:MODEL" in refused(capsys, "score", "nothing")


def test_sample_batch_is_public():
    inputs, targets, mask = rs.Dyck(2, 3).sample_batch(4)
    assert inputs.shape == targets.shape == mask.shape
    assert (inputs[:, 0] == 4).all()
    other = rs.Dyck(2, 3).sample_batch(4, seed=1)
    assert other.inputs.shape != inputs.shape or (other.inputs != inputs).any()
    with pytest.raises(ValueError, match="training length 12: for sct-v9"):
        rs.SetComplement(9).sample_batch(2, 12)


def test_help_does_not_wait_for_torch():
    code = "import sys; from resharpen.commands.scoring import Score; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
