"""Metrics that follow from p*: known values for the exact distribution, a uniform guess and a constant, against float64
NumPy and enumeration."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import resharpen as rs
from resharpen.errors import UserError
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import Variant
from resharpen.metrics import exact_by_length
from resharpen.models.transformer import Transformer
from resharpen.tasks import Counter, Dyck, Regular, SetComplement, Sort, Tomita
from resharpen.tasks.blocks import BLOCKS, by_length_without
from resharpen.tasks.dyck import opening_distance
from resharpen.tasks.metrics import FLOOR, METRICS, closing, wrong_set
from resharpen.tasks.regular import end_probability
from resharpen.tasks.task import defined_places
from resharpen.tasks.trivial import trivial_values


def logits_of(p):
    with np.errstate(divide="ignore"):
        return torch.tensor(np.log(p))[None]


def measured(task, validation, p_of):
    """All measures of a predictor given as a function of p* [P, V], one model."""
    truth = {name: torch.as_tensor(x) for name, x in task.examples(validation).truth.items()}
    logits = logits_of(p_of(truth["p_star"].numpy()))
    return {k: x.numpy() for k, x in {**task.score(logits, truth), **task.further_scores(logits, truth)}.items()}


def uniform(p_star):
    return np.full_like(p_star, 1 / p_star.shape[-1])


def by_numpy(p, p_star):
    """Every metric at a place by loops over tokens."""
    found = {name: np.full(len(p), np.nan) for name in ("tvd", "kl", "illegal", "error")}
    for i, (q, truth) in enumerate(zip(p, p_star, strict=True)):
        found["tvd"][i] = sum(abs(a - b) for a, b in zip(q, truth, strict=True)) / 2
        found["kl"][i] = sum(b * np.log(b / max(a, FLOOR)) for a, b in zip(q, truth, strict=True) if b > 0)
        found["illegal"][i] = sum(a for a, b in zip(q, truth, strict=True) if b == 0)
        if max(truth) == 1:
            found["error"][i] = float(list(q).index(max(q)) != list(truth).index(1))
    return found


@pytest.mark.parametrize("task", [SetComplement(5), Dyck(2, 3, sequences=3), Tomita(3, sequences=3)], ids=str)
def test_every_metric_against_numpy(task):
    validation = task.validation(0, "report")
    rng = np.random.default_rng(0)
    noise = rng.dirichlet(np.ones(task.vocabulary), len(validation.length_P))
    p_star = task.examples(validation).truth["p_star"]
    found, expected = measured(task, validation, lambda _: noise), by_numpy(noise, p_star)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name][0], values, atol=1e-12)
    defined = defined_places(task, validation, found)["error"]
    assert np.array_equal(defined, p_star.max(-1) == 1)


def test_known_values_on_set_complement():
    """At length i of v tokens a uniform guess is off by i/v, as illegal; its KL is log(v / (v - i)). The last length is
    determined, and a uniform guess names token 0, which is right where it is the absent one: 1 state of v in each."""
    v = 6
    task = SetComplement(v)
    validation = task.validation(0, "report")
    exact = task.by_length(measured(task, validation, lambda p: p), validation)
    guess = task.by_length(measured(task, validation, uniform), validation)
    i = np.arange(1, v)
    for name in ("tvd", "kl", "illegal"):
        assert np.allclose(exact[name][1], 0, atol=1e-12)
        assert (exact[name][0] == i).all()
    assert np.allclose(guess["tvd"][1][0], i / v)
    assert np.allclose(guess["illegal"][1][0], i / v)
    assert np.allclose(guess["kl"][1][0], np.log(v / (v - i)))
    for name, right, wrong in (("error", 0.0, 1 - 1 / v), ("exact", 1.0, 1 / v)):
        for found, value in ((exact, right), (guess, wrong)):
            lengths, values, count = found[name]
            assert (lengths == i).all()
            assert count.tolist() == [0] * (v - 2) + [v * (v - 1)]
            assert np.isnan(values[0, :-1]).all()
            assert values[0, -1] == pytest.approx(value)


def test_kl_is_floored_and_ties_take_the_first_token():
    p_star = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    wrong = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]], dtype=torch.float64)
    assert METRICS["kl"](wrong, p_star)[0, 0] == pytest.approx(30 * np.log(10))
    assert METRICS["error"](wrong, p_star)[0].tolist() == [1.0, 0.0]
    nan = torch.full((1, 2, 2), float("nan"))
    assert all(metric(nan, p_star).isnan().all() for metric in METRICS.values())


def test_exact_by_hand():
    """Three sequences with determined places x: right r, wrong w.   rx wx rx | rx . rx | . . ."""
    row = np.repeat([0, 1, 2], 3)
    length = np.tile([1, 2, 3], 3)
    defined = np.array([1, 1, 1, 1, 0, 1, 0, 0, 0], bool)
    error = np.where(defined, [0, 1, 0, 0, 0, 0, 0, 0, 0], np.nan)[None]
    lengths, values, count = exact_by_length(np.concatenate([error, error * np.nan]), row, length, defined)
    assert lengths.tolist() == [1, 2, 3]
    assert values[0].tolist() == [1.0, 0.5, 0.5]
    assert np.isnan(values[1]).all()
    assert count.tolist() == [2, 2, 2]
    answers = exact_by_length(error, row, np.full(9, 7), defined)  # one length per sequence: its last place counts
    assert (answers[0].tolist(), answers[1].tolist(), answers[2].tolist()) == ([7], [[0.5]], [2])


def test_next_symbol_sets_by_hand():
    """Two legal tokens of four, the threshold is 0.05: both above it, one below, an illegal one above; at the threshold
    a token counts as legal. Where all are legal none may be below."""
    metric = wrong_set(lambda: 0.1)
    p_star = torch.tensor([[0.9, 0.1, 0.0, 0.0]] * 4 + [[0.25] * 4], dtype=torch.float64)
    p = [[0.9, 0.06, 0.03, 0.01], [0.94, 0.04, 0.02, 0.0], [0.7, 0.2, 0.1, 0.0], [0.9, 0.05, 0.05, 0.0], [1, 0, 0, 0]]
    p = torch.tensor(p, dtype=torch.float64)
    assert metric(p[None], p_star)[0].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert metric(p_star[None], p_star)[0].tolist() == [0.0] * 5
    assert metric(p[None] * float("nan"), p_star).isnan().all()


def test_next_symbol_sets_tell_apart_what_ranks_equally():
    """In (abab)* the end is legal after every other b. A model that gives it the same probability after each of them
    ranks a, the end, and b correctly at both places, but does not know where the end is legal."""
    task = Regular("abab", sequences=4).with_options(metrics=["sets"])
    least = task.least_legal()
    assert least == pytest.approx(end_probability("abab"))
    validation = task.validation(0, "report")

    def forgets(p_star, end):
        after_b = p_star[:, :1] > 0.5
        return np.where(after_b, [1 - end, 0, 0, end], p_star)

    cases = [(lambda p: p, 1.0), (partial(forgets, end=0.4 * least), 0.0), (partial(forgets, end=0.6 * least), 0.0)]
    for p_of, value in cases:
        _, share, _ = task.by_length(measured(task, validation, p_of), validation)["sets"]
        assert (share == value).all()


@pytest.mark.parametrize("task", [Tomita(4), Counter(3), Dyck(2, 3), Sort(9, train_items=3)], ids=str)
def test_the_least_probability_of_a_legal_token(task):
    """That of the report set, which has other sequences, is the same."""
    p_star = task.examples(task.validation(0, "report")).truth["p_star"]
    assert task.least_legal() == pytest.approx(p_star[p_star > 0].min(), abs=1e-12)


def test_next_symbol_sets_are_measured_on_request():
    task = Tomita(4, sequences=5).with_options(metrics=["wrong_set"])
    assert set(task.metrics) - set(Tomita(4).metrics) == {"wrong_set", "sets"}
    validation = task.validation(0, "report")
    for p_of, value in ((lambda p: p, 1.0), (uniform, 0.0)):  # BOS is never legal, but uniformly likely
        reduced = task.by_length(measured(task, validation, p_of), validation)
        assert (reduced["sets"][1] == value).all()
        assert (reduced["sets"][2] == 5).all()
    wrong = np.zeros(validation.inputs_NxL.shape)
    wrong[0, 30:] = 1  # the first sequence is right up to 30 tokens
    lengths, share, _ = task.by_length({"wrong_set": wrong.reshape(1, -1)}, validation)["sets"]
    first_L = validation.weight_NxL[0] / validation.weight_NxL.sum(0)
    assert share[0] == pytest.approx([1 - first_L[end - 1] * (end > 30) for end in lengths])


@pytest.mark.parametrize("task", [Tomita(4, sequences=20), Counter(2)], ids=str)
def test_next_symbol_sets_without_each_block(task):
    task = task.with_options(metrics=["sets"])
    validation = task.validation(0, "report").take(slice(20))
    rng = np.random.default_rng(0)
    found = {"wrong_set": (rng.random((2, len(validation.length_P))) < 0.01).astype(np.float32)}
    without = by_length_without(task, found, validation)["sets"]
    block_P = validation.blocks_P(BLOCKS)
    lengths = task.by_length(found, validation)["sets"][0]
    for block in (0, 7):
        rest = {"wrong_set": found["wrong_set"][:, block_P != block]}
        there, expected, _ = task.by_length(rest, validation.without(block, BLOCKS))["sets"]
        assert without[:, np.searchsorted(lengths, there), block] == pytest.approx(expected, nan_ok=True)


def test_names_of_metrics_on_request():
    """A metric of sequences asks for that of places; a user's metric cannot take such a name."""
    asked = [Tomita(4).with_options(metrics=given) for given in (["sets"], ["wrong_set"], ["sets", "wrong_set"])]
    assert {task.own_metrics for task in asked} == {("wrong_set",)}
    assert Tomita(4).with_options(metrics=["exact", "kl"]).own_metrics == ()
    for name in ("sets", "wrong_set", "exact"):
        mine = replace(wrong_set(lambda: 0.1), name=name)
        with pytest.raises(UserError, match=f"metric '{name}' already exists"):
            Tomita(4).with_options(metrics=[mine])
    with pytest.raises(UserError, match="metrics"):
        Tomita(4).with_options(metrics=[["sets"]])
    before = trivial_values(Tomita(4, sequences=4), 0)
    assert {*trivial_values(Tomita(4, sequences=4).with_options(metrics=["sets"]), 0)} == {*before, "wrong_set", "sets"}


