import re
from itertools import product

import numpy as np
import pytest
from helpers import accepts
from hypothesis import given
from hypothesis import strategies as st

from resharpen.tasks.tomita import DFA, Tomita, automaton, end_probability

ACCEPTED = {
    3: [1, 2, 3, 6, 10, 18, 32, 56, 100, 176, 312, 552, 976, 1728, 3056],
    7: [1, 2, 4, 8, 15, 26, 42, 64, 93, 130, 176, 232, 299, 378, 470],
}
LIVING_3 = [1, 2, 4, 7, 13, 23, 41, 73, 129, 229, 405, 717, 1269, 2245, 3973]

LAWS = {
    1: lambda s: "0" not in s,
    2: lambda s: re.fullmatch("(10)*", s) is not None,
    3: lambda s: not any(len(a) % 2 and len(b) % 2 for a, b in re.findall("(1+)(0+)", s)),
    4: lambda s: "000" not in s,
    5: lambda s: s.count("0") % 2 == 0 and s.count("1") % 2 == 0,
    6: lambda s: (s.count("0") - s.count("1")) % 3 == 0,
    7: lambda s: re.fullmatch("0*1*0*1*", s) is not None,
}


@given(st.integers(1, 7), st.text("01", max_size=14))
def test_accepts_against_the_definition(n, string):
    assert accepts(Tomita(n).automaton, [int(x) for x in string]) == LAWS[n](string)


@pytest.mark.parametrize("n", ACCEPTED)
def test_counts(n):
    """Accepted strings, and prefixes that can still be completed, of every length 0..14."""
    task = Tomita(n)
    legal = {name: task.automaton.legal_S(3)[i] for i, name in enumerate(task.automaton.states)}
    living = {0: 1}
    for length in range(15):
        accepted = sum(count for state, count in living.items() if legal[task.automaton.states[state]])
        assert accepted == ACCEPTED[n][length]
        assert n != 3 or sum(living.values()) == LIVING_3[length]
        after: dict[int, int] = {}
        for state, count in living.items():
            for edge in task.automaton.edges[state]:
                if edge.to >= 0:
                    after[edge.to] = after.get(edge.to, 0) + count
        living = after


@pytest.mark.parametrize("n", range(1, 8))
def test_legality_by_completion(n):
    """A symbol is legal where some string goes on with it: looked for up to six symbols ahead."""
    accepted = {s for length in range(11) for s in map("".join, product("01", repeat=length)) if LAWS[n](s)}
    living = {s[:length] for s in accepted for length in range(len(s) + 1)}
    for string in map("".join, product("01", repeat=4)):
        p = Tomita(n).p_star(np.array([[2, *map(int, string)]]))[0, -1]
        expected = {t for t in (0, 1) if string + str(t) in living} | ({3} if string in accepted else set())
        assert set(np.nonzero(p)[0]) == (expected if string in living else set())


def test_the_string_that_tells_two_definitions_of_language_3_apart():
    assert accepts(Tomita(3).automaton, [1, 0, 0, 1, 1, 0])


def test_probabilities_of_language_7():
    """EOS 0.00691; given none, the symbol switches with 0.01; an illegal 0 leaves its share to 1."""
    end = 0.00691
    p = Tomita(7).p_star(np.array([[2, 0, 1, 0, 1]]))[0]
    go = 1 - end
    assert np.allclose(p[0], [go / 2, go / 2, 0, end])
    assert np.allclose(p[1], [go * 0.99, go * 0.01, 0, end])
    assert np.allclose(p[3], [go * 0.99, go * 0.01, 0, end])
    assert np.allclose(p[4], [0, go, 0, end])


@pytest.mark.parametrize("n", range(1, 8))
def test_half_are_over_by_length_100(n):
    assert abs(Tomita(n).automaton.survival(100)[-1, 0] - 0.5) < 2e-4


@pytest.mark.parametrize("n", [3, 7])
def test_given_end_probabilities_are_the_rounded_solutions(n):
    below, above = (automaton(n, end_probability(n) + d).survival(100)[-1, 0] for d in (-5e-6, 5e-6))
    assert above < 0.5 < below


def test_share_of_living_prefixes_of_language_7_where_0_is_legal():
    """83% at length 100, 31% at 300, 8% at 500."""
    core = Tomita(7).automaton
    laws = [np.linalg.matrix_power(core.chain(), n)[0] for n in (99, 299, 499)]
    shares = [law_S[core.legal_S(0)].sum() / law_S.sum() for law_S in laws]
    assert np.allclose(shares, [0.83, 0.31, 0.08], atol=0.01)


def test_lengths_of_validation():
    task = Tomita(3)
    assert task.reported_lengths == list(range(20, 501, 20))
    assert (task.cap, task.marked, Tomita(7).marked) == (100, 1, 0)


def test_dfas_are_complete_and_known_by_number():
    assert set(DFA) == set(LAWS)
    with pytest.raises(ValueError, match=r"1\.\.7"):
        Tomita(8)
