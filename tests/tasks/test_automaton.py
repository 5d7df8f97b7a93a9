"""The core that the languages share: exact distributions, drawing, survival, and definitions of the user's own."""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers import accepts
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from resharpen import streams
from resharpen.errors import UserError
from resharpen.tasks.automaton import END, Automaton, Edge, from_data, thresholds
from resharpen.tasks.dyck import Dyck
from resharpen.tasks.language import OwnLanguage
from resharpen.tasks.tomita import Tomita

COIN = {
    "start": "even",
    "states": {
        "even": {"tails": [0.25, "even"], "heads": [0.5, "odd"], "end": 0.25},
        "odd": {"tails": [0.5, "odd"], "heads": [0.5, "even"]},
    },
}
LANGUAGES = [Dyck(1, 2), Dyck(2, 3), Tomita(3), Tomita(5), Tomita(7), OwnLanguage.from_data(COIN)]
IDS = [language.name for language in LANGUAGES]


def strings(automaton: Automaton, length: int) -> dict[tuple[int, ...], float]:
    """Every string of so many symbols that has not ended and its probability, from the edges alone, stack and all."""
    living = {(): (1.0, 0, ())}
    for _ in range(length):
        longer = {}
        for string, (p, state, stack) in living.items():
            for edge in automaton.edges[state]:
                if edge.to == END:
                    continue
                token = stack[-1] if edge.token == -2 else edge.token
                rest = stack[:-1] if edge.token == -2 else stack
                rest = (*rest, edge.push) if edge.push >= 0 else rest
                longer[(*string, token)] = (p * edge.probability, edge.to, rest)
        living = longer
    return {string: p for string, (p, _, _) in living.items()}


@pytest.mark.parametrize("language", LANGUAGES, ids=IDS)
def test_p_star_against_the_enumeration_of_all_strings(language):
    """P(token | prefix) is the probability of all strings that go on with it over that of all that go on."""
    automaton = language.automaton
    for length in range(5):
        here, longer = strings(automaton, length), strings(automaton, length + 1)
        for string, p in here.items():
            expected = np.zeros(language.vocabulary)
            for token in range(language.vocabulary - 2):
                expected[token] = longer.get((*string, token), 0.0) / p
            expected[automaton.eos] = 1 - expected.sum()
            got = language.p_star(np.array([[automaton.bos, *string]]))[0, -1]
            assert np.allclose(got, expected, atol=1e-12), string


@pytest.mark.parametrize("language", LANGUAGES, ids=IDS)
def test_p_star_of_a_prefix_ignores_what_follows_and_an_illegal_one_has_none(language):
    automaton = language.automaton
    every = list(product(range(language.vocabulary - 2), repeat=4))[:300]
    inputs = np.array([(automaton.bos, *string) for string in every])
    p_star = language.p_star(inputs)
    for length in range(1, 6):
        assert (p_star[:, length - 1] == language.p_star(inputs[:, :length])[:, -1]).all()
        known = strings(automaton, length - 1)
        legal = np.array([string[: length - 1] in known for string in every])
        assert np.allclose(p_star[:, length - 1].sum(-1), legal)
    assert (language.p_star(inputs[:, 1:]) == 0).all()  # no BOS


def test_a_word_takes_the_first_edge_whose_threshold_is_above_it():
    got = thresholds(np.array([[0.25, 0.0, 0.5, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]]))
    assert got.tolist() == [[2**30, 2**30, 3 * 2**30, 2**32, 2**32], [0, 2**32, 2**32, 2**32, 2**32]]
    coin = from_data(COIN)
    words = np.array([[0, 2**30 - 1, 2**30, 0, 2**31, 3 * 2**30]], np.uint32)
    tokens, count = coin.draw(words, coin.thresholds_SxE[None])
    # tails, tails, heads | tails, heads | end
    assert tokens.tolist() == [[0, 0, 1, 0, 1, coin.eos]]
    assert count.tolist() == [6]


