"""Questions and answers: the probability of every whole sequence at small sizes, and where things are scored."""

from itertools import permutations, product
from math import factorial, perm

import numpy as np
import pytest

from resharpen import streams
from resharpen.tasks import Copy, Majority, QuestionTask, Recall, Sort
from resharpen.tasks.question import distinct


def separated(task, n, answers, repeated):
    """Every sequence with n items and its probability, given n; `answers` gives those of a question with theirs."""
    questions = product(range(task.v), repeat=n) if repeated else permutations(range(task.v), n)
    p = task.v**-n if repeated else 1 / perm(task.v, n)
    for items in questions:
        for answer, share in answers(items):
            yield (task.v, *items, task.v + 1, *answer), p * share


def copies(task, n):
    return separated(task, n, lambda items: [(items[::-1] if task.reverse else items, 1)], task.repeated)


def sorts(task, n):
    return separated(task, n, lambda items: [(sorted(items), 1)], task.repeated)


def majorities(task, n):
    def most(items):
        best = [t for t in range(task.v) if items.count(t) == max(map(items.count, items))]
        return [((t,), 1 / len(best)) for t in best]

    return separated(task, n, most, repeated=True)


def recalls(task, n):
    for keys in permutations(range(task.keys), n):
        for values in product(range(task.keys, task.vocabulary), repeat=n):
            pairs = list(zip(keys, values, strict=True))
            for queries in permutations(pairs):
                tokens = tuple(x for pair in (*pairs, *queries) for x in pair)
                yield tokens, 1 / (perm(task.keys, n) * task.values**n * factorial(n))


CASES = [
    (Copy(4, train_items=3), copies),
    (Copy(2, repeated=True, train_items=4), copies),
    (Copy(3, repeated=True, reverse=True, train_items=3), copies),
    (Copy(4, reverse=True, train_items=4), copies),
    (Sort(4, train_items=4), sorts),
    (Sort(3, repeated=True, train_items=4), sorts),
    (Majority(3, train_items=4), majorities),
    (Recall(3, 2, train_items=3), recalls),
]


@pytest.mark.parametrize(("task", "every"), CASES, ids=lambda x: getattr(x, "name", ""))
def test_p_star_by_brute_force(task, every):
    """The product of p* over a sequence is its probability, for all sequences there are."""
    total = 0.0
    for n in range(1, task.train_items + 1):
        sequences, p_N = zip(*every(task, n), strict=True)
        tokens = np.array(sequences)
        assert tokens.shape[1] == task.input_tokens(n) + 1
        p_NxL = np.take_along_axis(task.p_star(tokens[:, :-1]), tokens[:, 1:, None], axis=2)[..., 0]
        first = 1 if task.opening is not None else 1 / task.keys
        assert np.allclose(first * p_NxL.prod(1), np.array(p_N) / task.train_items, rtol=1e-12)
        total += sum(p_N) / task.train_items
    assert abs(total - 1) < 1e-9


@pytest.mark.parametrize(("task", "every"), CASES, ids=lambda x: getattr(x, "name", ""))
def test_minibatches_are_questions_and_answers(task, every):
    """Every row is a sequence of the task with n from 1 on; the loss counts at its answer, and nowhere else."""
    allowed = [dict(every(task, n)) for n in range(1, task.train_items + 1)]
    inputs, targets, mask = task.sample_batch(200, task.train_items)
    drawn = []
    for row in range(200):
        n = int(task.items(inputs[row : row + 1])[0])
        tokens = (*inputs[row].tolist(), int(targets[row, -1]))[: task.input_tokens(n) + 1]
        assert tokens in allowed[n - 1]
        answers = list(range(2 * n, 4 * n, 2)) if isinstance(task, Recall) else list(range(n + 1, len(tokens) - 1))
        assert np.nonzero(mask[row])[0].tolist() == answers
        drawn.append(n)
    assert set(drawn) == set(range(1, task.train_items + 1))


@pytest.mark.parametrize("task", [Copy(), Sort(), Majority(), Recall()], ids=lambda task: task.name)
def test_validation_sets_have_equally_many_questions_of_every_length(task: QuestionTask):
    assert task.validated == list(range(4, 49, 4))
    found = task.validation(0, "selection")
    per_n = {Copy: lambda n: n, Sort: lambda n: n, Majority: lambda n: 1, Recall: lambda n: n}[type(task)]
    lengths, counts = np.unique(found.length_P, return_counts=True)
    assert lengths.tolist() == task.validated
    assert counts.tolist() == [32 * per_n(n) for n in task.validated]
    assert len(task.validation(0, "report").inputs_NxL) == 12 * 128
    piece = task.validation(0, "report").take(slice(None, None, 97))
    assert np.allclose(task.examples(piece).truth["p_star"].sum(1), 1)
    assert len(task.with_options(sequences=20).validation(0, "report").inputs_NxL) == 240


def test_lengths_follow_from_training():
    task = Copy.from_data({"train_length": 10})
    assert (task.train_items, task.longest, task.validated[:4], task.validated[-1]) == (10, 30, [2, 5, 8, 10], 30)
    assert Copy.from_data({**task.as_data(), "train_length": 5}) == task
    assert Copy(20).longest == 20  # there are no more distinct items
    assert Copy(20, repeated=True).longest == 48
    with pytest.raises(ValueError, match=r"training length 49: for sort-v62 1\.\.48"):
        Sort().check_train_length(49)


def test_sequences_do_not_depend_on_each_other():
    """Those of several steps are drawn in one call."""
    for task in (Copy(), Sort(), Majority(), Recall()):
        words = streams.words(streams.key(0, "alone"), 50 * 4 * 16, 0).reshape(50, -1)[:, : task.input_tokens(16)]
        every = task.sample(words)
        assert all(np.array_equal(every[i : i + 1], task.sample(words[i : i + 1])) for i in range(50))


def test_distinct_numbers():
    drawn = distinct(streams.words(streams.key(0, "distinct"), 24_000).reshape(8000, 3), 4)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 8000 / 24) ** 2 / (8000 / 24)).sum() < 50  # chi-square with 23 degrees of freedom: p = 0.001