def test_both_engines_measure_next_symbol_sets(tmp_path):
    task = Tomita(4, sequences=4, selection_sequences=2).with_options(metrics=["sets"])
    model = Transformer(task.vocabulary, layers=1, d=16, heads=1, d_mlp=16)
    spec = Experiment(
        name="sets",
        settings=(Setting(task, 20, model),),
        variants={"pre": Variant("pre")},
        models=2,
        steps=30,
        batch=8,
        checkpoints=1,
    )
    tables = [
        rs.run(spec.with_changes(engine=e), tmp_path / e, workers=1).table("lengths") for e in ("native", "torch")
    ]
    shares = [
        table.filter(metric="wrong_set", weights="train", selection="last").sort("model", "length") for table in tables
    ]
    assert shares[0].height == 2 * 25
    np.testing.assert_allclose(*(x["value"].to_numpy() for x in shares), atol=0.02)
    assert {"sets", "wrong_set"} < set(tables[0]["metric"])


def test_languages_weigh_prefixes_as_they_occur():
    """Against sums over every prefix of a bin, written out."""
    task = Dyck(2, 3, sequences=7)
    validation = task.validation(0, "report")
    found = measured(task, validation, uniform)
    reduced = task.by_length(found, validation)
    n, length = validation.inputs_NxL.shape
    weight = validation.weight_NxL * validation.alive_L
    error = found["error"][0].reshape(n, length)
    for b, end in enumerate(task.reported_lengths):
        here = [(i, j) for i in range(n) for j in range(end - task.bin_width, end) if not np.isnan(error[i, j])]
        expected = sum(weight[x] * error[x] for x in here) / sum(weight[x] for x in here)
        assert reduced["error"][1][0, b] == pytest.approx(expected)
        assert reduced["error"][2][b] == len(here)
        right = [np.nansum(error[i, :end]) == 0 for i in range(n)]
        seen = [not np.isnan(error[i, :end]).all() for i in range(n)]
        share = sum(weight[i, end - 1] * right[i] for i in range(n) if seen[i])
        assert reduced["exact"][1][0, b] == pytest.approx(share / sum(weight[i, end - 1] for i in range(n) if seen[i]))
        assert reduced["exact"][2][b] == sum(seen)
    perfect = task.by_length(measured(task, validation, lambda p: p), validation)
    for name, value in {"tvd": 0, "kl": 0, "illegal": 0, "error": 0, "exact": 1, "closing": 1}.items():
        assert np.allclose(perfect[name][1], value, atol=1e-12), name


