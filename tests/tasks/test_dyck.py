import numpy as np
import pytest
from helpers import accepts
from hypothesis import given
from hypothesis import strategies as st

from resharpen import streams
from resharpen.tasks.dyck import Dyck


def stack_machine(k, m, string):
    """What may follow, by a stack: None for an illegal string, else the set of legal tokens."""
    stack = []
    for token in string:
        if token < k:
            stack.append(token)
        elif not stack or stack.pop() != token - k:
            return None
        if len(stack) > m:
            return None
    legal = set(range(k)) if len(stack) < m else set()
    if stack:
        return legal | {k + stack[-1]}
    return legal | ({2 * k + 1} if string else set())


@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_legality_against_a_stack(k, m, data):
    string = data.draw(st.lists(st.integers(0, 2 * k - 1), max_size=10))
    task = Dyck(k, m)
    p = task.p_star(np.array([[2 * k, *string]]))[0, -1]
    legal = stack_machine(k, m, string)
    assert set(np.nonzero(p)[0]) == (legal or set())
    assert accepts(task.automaton, string) == (legal is not None and 2 * k + 1 in legal)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 10**6))
def test_drawn_sequences_are_legal(k, m, seed):
    inputs, targets, real = Dyck(k, m).batch(streams.key(seed, "t"), 0, 0, 4, 30)
    for row, wanted, keep in zip(inputs.tolist(), targets.tolist(), real, strict=True):
        for i in range(int(keep.sum())):
            legal = stack_machine(k, m, row[1 : i + 1])
            assert legal is not None
            assert wanted[i] in legal


def test_the_probabilities():
    task = Dyck(2, 2)  # tokens ( [ ) ] BOS EOS
    rows = {
        (): [0.5, 0.5, 0, 0, 0, 0],
        (0,): [0.25, 0.25, 0.5, 0, 0, 0],
        (0, 1): [0, 0, 0, 1, 0, 0],
        (0, 1, 3): [0.25, 0.25, 0.5, 0, 0, 0],
        (1, 3): [0.25, 0.25, 0, 0, 0, 0.5],
    }
    for string, expected in rows.items():
        assert task.p_star(np.array([[4, *string]]))[0, -1].tolist() == expected


@pytest.mark.parametrize(("k", "m"), [(2, 3), (8, 5), (8, 10), (32, 3)])
def test_moments(k, m):
    """Mean length with EOS 4m + 1; P(length 3) = 1/4, P(length 5) = 1/8; depths occupied 1/(2m), 1/m, .., 1/(2m)."""
    automaton = Dyck(k, m).automaton
    steps = 40 * (m + 2) ** 2
    survival = automaton.survival(steps)[:, 0]
    assert np.isclose(survival.sum(), 4 * m + 1, rtol=1e-9)
    ended = -np.diff(survival)  # ended[t - 1] = P(the t-th token is EOS)
    assert np.isclose(ended[2], 1 / 4)
    assert np.isclose(ended[4], 1 / 8)
    depth = visits(automaton, steps)
    before = depth[1:]
    before[0] = depth[0] + depth[1] * 0.5  # at depth 0 half of the tokens are EOS, no bracket
    assert np.allclose(before / before.sum(), [1 / (2 * m), *[1 / m] * (m - 1), 1 / (2 * m)], rtol=1e-6)


def visits(automaton, steps):
    """The expected number of tokens drawn in each state."""
    alive = np.zeros(len(automaton.states))
    alive[0], total = 1.0, np.zeros(len(automaton.states))
    for _ in range(steps):
        total += alive
        after = np.zeros_like(alive)
        for state, edges in enumerate(automaton.edges):
            for edge in edges:
                if edge.to >= 0:
                    after[edge.to] += alive[state] * edge.probability
        alive = after
    return total


def test_survival_at_the_cap():
    assert [Dyck(8, m).cap for m in (3, 5, 10)] == [84, 180, 700]
    assert [Dyck(8, m).bin_width for m in (3, 5, 10)] == [21, 45, 175]
    assert f"{Dyck(8, 10).automaton.survival(700)[-1, 0]:.1e}" == "2.8e-04"


def test_lengths_of_validation():
    task = Dyck(8, 10)
    assert task.reported_lengths == [175 * i for i in range(1, 9)]
    assert task.marked == 17


def test_the_99th_percentile_of_training_lengths():
    task = Dyck(8, 10)
    at = task.length_quantile(0.99, 700)
    survival = task.automaton.survival(700)[:, 0]
    assert survival[at] <= 0.01 < survival[at - 1]
    assert task.length_quantile(0.99, 100) == 100


def test_bad_sizes():
    with pytest.raises(ValueError, match="at least 1"):
        Dyck(0, 3)