@pytest.mark.parametrize("language", LANGUAGES, ids=IDS)
def test_natural_sequences_have_their_probabilities(language):
    """Chi-square on the first three tokens of 6,000 sequences."""
    n, automaton = 6_000, language.automaton
    _, targets, real = language.batch(streams.key(1, "t"), 0, 0, n, 3)
    seen = Counter(tuple(row[keep].tolist()) for row, keep in zip(targets, real, strict=True))
    expected = strings(automaton, 3)
    for length in range(3):
        for string, p in strings(automaton, length).items():
            end = language.p_star(np.array([[automaton.bos, *string]]))[0, -1, automaton.eos]
            if end > 0:
                expected[(*string, automaton.eos)] = p * end
    assert set(seen) <= set(expected)
    common = [key for key, p in expected.items() if p * n > 5]
    rest = 1 - sum(expected[key] for key in common)
    observed = [seen[key] for key in common] + ([n - sum(seen[key] for key in common)] if rest > 1e-9 else [])
    wanted = [n * expected[key] for key in common] + ([n * rest] if rest > 1e-9 else [])
    assert chisquare(observed, wanted).pvalue > 1e-4


@pytest.mark.parametrize("language", LANGUAGES, ids=IDS)
def test_a_batch_is_inputs_targets_and_what_is_real(language):
    inputs, targets, real = language.batch(streams.key(0, "t"), 3, 7, 40, 12)
    automaton = language.automaton
    assert inputs.shape == targets.shape == real.shape
    assert inputs.shape[1] == real.sum(1).max() <= 12
    assert (inputs[:, 0] == automaton.bos).all()
    assert (inputs != automaton.eos).all()
    assert (inputs[~real] == 0).all()
    both = real[:, 1:]
    assert (inputs[:, 1:][both] == targets[:, :-1][both]).all()
    p_star = language.p_star(inputs)
    assert (np.take_along_axis(p_star, targets[..., None], -1)[..., 0][real] > 0).all()
    ends = (targets == automaton.eos) & real
    cut = ~ends.any(1)
    assert (real.sum(1)[cut] == 12).all()
    assert (ends.argmax(1) + 1 == real.sum(1))[~cut].all()


def test_the_first_tokens_do_not_depend_on_the_cut():
    """Only up to whole blocks of four words; so 9 and 12 agree."""
    short, long = (Dyck(2, 3).batch(streams.key(0, "t"), 0, 0, 30, cap)[1] for cap in (9, 12))
    assert (short == long[:, : short.shape[1]]).all()


# ---- sequences that have not ended -----------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES, ids=IDS)
def test_survival_against_the_enumeration(language):
    survival = language.automaton.survival(6)
    for t in range(7):
        assert np.isclose(survival[t, 0], sum(strings(language.automaton, t).values()), rtol=1e-12)


@pytest.mark.parametrize("language", [Dyck(2, 3), Tomita(3), Tomita(7)], ids=lambda language: language.name)
def test_conditioned_sequences_against_rejection(language):
    """Natural sequences that happen to go on, and drawn ones that had to, come from one distribution."""
    automaton, steps, n = language.automaton, 4, 20_000
    words = streams.words(streams.key(5, "natural"), n * steps).reshape(n, steps)
    natural, _ = automaton.draw(words, automaton.thresholds_SxE[None])
    kept = natural[(natural != automaton.eos).all(1)]
    table = automaton.surviving(steps)
    assert table is not None
    words = streams.words(streams.key(6, "conditioned"), 3_000 * steps).reshape(-1, steps)
    drawn, _ = automaton.draw(words, table)
    a, b = (Counter(map(tuple, x.tolist())) for x in (kept, drawn))
    both = [key for key in {*a, *b} if a[key] + b[key] >= 20]
    rare = [sum(v for k, v in counts.items() if k not in both) for counts in (a, b)]
    table = np.array([[a[key] for key in both] + rare[:1], [b[key] for key in both] + rare[1:]])
    table = table[:, table.sum(0) > 0]
    assert table.shape[1] > 1
    assert chi2_contingency(table).pvalue > 1e-4