def test_closing_brackets():
    """( [ ) ] BOS EOS: at depth 2 after `( [` the square bracket may close; more than 0.8 of both is confident."""
    task = Dyck(2, 3)
    p_star = torch.tensor(task.p_star(np.array([[4, 0, 1]]))[0])
    p = torch.zeros(1, 3, 6, dtype=torch.float64)
    p[0, 1, 2], p[0, 1, 3] = 0.4, 0.2
    p[0, 2, 2], p[0, 2, 3] = 0.01, 0.05
    found = closing(2, 4)(p, p_star)[0]
    assert found[0].isnan()  # nothing is open after BOS
    assert found[1:].tolist() == [0.0, 1.0]
    assert closing(2, 4)(p / 0.06 * 0.05, p_star)[0, 2] == 1  # a share, whatever the rest has


def test_distance_to_the_opening_bracket_by_a_stack():
    task = Dyck(3, 4, sequences=5)
    inputs = task.validation(0, "report").inputs_NxL.astype(np.int64)[:, :60]
    for sequence, found in zip(inputs, opening_distance(inputs, 3), strict=True):
        stack = []
        for i, token in enumerate(sequence):
            if token < 3:
                stack.append(i)
            elif token < 6:
                stack.pop()
            assert found[i] == (i + 1 - stack[-1] if stack else 0)


