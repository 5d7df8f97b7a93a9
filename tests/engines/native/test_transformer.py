"""The native engine of the transformer, beyond what every engine promises."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from helpers import BENIGN, TINY_TRANSFORMER, assert_same, branching, make_ensemble, rows_of, transformer_problem
from parity import assert_close, assert_parity

from resharpen import streams
from resharpen.engines.base import weights_of
from resharpen.engines.native.transformer import NativeTransformer, Sampler, kernel, ragged
from resharpen.engines.torch.definition import Definition
from resharpen.engines.torch.fast import TorchEngine
from resharpen.errors import UserError
from resharpen.models import Transformer
from resharpen.state import arrays_of
from resharpen.tasks import (
    Batch,
    Dyck,
    Examples,
    FlipFlop,
    Group,
    MaxRetrieval,
    OwnLanguage,
    Task,
    Tomita,
    ValidationSet,
)

ODD = Transformer(6, layers=1, d=36, heads=1, d_mlp=50)
"""Widths above a vector, and not whole ones; a head of more than one vector."""
PAPER = Transformer(6)


def check_parity(problem, models=2, **options):
    validation = problem.task.validation(0, "report", 2)
    ensemble = make_ensemble(problem, models, **BENIGN)
    assert_parity(NativeTransformer, problem, ensemble, validation=validation, **options)


BATCHES = {
    "length-1": [rows_of(1)],
    "length-1-often": [rows_of(*[1] * 5)],
    "one-sequence": [rows_of(7)],
    "around-the-vector": [rows_of(15, 16, 17), rows_of(1, 33, 31, 32)],
    "around-a-block": [rows_of(23, 24, 25), rows_of(47, 49, 48)],
    "around-a-chunk": [rows_of(127), rows_of(128, 2), rows_of(129, 3), rows_of(150, 64, 65)],
    "equal": [branching((5, 0), (5, 5), (5, 5)), branching((70, 0), (70, 70), (1, 0), (1, 1))],
    "equal-prefixes": [
        branching((40, 0), (21, 21), (33, 16), (33, 17), (60, 32), (61, 60), (9, 1)),
        branching((3, 0), (5, 2), (7, 4), (3, 3), (4, 2)),
    ],
    "a-family-too-large": [branching((100, 0), *[(100, 50)] * 12), branching(*[(170, 0), (170, 100)] * 5)],
}


@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("model", [TINY_TRANSFORMER, ODD], ids=["small", "odd"])
def test_parity_of_odd_lengths(model, lengths):
    # more models, because of a few tokens and small gains rounding errors are few, and their mean a matter of luck
    check_parity(transformer_problem("all", model), models=4, batches=BATCHES[lengths], steps=(1, 10))


OF_PARTS = {
    "alibi": {"positions": "alibi"},
    "t5": {"positions": "t5"},
    "kerple": {"positions": "kerple", "attention": "ssmax"},
    "window": {"attention": "window"},
    "window+t5": {"attention": "window", "positions": "t5"},
    "sink": {"attention": "sink"},
    "sink+kerple": {"attention": "sink", "positions": "kerple"},
    "entmax": {"attention": "entmax"},
    "entmax+kerple": {"attention": "entmax", "positions": "kerple"},
    "asentmax": {"attention": "asentmax", "positions": "nope"},
    "asentmax+learned": {"attention": "asentmax", "positions": "learned"},
    "asentmax+learned-offset": {"attention": "asentmax", "positions": "learned-offset"},
    "rope-half": {"positions": "rope-half"},
    "rope-500k": {"positions": "rope-500k"},
    "sinusoidal": {"positions": "sinusoidal"},
    "learned": {"positions": "learned"},
    "learned-offset": {"positions": "learned-offset"},
    "dropout": {"dropout": "dropout"},
    "dropout+sink+learned-offset": {"dropout": "dropout", "attention": "sink", "positions": "learned-offset"},
    "dropout+window+t5": {"dropout": "dropout", "attention": "window", "positions": "t5"},
    "dropout+ssmax": {"dropout": "dropout", "attention": "ssmax"},
    "dropout+entmax": {"dropout": "dropout", "attention": "entmax"},
    "dropout+asentmax": {"dropout": "dropout", "attention": "asentmax"},
}
"""Of each attention, position encoding and dropout a variant, in which it stands beside another part."""
FAR = branching((150, 0), (140, 20), (16, 3), (1, 1))
"""Distances beyond the last bucket of T5."""


@pytest.mark.parametrize(
    "parts",
    [
        *("kerple", "window+t5", "sink", "entmax", "asentmax", "asentmax+learned-offset"),
        *("learned", "learned-offset", "dropout"),
    ],
)
def test_parity_of_parts(parts):
    check_parity(transformer_problem("peri", **OF_PARTS[parts]), models=3)


@pytest.mark.parametrize("parts", OF_PARTS.values(), ids=OF_PARTS)
@pytest.mark.parametrize("model", [TINY_TRANSFORMER, ODD], ids=["small", "odd"])
def test_parity_of_parts_on_shared_prefixes_and_long_sequences(model, parts):
    # of tensors with one number per head the mean over few models would be a matter of luck
    given = [BATCHES["equal-prefixes"][0], FAR]
    check_parity(transformer_problem("pre", model, **parts), models=8, batches=given, steps=(1, 4))


def masked(batch, *rows):
    """The same minibatch, of which only the given places are trained, a list per sequence."""
    mask = np.zeros_like(batch.mask)
    for i, places in enumerate(rows):
        mask[i, places] = True
    return batch._replace(mask=mask & batch.mask)


def answers(lengths, shared, seed=0):
    """Sequences with an answer of a few places at the end of a question; neighbors share so many tokens."""
    batch = branching(*((length, min(shared, length)) for length in lengths), seed=seed)
    length_N = batch.mask.sum(1)
    return batch._replace(mask=batch.mask & (np.arange(batch.mask.shape[1]) >= length_N[:, None] - 3))


EQUAL = Batch(*(np.repeat(x[:1], 4, axis=0) for x in rows_of(12)))
MASKED = {
    "one-place": [masked(rows_of(20), [7])],
    "first-place": [masked(rows_of(20, 9), [0], [0, 8])],
    "untrained-sequences": [masked(rows_of(5, 30, 17, 8), [], [3, 4, 29], [], [2])],
    "answers": [answers([25, 13, 18, 40, 9], 0), answers([3, 150, 4], 0)],
    "answers-after-equal-questions": [answers([40, 40, 44, 47, 60], 36), answers([30, 30, 30], 30)],
    "equal-trained-at-other-places": [masked(EQUAL, [3], [3, 11], [5, 6], [])],
    "all-but-some": [Batch(*rows_of(33, 20)[:2], rows_of(33, 20).mask & (np.arange(33) % 3 > 0))],
}


@pytest.mark.parametrize("batches", MASKED)
@pytest.mark.parametrize("model", [TINY_TRANSFORMER, ODD], ids=["small", "odd"])
def test_parity_where_the_loss_counts_at_some_places(model, batches):
    check_parity(transformer_problem("all", model), models=4, batches=MASKED[batches], steps=(1, 10))


@pytest.mark.parametrize("batches", ["answers-after-equal-questions", "equal-trained-at-other-places"])
@pytest.mark.parametrize("parts", [("seven", "rms", "ssmax", "alibi"), ("all", "layer", "log-n", "rope")], ids="+".join)
def test_parity_of_masks_with_further_parts(batches, parts):
    problem = transformer_problem(parts[0], norm=parts[1], attention=parts[2], positions=parts[3])
    check_parity(problem, models=4, batches=MASKED[batches], steps=(1, 10))


def test_targets_of_places_without_loss_are_not_read():
    problem = transformer_problem()
    batch = MASKED["answers"][0]
    other = batch._replace(targets=np.where(batch.mask, batch.targets, -7))
    engines = [NativeTransformer(problem, make_ensemble(problem)) for _ in range(2)]
    for engine, given in zip(engines, (batch, other), strict=True):
        engine.advance(2, [given] * 2)
    assert_same(*(engine.dump() for engine in engines))


@pytest.mark.parametrize("placement", ["none", "peri-init"])
def test_parity_of_odd_sizes(placement):
    check_parity(transformer_problem(placement, ODD, cap=24, batch=4))


@pytest.mark.parametrize(
    ("placement", "parts"),
    [("pre", {}), ("post", {}), ("peri", {}), ("peri", {"positions": "nape"}), ("pre", {"attention": "asentmax"})],
    ids=str,
)
def test_parity_at_the_size_of_the_paper(placement, parts):
    check_parity(transformer_problem(placement, PAPER, batch=16, **parts), steps=(1, 10))


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("parts", [{}, {"dropout": "dropout"}, {"attention": "asentmax"}], ids=str)
def test_parity_on_older_processors(march, parts):
    check_parity(replace(transformer_problem("all", **parts), march=march), steps=(1, 10))


@pytest.mark.parametrize(
    ("placement", "parts"),
    [
        ("all", {}),
        ("seven", {"norm": "layer", "attention": "ssmax"}),
        ("gemma3", {"attention": "ssmax", "positions": "alibi"}),
        ("peri", {"attention": "ssmax", "positions": "t5"}),
        ("peri", {"positions": "kerple"}),
        ("peri", {"attention": "window"}),
        ("peri", {"attention": "sink", "positions": "t5"}),
        ("seven", {"norm": "layer", "positions": "sinusoidal"}),
        ("all", {"positions": "learned"}),
        ("all", {"positions": "learned-offset"}),
        ("all", {"dropout": "dropout"}),
        ("peri", {"dropout": "dropout", "attention": "sink"}),
        ("peri", {"attention": "entmax"}),
        ("seven", {"norm": "layer", "attention": "asentmax", "positions": "nape"}),
        ("pre", {"attention": "asentmax", "dropout": "dropout"}),
    ],
    ids=lambda x: x if isinstance(x, str) else "+".join(x.values()),
)
@pytest.mark.parametrize("given", [None, BATCHES["equal-prefixes"][0]], ids=["own", "equal-prefixes"])
def test_gradient_far_from_the_start(placement, parts, given):
    """Large weights, so that attention is sharp and the MLP is far into its bends; the s of ssmax are negative too, so
    that what had the highest logit has the least weight. m after a step is the gradient."""
    problem = transformer_problem(placement, PAPER, batch=12, **parts)
    ensemble = make_ensemble(problem, **BENIGN, one_minus_beta1=1.0, max_gradient_norm=100.0)
    engines = (
        Definition(problem, ensemble, "float64"),
        Definition(problem, ensemble),
        NativeTransformer(problem, ensemble),
    )
    rng = np.random.default_rng(0)
    start = engines[0].dump()
    for name in arrays_of(start, "theta"):
        start[f"theta.{name}"] = rng.standard_normal(start[f"theta.{name}"].shape).astype(np.float32) * np.float32(0.4)
    states = []
    for engine in engines:
        engine.load(start)
        engine.advance(1, given and [given])
        states.append(engine.dump())
    assert_close(states, ["loss", *(name for name in start if name.startswith("m."))])


# ---- sampling --------------------------------------------------------------------------------------------------------

COIN = OwnLanguage.from_data(
    {
        "states": {
            "even": {"t": [0.2, "even"], "h": [0.5, "odd"], "end": 0.3},
            "odd": {"t": [0.9, "odd"], "h": [0.1, "even"]},
        }
    }
)


@pytest.mark.parametrize(
    "task", [Dyck(2, 3), Dyck(8, 10), Tomita(3), Tomita(7), COIN, FlipFlop(), Group("S5")], ids=lambda t: t.name
)
@pytest.mark.parametrize("cap", [1, 3, 50, 129])
def test_minibatches_are_those_of_numpy(task, cap):
    problem = transformer_problem(task=task, cap=cap, batch=9)
    inputs, targets, lengths = Sampler(kernel(TINY_TRANSFORMER), task.automaton)(problem, group=5, first=11, n=3)
    for step, length_N in enumerate(lengths):
        expected = ragged(problem.minibatch(5, 11 + step))
        n = int(length_N.sum())
        assert (length_N == expected[2]).all()
        assert (inputs[:n] == expected[0]).all()
        assert (targets[:n] == expected[1]).all()
        inputs, targets = inputs[n:], targets[n:]
    assert len(inputs) == 0


@dataclass(frozen=True)
class Repeat(Task):
    """A task without an automaton: a token, again and again."""

    vocabulary: int = 6

    def batch(self, key, group, step, n, train_length):
        words = streams.words(key, n, group, step)
        tokens = np.repeat(streams.below(words, self.vocabulary)[:, None], train_length, axis=1)
        return Batch(tokens, tokens, np.ones(tokens.shape, bool))


def test_a_python_task_trains_on_both_engines():
    problem = transformer_problem(task=Repeat(), cap=5)
    ensemble = make_ensemble(problem, **BENIGN)
    native, torch = NativeTransformer(problem, ensemble), TorchEngine(problem, ensemble)
    for engine in (native, torch):
        engine.advance(20)
    a, b = native.dump(), torch.dump()
    assert all(np.allclose(a[name], b[name], rtol=1e-3, atol=1e-5) for name in b)


def test_the_kernel_never_reads_past_the_truth():
    problem = transformer_problem(cap=5)
    engine = NativeTransformer(problem, make_ensemble(problem))
    validation = problem.task.validation(0, "selection", 2)
    inputs, scored, truth = problem.task.examples(validation)
    short = Examples(inputs, scored, {**truth, "p_star": truth["p_star"][:, :-1]})
    theta_MxX = engine._packed(weights_of(engine.dump(), engine.ensemble, "train"))
    with pytest.raises(UserError, match=r"p_star of the scored places has the shape \[\d+, 5\], not \[\d+, 6\]"):
        engine._scores(theta_MxX, short, False)


# ---- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["softmax", "ssmax", "asentmax"])
def test_padding_stays_zero(attention):
    problem = transformer_problem("all", ODD, attention=attention)
    engine = NativeTransformer(problem, make_ensemble(problem))
    engine.advance(30)
    used = np.concatenate([where.ravel() for where in engine._offsets.values()])
    assert len(np.unique(used)) == len(used)
    padding = np.delete(engine._state_RxSxX, used, axis=2)
    assert padding.shape[2] > 0
    assert (padding == 0).all()


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["all", "none"])
def test_scores_do_not_depend_on_what_is_scored_beside_them(placement):
    """Only scored positions pass through the last layer: the same numbers as when all do."""
    problem = transformer_problem(placement)
    engine = NativeTransformer(problem, make_ensemble(problem))
    engine.advance(5)
    weights = arrays_of(engine.dump(), "theta")
    every = problem.task.validation(0, "selection", 5)
    last_N = np.array([1, 20, 63, 40, 168])  # with a long and a short rest that is not read
    scored = (np.arange(168) % 7 == 3) & (np.arange(168) < last_N[:, None]) | (np.arange(168) == last_N[:, None] - 1)
    some = engine.measure(weights, ValidationSet(every.inputs_NxL, scored))
    for name, values in engine.measure(weights, every).items():
        assert np.allclose(some[name], values[:, scored.ravel()], rtol=1e-5, atol=1e-6)


def test_answers_of_several_lengths_are_scored_as_by_the_definition():
    problem = transformer_problem("peri")
    ensemble = make_ensemble(problem, 2, **BENIGN)
    native, definition = NativeTransformer(problem, ensemble), Definition(problem, ensemble, "float64")
    native.advance(5)
    weights = {name: 3 * x for name, x in weights_of(native.dump(), ensemble, "train").items()}
    every = problem.task.validation(0, "selection", 6)
    lengths_N = np.array([3, 9, 27, 81, 168, 168])
    at_L, first_N = np.arange(168), lengths_N - np.minimum(lengths_N // 3, 40)
    scored = (at_L >= first_N[:, None]) & (at_L < lengths_N[:, None])  # the answer after each question
    validation = ValidationSet(every.inputs_NxL, scored)
    found, expected = (engine.measure(weights, validation) for engine in (native, definition))
    assert found["tvd"].shape == (2, scored.sum())
    assert np.allclose(found["tvd"], expected["tvd"], atol=1e-5)


def test_bad_input():
    problem = transformer_problem()
    engine = NativeTransformer(problem, make_ensemble(problem))
    inputs, targets, real = rows_of(4, 4)
    for bad in (Batch(inputs + 6, targets, real), Batch(inputs, targets + 6, real), Batch(inputs, targets - 6, real)):
        with pytest.raises(ValueError, match="vocabulary of 6"):
            engine.advance(1, [bad])
    assert "does not measure 'accuracy'" in NativeTransformer.supports(replace(problem, task=MaxRetrieval()))
    assert "learned and learned-offset" in NativeTransformer.supports(transformer_problem(positions="fire"))
    short = replace(problem, parts=replace(transformer_problem(positions="learned").parts, longest=3))
    with pytest.raises(UserError, match="an input of 4 tokens: there are only 3 learned positions"):
        NativeTransformer(short, make_ensemble(short)).advance(1, [Batch(inputs, targets, real)])
    with pytest.raises(ValueError, match="only softmax, log-n, ssmax, window, sink, entmax and asentmax"):
        NativeTransformer(transformer_problem(attention="sigmoid"), make_ensemble(problem))


@pytest.mark.parametrize("task", [Dyck(2, 3), Tomita(3)], ids=str)
def test_further_metrics_come_from_the_kernels_logits(task):
    """As the definition measures them, nan for a model without weights; what was measured before keeps its bits."""
    problem = transformer_problem("peri", task=task, model=replace(TINY_TRANSFORMER, vocabulary=task.vocabulary))
    validation, ensemble = task.validation(0, "report", 2), make_ensemble(problem, 3, **BENIGN)
    native, definition = NativeTransformer(problem, ensemble), Definition(problem, ensemble, "float64")
    native.advance(5)
    weights = {name: 3 * x for name, x in weights_of(native.dump(), ensemble, "train").items()}
    weights = {
        name: np.where((np.arange(3) == 1).reshape(-1, *[1] * (x.ndim - 1)), np.nan, x) for name, x in weights.items()
    }
    weights = {name: x.astype(np.float32) for name, x in weights.items()}
    found, expected = (engine.measure(weights, validation, report=True) for engine in (native, definition))
    assert set(found) == set(expected) == {*task.measures, *task.further}
    for name in found:
        assert np.isnan(found[name][1]).all()
        close = np.isclose(found[name][::2], expected[name][::2], atol=1e-4, equal_nan=True)
        assert close.mean() > (0.999 if name in ("error", "closing") else 0.99999), name  # a tie may fall either way
    before = native.measure(weights, validation)
    assert set(before) == set(task.measures)
    assert all(np.array_equal(before[name], found[name], equal_nan=True) for name in before)