def test_long_prefixes_are_alive_and_cost_their_length():
    """Length 1,400 of Dyck(8, 10), which one natural sequence in ten million reaches; no underflow at 20,000."""
    task = Dyck(8, 10)
    inputs = task.validation(0, "selection", 4).inputs_NxL
    assert inputs.shape == (4, 1400)
    assert (task.automaton.read(inputs.astype(np.int64))[0] >= 0).all()
    table = Dyck(2, 3).automaton.surviving(20_000)
    assert table is not None
    assert (np.diff(table[0].astype(np.float64), axis=-1) >= 0).all()


@pytest.mark.parametrize("language", [Dyck(2, 3), Tomita(3)], ids=lambda language: language.name)
def test_validation_sets(language):
    """Every prefix counts, with its natural distribution, whole or in pieces."""
    validation = language.validation(0, "report", 10)
    inputs, scored, truth = language.examples(validation)
    assert inputs.shape == (10, language.longest)
    assert scored.all()
    assert (truth["p_star"] == language.p_star(inputs)[scored]).all()
    assert np.allclose(truth["p_star"].sum(-1), 1)
    assert truth["marked"].shape == truth["p_star"].shape[:1]
    assert (truth["marked"] == language.marked).all()
    pieces = [language.examples(piece) for piece in validation.pieces(3 * language.longest)]
    assert [len(piece.inputs) for piece in pieces] == [3, 3, 3, 1]
    for name, whole in truth.items():
        assert (np.concatenate([piece.truth[name] for piece in pieces]) == whole).all()


def test_validation_depends_on_seed_task_and_use():
    one, again, other, seed = (
        Tomita(3).validation(s, use, 8).inputs_NxL
        for s, use in ((0, "report"), (0, "report"), (0, "selection"), (1, "report"))
    )
    assert (one == again).all()
    assert (one != other).any()
    assert (one != seed).any()
    assert (one != Tomita(4).validation(0, "report", 8).inputs_NxL).any()


def test_sizes_of_validation():
    task = replace(Tomita(3), sequences=7, selection_sequences=6)
    assert [len(task.validation(0, use).inputs_NxL) for use in ("report", "selection")] == [7, 6]
    assert task.name == Tomita(3).name
    with pytest.raises(ValueError, match="selection_sequences = 1: at least 2"):
        Tomita(3, selection_sequences=1)


def test_reduction_by_length():
    """Values that are the length of their prefix: the mean of a bin is that of the lengths as they occur; a perfect
    logit gives AUC 1, one that tells nothing a half."""
    task = Dyck(2, 3)
    validation = task.validation(0, "report", 40)
    length = validation.length_P.astype(np.float32)
    legal = (task.examples(validation).truth["p_star"][:, task.marked] > 0).astype(np.float32)
    measured = {"tvd": np.stack([length, -length]), "marked": np.stack([legal, np.zeros_like(legal)])}
    reduced = task.by_length(measured, validation)
    alive_L = task.automaton.survival(task.longest)[:, 0]  # of t tokens: BOS and t more are the input
    for metric in ("tvd", "auc"):
        lengths, values, count = reduced[metric]
        assert lengths.tolist() == task.reported_lengths
        assert values.shape == (2, 8)
        assert (count > 0).all()
    for end, mean, minus in zip(task.reported_lengths, *reduced["tvd"][1], strict=True):
        of_bin = np.arange(end - task.bin_width + 1, end + 1)
        assert np.isclose(mean, np.average(of_bin, weights=alive_L[of_bin - 1]))
        assert np.isclose(mean, -minus)
    assert (reduced["tvd"][2] == 40 * task.bin_width).all()
    assert np.allclose(reduced["auc"][1][0], 1)
    assert np.allclose(reduced["auc"][1][1], 0.5)


