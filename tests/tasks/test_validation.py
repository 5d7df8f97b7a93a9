"""One set of surviving sequences against sets that are drawn for each length by themselves."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from resharpen import streams
from resharpen.metrics import equal_length_auc
from resharpen.tasks import Dyck, OwnLanguage, Tomita
from resharpen.tasks.validation import log_survival, surviving_set

LANGUAGES = [Dyck(2, 3), Dyck(8, 5), Tomita(3), Tomita(7)]


def some_scores(language, inputs_NxL):
    """Two numbers per prefix that depend on its state and on its past: as TVD and marked logit may."""
    state_NxL, _ = language.automaton.read(inputs_NxL.astype(np.int64))
    legal_NxL = language.automaton.legal_S(language.marked)[state_NxL]
    past_NxL = np.cumsum(np.sin(1.7 * inputs_NxL + 0.3 * np.arange(inputs_NxL.shape[1])), axis=1)
    tvd_NxL = 0.5 + 0.3 * np.sin(state_NxL + past_NxL)
    return tvd_NxL, np.round(legal_NxL + np.cos(past_NxL), 1), legal_NxL  # rounded, so that there are ties


def conditioned(language, length, n, seed):
    """Prefixes of one length, of sequences that are alive there: nothing is asked of what comes later."""
    automaton = language.automaton
    words = streams.words((seed, 7), length, np.arange(n))
    tokens, _ = automaton.draw(words[:, : length - 1], automaton.surviving(length - 1))
    return np.concatenate([np.full((n, 1), automaton.bos), tokens], axis=1)


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_weights_give_back_the_law_of_prefixes_that_are_alive(language):
    """At lengths all along the way, the mean over the weighted set is that over a set conditioned on that length."""
    validation = language.validation(1, "report", sequences=3000)
    tvd_NxL, _, _ = some_scores(language, validation.inputs_NxL)
    for length in np.linspace(2, language.longest, 7).astype(int):
        w_N, x_N = validation.weight_NxL[:, length - 1], tvd_NxL[:, length - 1]
        fresh_N = some_scores(language, conditioned(language, length, 3000, seed=int(length)))[0][:, -1]
        mean = (w_N * x_N).sum()
        error = np.sqrt((w_N**2 * (x_N - mean) ** 2).sum() + fresh_N.var() / len(fresh_N))
        assert abs(mean - fresh_N.mean()) < 4 * error + 1e-12


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_states_have_their_exact_law(language):
    """The weighted share of each state at a length against the chain's own distribution."""
    automaton, n = language.automaton, 4000
    validation = language.validation(2, "report", sequences=n)
    state_NxL, _ = automaton.read(validation.inputs_NxL.astype(np.int64))
    law_S, chain = np.eye(len(automaton.states))[0], automaton.chain()
    for length in range(1, 41):
        share_S = np.bincount(state_NxL[:, length - 1], validation.weight_NxL[:, length - 1], len(law_S))
        assert np.abs(share_S - law_S / law_S.sum()).max() < 5 * np.sqrt(0.25 / (0.6 * n))
        law_S = law_S @ chain


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_bins_agree_with_rejection_at_short_lengths(language):
    """The first bin, against the prefixes of natural sequences as they come: nothing conditioned, nothing weighted."""
    batch = language.batch((3, 4), 0, 0, 6000, language.bin_width)
    tvd_NxL, marked_NxL, legal_NxL = some_scores(language, batch.inputs)
    natural, n = tvd_NxL[batch.mask], batch.mask.sum(1)
    validation = language.validation(3, "report", sequences=1500)
    tvd, marked, _ = some_scores(language, validation.inputs_NxL)
    found = language.by_length({"tvd": tvd.reshape(1, -1), "marked": marked.reshape(1, -1)}, validation)
    sums_N = np.where(batch.mask, tvd_NxL - natural.mean(), 0).sum(1)  # prefixes of one sequence go together
    error = np.sqrt((sums_N**2).sum()) / n.sum()
    assert abs(found["tvd"][1][0, 0] - natural.mean()) < 4 * np.hypot(error, error * 2)
    pairs = wins = 0.0
    for column in range(batch.inputs.shape[1]):
        alive = batch.mask[:, column]
        legal = legal_NxL[alive, column]
        weight = alive.mean() * legal.mean() * (1 - legal.mean())
        if weight:
            wins += weight * roc_auc_score(legal, marked_NxL[alive, column])
            pairs += weight
    # what an AUC is off by is decided by the sequences that show the rarer class at all
    rarer = min(np.any(batch.mask & (legal_NxL == kind), axis=1).sum() for kind in (True, False))
    assert found["auc"][1][0, 0] == pytest.approx(wins / pairs, abs=1.5 / np.sqrt(min(rarer, 1500)))


