"""What holds for every task of the collection: its sampler follows its own p*, and it says what it is."""

import numpy as np
import pytest
from scipy.stats import chi2

import resharpen as rs
from resharpen import streams
from resharpen.tasks import (
    TASKS,
    Copy,
    Counter,
    Dyck,
    FlipFlop,
    Game,
    Group,
    HiddenMarkov,
    Majority,
    Markov,
    MaxRetrieval,
    Othello,
    OwnLanguage,
    Recall,
    Regular,
    SetComplement,
    Shuffle,
    Sort,
    TokenTask,
    Tomita,
    WeightedComplement,
)

GOLDEN_MEAN = {"matrices": [[[0.0, 0.5], [0.0, 0.0]], [[0.5, 0.0], [1.0, 0.0]]], "start": [1.0, 0.0]}
"""No two 0 in a row: after one the chain is in a state that emits 1 only."""
OWN_PROCESS = HiddenMarkov.from_data(GOLDEN_MEAN)
SMALL = [
    *((SetComplement(5), 4), (Dyck(2, 3), 12), (Tomita(3), 12)),
    *((FlipFlop(0.5), 12), (Group("Z2"), 8), (Group("S3"), 6)),
    *((Regular(language), 12) for language in ("aa", "aaaa", "abab", "abcde", "abdbc", "012", "even-pairs")),
    *(
        (Copy(5, train_items=3), 3),
        (Copy(2, repeated=True, train_items=4), 4),
        (Copy(4, reverse=True, train_items=4), 4),
    ),
    *((Counter(2), 60), (Counter(3), 40), (Counter(4), 30), (Shuffle(1), 16), (Shuffle(3), 12)),
    *((Markov(2, 1.0), 12), (Markov(3, 0.1), 8), (HiddenMarkov(), 8), (OWN_PROCESS, 8)),
    *((WeightedComplement(5, 0.6), 4), (WeightedComplement(5, 1.0), 4)),
    *((Game(3, 3, 3), 9), (Game(2, 3, 2), 5), (Game(1, 4, 3), 4), (Othello(4), 12), (Othello(6), 6)),
    *(
        (Sort(5, train_items=4), 4),
        (Sort(3, repeated=True, train_items=4), 4),
        (Majority(3, train_items=5), 5),
        (Recall(4, 2, train_items=3), 3),
    ),
]
"""Tasks at small sizes, with a training length."""
SEQUENCES = 4096