@pytest.mark.parametrize("task", [Tomita(1), Dyck(2, 1)], ids=lambda task: task.name)
def test_a_class_that_cannot_be_has_no_value(task):
    """In 1* the token 0 is never legal; in Dyck(k, 1) the end is at every odd length, and at no other."""
    validation = task.validation(0, "selection", 4)
    values = np.zeros((2, validation.inputs_NxL.size))
    reduced = task.by_length({"tvd": values, "marked": values}, validation)
    lengths, auc, count = reduced["auc"]
    assert len(lengths) == len(task.reported_lengths)
    assert np.isnan(auc).all()
    assert (count == 0).all()
    assert (reduced["tvd"][2] > 0).all()


# ---- definitions of the user's own -----------------------------------------------------------------------------------


def test_an_own_language():
    language = OwnLanguage.from_data({"name": "coin", "train_length": 40, "marked": "end", **COIN})
    assert language.name == "coin"
    assert language.vocabulary == 4
    assert language.reported_lengths == [10, 20, 30, 40, 50, 60, 70, 80]
    assert language.marked == language.automaton.eos
    assert language == OwnLanguage.from_data({"name": "coin", "train_length": 40, **COIN})
    assert accepts(language.automaton, [1, 0, 1])
    assert not accepts(language.automaton, [1, 0])


@given(st.lists(st.integers(0, 1), max_size=12))
def test_the_coin_ends_after_an_even_number_of_heads(string):
    assert accepts(from_data(COIN), string) == (sum(string) % 2 == 0)


BAD = {
    "missing": ({"odd": {"tails": 0.5, "heads": [0.5, "even"]}}, r"state 'odd': token 'tails' has no transition"),
    "half": ({"odd": {"tails": [0.5], "heads": [0.5, "even"]}}, r"state 'odd': token 'tails' has no transition"),
    "nowhere": ({"odd": {"tails": [0.5, "evne"], "heads": [0.5, "even"]}}, r"in state 'odd'.*did you mean 'even'"),
    "sum": ({"odd": {"tails": [0.5, "odd"], "heads": [0.4, "even"]}}, r"state 'odd': its probabilities sum to 0\.9"),
    "trap": ({"odd": {"tails": [0.5, "odd"], "heads": [0.5, "odd"]}}, r"state 'odd': the end cannot be reached"),
    "island": ({"far": {"heads": [1.0, "even"]}}, r"state 'far': it cannot be reached from the start 'even'"),
    "number": ({"odd": {"tails": ["x", "odd"], "heads": [0.5, "even"]}}, r"state 'odd': the probability of 'tails'"),
    "negative": ({"odd": {"tails": [-0.5, "odd"], "heads": [1.5, "even"]}}, r"state 'odd': the probability of 'tails'"),
    "reserved": ({"odd": {"EOS": [0.5, "odd"], "heads": [0.5, "even"]}}, r"token 'EOS' is reserved"),
    "table": ({"odd": 3}, r"a language needs states"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_definitions_name_the_state(case):
    states, message = BAD[case]
    data = deepcopy(COIN)
    data["states"] |= states
    with pytest.raises(UserError, match=message) as error:
        from_data(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("start", "evn", "unknown start state 'evn': did you mean 'even'"),
        ("start", [], r"unknown start state '\[\]'"),
        ("name", 5, "name = 5: must be a text"),
        ("train_length", 3, "training length 3: a whole number, at least 4"),
        ("marked", "head", "unknown marked token 'head': did you mean 'heads'"),
        ("statse", {}, "unknown field of a language 'statse': did you mean 'states'"),
        ("states", {}, "a language needs states"),
    ],
)
def test_bad_fields(field, value, message):
    with pytest.raises(UserError, match=message):
        OwnLanguage.from_data({**COIN, field: value})


def test_bad_training_length():
    with pytest.raises(ValueError, match=r"training length 0: for tomita-3 1\.\.500"):
        Tomita(3).check_train_length(0)


def test_edges_are_what_an_automaton_is_made_of():
    with pytest.raises(UserError, match=r"state 'a': its probabilities sum to 0\.5"):
        Automaton(("x", "BOS", "EOS"), ("a",), ((Edge(0, 0.25, 0), Edge(2, 0.25, END)),))
