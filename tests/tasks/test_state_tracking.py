"""Flip-flop, groups and regular languages: their automata against definitions in one line."""

import re
from itertools import pairwise, permutations, product

import numpy as np
import pytest
import torch

from resharpen.tasks import FlipFlop, Group, Regular
from resharpen.tasks.group import ORDERS, elements
from resharpen.tasks.metrics import error
from resharpen.tasks.regular import DFA

WORDS = {
    "aa": ("a", lambda s: re.fullmatch("(aa)*", s)),
    "aaaa": ("a", lambda s: re.fullmatch("(aaaa)*", s)),
    "abab": ("ab", lambda s: re.fullmatch("(abab)*", s)),
    "abcde": ("abcde", lambda s: re.fullmatch("a+b+c+d+e+", s)),
    "abdbc": ("abdc", lambda s: re.fullmatch("[ab]*d[bc]*", s)),
    "012": ("012", lambda s: re.fullmatch("[012]*02*", s)),
    "even-pairs": ("ab", lambda s: sum(a != b for a, b in pairwise(s)) % 2 == 0),
}


def flip_flop_p(tokens, p_ignore):
    """What follows a prefix, by its text."""
    text = "".join("wri01"[t] for t in tokens)
    if len(text) % 2 == 0:
        rest = (1 - p_ignore) / 2
        return [rest, rest, p_ignore, 0, 0]
    if text[-1] != "r":
        return [0, 0, 0, 0.5, 0.5]
    bit = text[text.rindex("w") + 1]
    return [0, 0, 0, float(bit == "0"), float(bit == "1")]


def test_flip_flop_by_brute_force():
    task, seen = FlipFlop(0.7), 0
    for bits in product("01", repeat=3):
        for instructions in product("wri", repeat=3):
            tokens = [
                "wri01".index(x)
                for pair in zip("w" + "".join(instructions), (*bits, ""), strict=True)
                for x in pair
                if x
            ]
            p = task.p_star(np.array([tokens]))[0]
            legal = True
            for length in range(1, len(tokens) + 1):
                expected = flip_flop_p(tokens[:length], 0.7)
                legal = legal and (length == 1 or flip_flop_p(tokens[: length - 1], 0.7)[tokens[length - 1]] > 0)
                assert np.allclose(p[length - 1], expected if legal else 0)
                seen += legal
    assert seen > 500
    assert not task.p_star(np.array([[1, 3]])).any()  # the first instruction is w


def test_errors_of_flip_flop_are_at_reads():
    task = FlipFlop()
    examples = task.examples(task.validation(0, "selection"))
    p_star = torch.as_tensor(examples.truth["p_star"])
    defined = ~error(p_star[None], p_star)[0].isnan().numpy()
    assert np.array_equal(defined, examples.inputs.ravel() == 1)
    assert 0.03 < defined.mean() < 0.07


@pytest.mark.parametrize("group", ORDERS)
def test_tables_of_groups(group):
    """Closed, associative, the identity first, every element with an inverse; commutative only if cyclic."""
    names, table = elements(group)
    n = ORDERS[group]
    assert table.shape == (n, n)
    assert len(set(names)) == n
    assert all(sorted(row) == list(range(n)) for row in (*table.tolist(), *table.T.tolist()))
    assert (table[0] == range(n)).all()
    assert (table[:, 0] == range(n)).all()
    assert (table[table] == table[:, table]).all()  # (g h) k = g (h k)
    assert (table == table.T).all() == (group[0] == "Z")


def test_a5_is_perfect_and_s5_is_not():
    """Commutators of A5 generate all of it, those of S5 only A5: what makes both hard is that A5 is not solvable."""
    for group, order in (("A5", 60), ("S5", 60), ("S3", 3)):
        _, table = elements(group)
        inverse = (table == 0).argmax(1)
        found = {int(table[table[g, h], table[inverse[g], inverse[h]]]) for g, h in permutations(range(len(table)), 2)}
        while (more := found | {int(table[g, h]) for g, h in product(found, found)}) != found:
            found = more
        assert len(found) == order


@pytest.mark.parametrize("group", ["Z2", "Z5", "S3"])
def test_products_by_brute_force(group):
    task = Group(group)
    names, _ = elements(group)
    n = len(names)

    def times(a, b):
        if group[0] == "Z":
            return str((int(a) + int(b)) % n)
        return "".join(a[int(x)] for x in b)

    for elements_ in product(range(n), repeat=3):
        tokens, running = [n], names[0]
        for g in elements_:
            running = times(running, names[g])
            tokens += [g, n + names.index(running)]
        p = task.p_star(np.array([tokens[:-1]]))[0]
        assert np.allclose(p[0::2, :n], 1 / n)
        assert (p[1::2].argmax(1) == tokens[2::2]).all()
        assert (p[1::2].max(1) == 1).all()


@pytest.mark.parametrize("language", DFA)
def test_legal_symbols_by_completion(language):
    """EOS is legal after words, always with one probability; a symbol where it leads to a word, all of them alike."""
    symbols, law = WORDS[language]
    task, ahead = Regular(language), 6
    assert "".join(task.token_names[:-2]) == symbols
    longest = 5 + ahead if len(symbols) < 3 else 8
    words = {s for n in range(longest + 1) for s in map("".join, product(symbols, repeat=n)) if law(s)}
    living = {s[:n] for s in words for n in range(len(s) + 1)}
    ends = set()
    for n in range(4):
        for s in map("".join, product(symbols, repeat=n)):
            p = task.p_star(np.array([[len(symbols), *map(symbols.index, s)]]))[0, -1]
            following = [symbol for symbol in symbols if s + symbol in living]
            assert {symbols[t] for t in np.nonzero(p[:-2])[0]} == (set(following) if s in living else set())
            assert (p[-1] > 0) == (s in words)
            ends |= {float(p[-1])} - {0.0}
            if s in living:
                assert np.allclose(p[p > 0][: len(following)], (1 - p[-1]) / len(following))
    assert len(ends) == (language != "abcde")  # no word of abcde is shorter than five symbols


@pytest.mark.parametrize("language", DFA)
def test_half_are_over_by_50(language):
    assert abs(Regular(language).automaton.survival(50)[-1, 0] - 0.5) < 1e-9