def test_closing_by_distance_adds_up():
    task = Dyck(2, 3, sequences=5)
    validation = task.validation(0, "report")
    found = task.by_length(measured(task, validation, uniform), validation)
    assert found["closing_distance"][2].sum() == found["closing"][2].sum()
    assert set(task.metrics) >= {"tvd", "auc", "kl", "illegal", "error", "exact", "closing", "closing_distance"}


OWN = """
import resharpen as rs

@rs.metric("likeliest token's probability", range=(0, 1))
def sharpness(p, p_star):
    return p.amax(-1)

@rs.metric("TVD", range=(0, 1), lower_is_better=True)
def tvd(p, p_star):
    return p.amax(-1)

@rs.metric("shape", range=(0, 1))
def shape(p, p_star):
    return p
"""
SPEC = """
models = 3
steps = 4
checkpoints = 2
batch = 8
variants = ["pre", "peri"]
[task]
v = 7
train_lengths = [2]
metrics = ["own.py:sharpness"]
"""


def test_a_metric_of_ones_own_is_reported_like_tvd(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "spec.toml").write_text(SPEC)
    spec = rs.read_toml(tmp_path / "spec.toml")
    run = rs.run(spec, tmp_path / "run", workers=1)
    lengths = rs.load(tmp_path / "run").table("lengths")
    assert set(lengths["metric"]) == {"tvd", "kl", "illegal", "error", "exact", "sharpness"}
    model = rs.load_model(run, "sct-v7-s2/peri/1")
    every = [model([[first, last]]).max() for first in range(7) for last in range(7) if last != first]
    row = lengths.filter(model="sct-v7-s2/peri/1", weights="train", selection="best", metric="sharpness", length=2)
    assert row["count"].to_list() == [len(every)]
    assert row["value"][0] == pytest.approx(np.mean(every), abs=1e-6)
    plain = rs.read_toml(tmp_path / "spec.toml").settings[0].task
    assert plain == SetComplement(7)  # it is no field: streams and columns are the same
    assert plain.own_metrics
    assert rs.scores(run, metric="sharpness")["score"].is_between(1 / 7, 1).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own.py:tvd", "metric 'tvd' already exists in sct-v7"),
        ("own.py:sharp", "does not define 'sharp'"),
        ("sharpness", "unknown metric 'sharpness'"),
    ],
)
def test_a_metric_that_cannot_be_is_one_line(tmp_path, name, message):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "spec.toml").write_text(SPEC.replace("own.py:sharpness", name))
    with pytest.raises(UserError, match=message):
        rs.read_toml(tmp_path / "spec.toml")


def test_declaring_a_metric():
    with pytest.raises(UserError, match="metric 'nothing' needs range="):
        rs.metric("x")(nothing)
    with pytest.raises(UserError, match=r"metric 'nothing' returns NoneType, not \[1, 2\]"):
        rs.metric("x", range=(0, 1))(nothing)(torch.zeros(1, 2, 3), torch.zeros(2, 3))


def nothing(p, p_star):
    return None


def test_the_report_set_can_be_larger_and_the_selection_set_stays(tmp_path):
    small, large = SetComplement(12), SetComplement(12).with_options(sequences=1500)
    a, b = (task.validation(0, "report").inputs_NxL for task in (small, large))
    assert (len(a), len(b)) == (1024, 1500)
    assert np.array_equal(a, b[:1024])
    assert np.array_equal(*(task.validation(0, "selection").inputs_NxL for task in (small, large)))
    with pytest.raises(UserError, match="the report set of sct-v5 is every state"):
        SetComplement(5).with_options(sequences=10)
