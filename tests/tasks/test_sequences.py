"""Counters, brackets, Markov chains and weighted draws: p* against brute force and closed forms."""

from itertools import pairwise, permutations, product
from math import lgamma

import numpy as np
import pytest

from resharpen.tasks import Counter, HiddenMarkov, Markov, SetComplement, Shuffle, WeightedComplement


def probability(task, sequences, first=1.0):
    """The product of p* over each of some sequences of one length."""
    tokens = np.array(sequences)
    return first * np.take_along_axis(task.p_star(tokens[:, :-1]), tokens[:, 1:, None], axis=2)[..., 0].prod(1)


@pytest.mark.parametrize("letters", [2, 3, 4])
def test_words_of_a_counter(letters):
    """a^n b^n .. has (24/25)^(n-1) / 25; nothing else is legal."""
    task = Counter(letters)
    for n in range(1, 8):
        word = [letter for letter in range(letters) for _ in range(n)] + [letters]
        assert np.isclose(probability(task, [word])[0], (24 / 25) ** (n - 1) / 25, rtol=1e-12)
        for i in range(n, len(word)):
            assert np.count_nonzero(task.p_star(np.array([word[:i]]))[0, -1]) == (2 if i == n else 1)


@pytest.mark.parametrize(("k", "counts"), [(1, [1, 2, 5, 14]), (2, [2, 10, 70, 588]), (4, [4, 44, 740])])
def test_balanced_words_of_shuffle(k, counts):
    """Prefixes are legal where they can be completed; so many words are balanced after 2, 4, 6, 8 tokens."""
    task, living = Shuffle(k), [[2 * k]]
    for length, count in enumerate(np.repeat(counts, 2), 1):
        legal = task.p_star(np.array(living))[:, -1] > 0
        living = [[*word, t] for word, may in zip(living, legal, strict=True) for t in np.nonzero(may[:-2])[0]]
        ends = task.p_star(np.array(living))[:, -1, -1] > 0
        assert ends.sum() == (count if length % 2 == 0 else 0)
        depth = np.array([[w.count(i) - w.count(k + i) for i in range(k)] for w in living])
        assert (depth >= 0).all()
        assert (ends == ~depth.any(1)).all()


def test_probabilities_of_shuffle():
    p = Shuffle(2).p_star(np.array([[4, 0, 0, 1, 2, 3, 2]]))[0]  # BOS ( ( [ ) ] )
    assert p[0].tolist() == [0.5, 0.5, 0, 0, 0, 0]
    assert p[2].tolist() == [0.25, 0.25, 0.5, 0, 0, 0]
    assert p[4].tolist() == [0.25, 0.25, 0.25, 0.25, 0, 0]
    assert p[5].tolist() == [0.25, 0.25, 0.5, 0, 0, 0]
    assert p[6].tolist() == [0.25, 0.25, 0, 0, 0, 0.5]


@pytest.mark.parametrize(("v", "alpha", "length"), [(2, 1.0, 7), (3, 0.3, 5)])
def test_markov_is_dirichlet_multinomial(v, alpha, length):
    """Over all sequences: 1/v times, for each token, the Dirichlet-multinomial law of what followed it."""

    def closed(word):
        total = -np.log(v)
        for c in range(v):
            n_V = [sum(a == c and b == t for a, b in pairwise(word)) for t in range(v)]
            total += lgamma(v * alpha) - lgamma(v * alpha + sum(n_V))
            total += sum(lgamma(alpha + n) - lgamma(alpha) for n in n_V)
        return np.exp(total)

    words = list(product(range(v), repeat=length))
    found = probability(Markov(v, alpha), words, 1 / v)
    assert np.allclose(found, [closed(word) for word in words], rtol=1e-10)
    assert abs(found.sum() - 1) < 1e-12


def test_markov_by_drawing_the_matrix():
    """v = 2, alpha = 1, by the integral over both rows: of 0 1 0 0 it is 1/2 int p (1 - p) dp int q dq = 1/24."""
    assert np.isclose(probability(Markov(2, 1.0), [[0, 1, 0, 0]], 1 / 2)[0], 1 / 24)


def by_paths(T_VxSxS, start_S, word):
    """The sum over all hidden paths."""
    states = range(len(start_S))
    return sum(
        start_S[path[0]] * np.prod([T_VxSxS[t][i][j] for t, i, j in zip(word, path, path[1:], strict=False)])
        for path in product(states, repeat=len(word) + 1)
    )


SKEWED = {
    "matrices": [[[0.1, 0.3], [0.0, 0.2]], [[0.5, 0.0], [0.3, 0.1]], [[0.0, 0.1], [0.2, 0.2]]],
    "start": [0.3, 0.7],
}


@pytest.mark.parametrize("task", [HiddenMarkov(), HiddenMarkov.from_data(SKEWED)], ids=lambda task: task.name)
def test_hidden_markov_by_brute_force_over_paths(task):
    if task.process:
        T, start = SKEWED["matrices"], SKEWED["start"]
    else:
        x, y, a, b = 0.05, 0.9, 0.85, 0.075
        T = [
            [[a * y, b * x, b * x], [a * x, b * y, b * x], [a * x, b * x, b * y]],
            [[b * y, a * x, b * x], [b * x, a * y, b * x], [b * x, a * x, b * y]],
            [[b * y, b * x, a * x], [b * x, b * y, a * x], [b * x, b * x, a * y]],
        ]
        start = [1 / 3] * 3
    words = list(product(range(3), repeat=4))
    first = np.array([by_paths(T, start, word[:1]) for word in words])
    assert np.allclose(probability(task, words, first), [by_paths(T, start, word) for word in words], rtol=1e-10)


def test_beliefs_of_mess3_move_in_the_simplex():
    """Without a token the state stays uniform, so that all tokens have 1/3 on average over the first one."""
    task = HiddenMarkov()
    assert np.allclose(task.start_S @ task.T_VxSxS.sum(0), task.start_S)
    assert np.allclose(task.p_star(np.arange(3)[:, None])[:, 0].mean(0), 1 / 3)


@pytest.mark.parametrize("v", [4, 9, 25])
def test_ratio_1_is_set_complement(v):
    """Bit for bit in p*."""
    tokens = SetComplement(v).sample_batch(64, v - 1).inputs
    assert np.array_equal(WeightedComplement(v, 1.0).p_star(tokens), SetComplement(v).p_star(tokens))


@pytest.mark.parametrize("ratio", [0.5, 1.7])
def test_weighted_draws_by_brute_force(ratio):
    """A permutation has the product over its tokens of weight / weight that is left (Plackett and Luce)."""
    v, words = 5, list(permutations(range(5)))
    weight = [ratio**t for t in range(v)]
    expected = [np.prod([weight[t] / sum(weight[u] for u in word[i:]) for i, t in enumerate(word)]) for word in words]
    first = np.array([weight[word[0]] for word in words]) / sum(weight)
    found = probability(WeightedComplement(v, ratio), words, first)
    assert np.allclose(found, expected, rtol=1e-12)
    assert abs(found.sum() - 1) < 1e-12


def test_lengths_of_counters_and_brackets():
    """Reported in bins up to three times the training length; long sequences are there at every length."""
    for task in (Counter(), Shuffle()):
        found = task.validation(0, "report")
        lengths, counts = np.unique(found.length_P, return_counts=True)
        assert lengths.tolist() == list(range(10, 151, 10))
        assert counts.min() > 200
        assert {metric.bin for metric in task.metrics.values()} == {10}