@pytest.mark.parametrize(("task", "length"), SMALL, ids=lambda x: getattr(x, "name", x))
def test_samples_follow_p_star(task, length):
    """At every place p* is a distribution that depends on the prefix alone, and the counts of what follows fit it: by
    place, by the last token, and by the last two."""
    key = streams.key(0, "chi-square")
    if isinstance(task, TokenTask):  # also at places that are not trained
        tokens = task._drawn(key, SEQUENCES, task.input_tokens(length) + 1)
        inputs_NxL, targets_NxL, mask_NxL = tokens[:, :-1].clip(0), tokens[:, 1:], tokens[:, 1:] >= 0
    else:
        inputs_NxL, targets_NxL, mask_NxL = task.batch(key, 0, 0, SEQUENCES, length)
    p_NxLxV = task.p_star(inputs_NxL)
    assert np.allclose(p_NxLxV[mask_NxL].sum(-1), 1, atol=1e-12)
    for cut in (1, 2, length // 2):
        assert np.array_equal(task.p_star(inputs_NxL[:, :cut])[mask_NxL[:, :cut]], p_NxLxV[:, :cut][mask_NxL[:, :cut]])
    target_P, p_PxV = targets_NxL[mask_NxL], p_NxLxV[mask_NxL]
    assert (np.take_along_axis(p_PxV, target_P[:, None], 1) > 0).all()
    place_NxL = np.broadcast_to(np.arange(inputs_NxL.shape[1]), inputs_NxL.shape)
    before_NxL = np.where(place_NxL > 0, np.roll(inputs_NxL, 1, axis=1), 0)
    for kind_NxL in (place_NxL, inputs_NxL, inputs_NxL * task.vocabulary + before_NxL):
        assert fits(p_PxV, target_P, kind_NxL[mask_NxL]) > 1e-4


def fits(p_PxV, target_P, kind_P):
    """P-value of Pearson's statistic over kinds of place and tokens; rare cells do not count. Its expectation, which
    takes the place of the degrees of freedom, is exact: places differ, and those that are determined add none."""
    kinds, kind_P = np.unique(kind_P, return_inverse=True)
    expected, variance, found = np.zeros((3, len(kinds), p_PxV.shape[1]))
    np.add.at(expected, kind_P, p_PxV)
    np.add.at(variance, kind_P, p_PxV * (1 - p_PxV))
    np.add.at(found, (kind_P, target_P), 1)
    common = expected >= 8
    square = ((found - expected) ** 2 / np.maximum(expected, 8))[common].sum()
    return chi2.sf(square, max((variance[common] / expected[common]).sum(), 1))


def test_another_distribution_does_not_fit():
    inputs, targets, _ = FlipFlop(0.5).batch(streams.key(0, "chi-square"), 0, 0, SEQUENCES, 12)
    p_PxV = FlipFlop(0.47).p_star(inputs).reshape(-1, 5)
    assert fits(p_PxV, targets.ravel(), inputs.ravel()) < 1e-6


@pytest.mark.parametrize(("task", "length"), SMALL, ids=lambda x: getattr(x, "name", x))
def test_a_task_is_its_table(task, length):
    task.check_train_length(length)
    assert type(task).from_data(task.as_data()) == task
    assert task.metric in task.metrics
    assert next(iter(task.metrics)) == task.shown_metric
    assert len(task.token_names) == task.vocabulary
    scores = {name: np.zeros((2, len(task.validation(0, "selection").length_P))) for name in task.measures}
    found = task.by_length(scores, task.validation(0, "selection"))
    assert (found["tvd"][2] > 0).all()


@pytest.mark.parametrize("task", [task for task, _ in SMALL if task.longest <= 60], ids=lambda task: task.name)
def test_its_own_p_star_is_perfect(task):
    """By every metric that follows from p*, as a function that a user scores."""
    means = rs.score(task.p_star, task, probabilities=True).means()
    perfect = {"tvd": 0, "kl": 0, "illegal": 0, "error": 0, "exact": 1}
    found = {name: value for name, value in means.select("metric", "value").iter_rows() if name in perfect}
    assert {"tvd", "kl", "illegal"} <= set(found)
    for name, value in found.items():
        assert value is None or value == pytest.approx(perfect[name], abs=1e-6), name


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_says_what_it_is(kind):
    task = TASKS[kind]
    for said in (task.asked, task.answer, task.published):
        assert 0 < len(said) <= 110
        assert "\n" not in said
    if task is not OwnLanguage:
        usual = task.from_data(task.usual_fields)
        if task not in (SetComplement, MaxRetrieval):
            assert usual.usual_train_length is not None
        usual.check_train_length(usual.usual_train_length or 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FlipFlop(1.0), "p_ignore = 1.0: a probability between 0 and 1"),
        (lambda: Group("S4"), r"unknown group 'S4': \(allowed: A5, S3, S5, Z2, Z5\)"),
        (lambda: Regular("abba"), r"unknown regular language 'abba': did you mean 'abab'\?"),
        (lambda: FlipFlop(sequences=1), "sequences = 1: at least 2"),
        (lambda: Copy(1), "v = 1: at least 2 tokens to choose from"),
        (lambda: Sort(train_items=0), "train_items = 0: at least 1"),
        (lambda: Recall(values=1), "values = 1: at least 2"),
        (lambda: Counter(5), "letters = 5: 2, 3 or 4"),
        (lambda: Shuffle(0), "k = 0: at least 1 type of brackets"),
        (lambda: Markov(1), "v = 1: at least 2 tokens"),
        (lambda: Markov(alpha=0.0), "alpha = 0.0: from 0.001 to 1000"),
        (lambda: HiddenMarkov(x=0.5), r"x = 0.5, a = 0.85: 0 < x < 1/2"),
        (
            lambda: HiddenMarkov.from_data({"matrices": [[[0.5]], [[0.4]]]}),
            "sum to 1 over tokens and next states",
        ),
        (lambda: HiddenMarkov.from_data({"matrices": [[0.5]]}), "must be square"),
        (lambda: HiddenMarkov.from_data({"matrices": [["a"]]}), "must have the lists matrices"),
        (lambda: HiddenMarkov.from_data({"matrices": "a"}), "must have the lists matrices"),
        (lambda: HiddenMarkov.from_data({"start": [1.0]}), "must be square"),
        (
            lambda: HiddenMarkov.from_data({**GOLDEN_MEAN, "start": [0.5, 0.4]}),
            "start: must be probabilities that sum to 1",
        ),
        (lambda: HiddenMarkov(process="{}"), "must be square"),
        (lambda: HiddenMarkov(process="mess"), "process: must have the lists matrices and start, not 'mess'"),
        (lambda: WeightedComplement(4, 0.0), "ratio = 0.0: must be above 0"),
        (lambda: WeightedComplement(40, 2.0), r"within a factor of 1e\+09"),
        (lambda: Game(3, 3, 4), r"Game\(3, 3, 4\): at least one cell, at most 225, and k no longer"),
        (lambda: Othello(7), "board = 7: 4, 6 or 8"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