def test_every_bin_agrees_with_sets_of_its_own_lengths():
    """TVD and AUC of every bin against sets conditioned on each length of it by themselves."""
    language = Dyck(2, 3)
    validation = language.validation(4, "report", sequences=2000)
    tvd, marked, _ = some_scores(language, validation.inputs_NxL)
    found = language.by_length({"tvd": tvd.reshape(1, -1), "marked": marked.reshape(1, -1)}, validation)
    alive_L = np.exp(log_survival(language.automaton, language.longest))[:, 0]
    for i, end in enumerate(language.reported_lengths):
        means, wins, pairs, weights = [], 0.0, 0.0, []
        for length in range(end - language.bin_width + 1, end + 1):
            x, y, legal = some_scores(language, conditioned(language, length, 400, seed=length))
            means.append(x[:, -1].mean())
            weights.append(alive_L[length - 1])
            share = legal[:, -1].mean()
            if 0 < share < 1:
                weight = weights[-1] * share * (1 - share)
                wins += weight * roc_auc_score(legal[:, -1], y[:, -1])
                pairs += weight
        assert found["tvd"][1][0, i] == pytest.approx(np.average(means, weights=weights), abs=0.02)
        assert found["auc"][1][0, i] == pytest.approx(wins / pairs, abs=0.04)
    assert (found["tvd"][2] == 2000 * language.bin_width).all()


def test_fewer_sequences_are_the_first_of_more():
    few, many = (Tomita(3).validation(0, "report", sequences=n) for n in (3, 5))
    assert (few.inputs_NxL == many.inputs_NxL[:3]).all()


def test_the_auc_of_equal_lengths_is_that_of_all_pairs():
    """Against a double loop over pairs, with ties, weights and unequal lengths."""
    random = np.random.default_rng(0)
    scores = random.integers(0, 4, (2, 9, 3)).astype(float)
    legal, weight, alive = random.random((9, 3)) < 0.5, random.random((9, 3)), np.array([1.0, 0.3, 0.2])
    wins, total = np.zeros(2), 0.0
    for length in range(3):
        for i in np.flatnonzero(legal[:, length]):
            for j in np.flatnonzero(~legal[:, length]):
                w = alive[length] * weight[i, length] * weight[j, length]
                a, b = scores[:, i, length], scores[:, j, length]
                wins, total = wins + w * ((a > b) + 0.5 * (a == b)), total + w
    assert equal_length_auc(scores, legal, weight, alive) == pytest.approx(wins / total, rel=1e-12)


def test_a_language_that_ends_is_read_as_far_as_it_goes():
    """Of at most two tokens: later bins have nothing to score."""
    states = {"a": {"x": [1.0, "b"]}, "b": {"x": [0.5, "c"], "end": 0.5}, "c": {"end": 1.0}}
    language = OwnLanguage.from_data({"name": "short", "states": states, "train_length": 8})
    validation = surviving_set(language.automaton, (1, 2), 4, language.longest)
    assert validation.inputs_NxL.shape == (4, 3)
    values = np.zeros((1, validation.inputs_NxL.size))
    found = language.by_length({"tvd": values, "marked": values}, validation)
    assert found["tvd"][2].tolist() == [8, 4, 0, 0, 0, 0, 0, 0]
    assert np.isnan(found["tvd"][1][0, 2:]).all()
