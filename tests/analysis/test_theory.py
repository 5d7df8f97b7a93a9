"""Every statement of the theory: exhaustively and exactly for v <= 6, by properties beyond."""

from __future__ import annotations

import io
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from helpers import make_ensemble, minimal_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from worst_states import worst_gap, worst_spread

from resharpen import metrics
from resharpen.analysis.circuits import circuit_table
from resharpen.analysis.theory import checks, examples, theorem
from resharpen.analysis.theory.normal_form import (
    compose,
    enumerated_precision,
    fit_normal_form,
    least_merged_tvd,
    states,
)
from resharpen.analysis.theory.theorem import exact_rank, fractions
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models import Minimal
from resharpen.parts import PLACEMENTS, Parts
from resharpen.tasks import SetComplement
from resharpen.views.theory import print_checks

SMALL = range(4, 7)


def random_matrices(v: int, seed: int) -> tuple:
    B, D = np.random.default_rng([seed, v]).integers(-9, 10, (2, v, v))
    return fractions(B), fractions(D)


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", [3, 4, 5, 6])
def test_worst_state_without_enumeration_is_the_worst_of_all_states(v: int) -> None:
    for seed in range(4):
        B, D = random_matrices(v, seed)
        for s in range(1, v):
            assert (worst_gap(B, D, s), worst_spread(B, D, s)) == enumerated_precision(B, D, s)


@settings(max_examples=20, deadline=None)
@given(v=st.integers(4, 12), s=st.integers(1, 11), seed=st.integers(0, 10**6))
def test_no_state_is_worse_than_the_worst(v: int, s: int, seed: int) -> None:
    s = min(s, v - 1)
    B, D = random_matrices(v, seed)
    order = np.random.default_rng(seed).permutation(v)
    tokens, absent = order[:s], order[s:]
    f = B[tokens[-1]] + sum(D[t] for t in tokens) / Fraction(s)
    assert min(f[absent]) - max(f[tokens]) >= worst_gap(B, D, s)
    assert max(f[absent]) - min(f[absent]) <= worst_spread(B, D, s)


def test_precision_of_a_model_is_that_of_its_matrices_when_attention_is_constant() -> None:
    v, rng = 6, np.random.default_rng(0)
    model = Minimal(v, d=4, d_k=2, d_v=3)
    parts = Parts(PLACEMENTS["none"])
    weights = {name: rng.normal(size=(2, *p.shape)) for name, p in model.parameters(parts).items()}
    weights["W_Q"][:] = 0
    gap = circuit_table(weights, parts, {"rms_epsilon": np.zeros(2)}, SetComplement(v))["gap_min"]
    for m in range(2):
        E, U, W_V, W_O = (weights[name][m] for name in ("E", "U", "W_V", "W_O"))
        B, D = E @ U, E @ W_V @ W_O @ U
        np.testing.assert_allclose(gap[m], [worst_gap(B, D, s) for s in range(1, v)], atol=1e-12)


# --- the hard-coded model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", SMALL)
@pytest.mark.parametrize("C", [Fraction(1), Fraction(2, 7)])
def test_hard_coded_gap(v: int, C: Fraction) -> None:
    B, D = checks.hard_coded_matrices(v, C)
    assert enumerated_precision(B, D, 1) == (1 + v * C, 0)
    for s in range(2, v):
        assert enumerated_precision(B, D, s) == (v * C / s, 0)


@settings(max_examples=10, deadline=None)
@given(v=st.integers(7, 20), s=st.integers(2, 19), C=st.fractions(Fraction(1, 9), 9))
def test_hard_coded_gap_beyond(v: int, s: int, C: Fraction) -> None:
    s = min(s, v - 1)
    B, D = checks.hard_coded_matrices(v, C)
    assert worst_gap(B, D, s) == v * C / s > C
    assert worst_spread(B, D, s) == 0


def test_hard_coded_matrices_are_the_printed_ones() -> None:
    weights = examples.hard_coded_weights(4, C=0.5)
    B = (weights["E"] @ weights["U"])[0]
    D = (weights["E"] @ weights["W_V"] @ weights["W_O"] @ weights["U"])[0]
    assert B.tolist() == [[-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, -1, 0], [1, 1, 1, 0]]
    assert (D == 2 * B).all()


@pytest.mark.parametrize("v", [*SMALL, 9, 16])
def test_hard_coded_model_attains_the_rank_bounds(v: int) -> None:
    B, D = checks.hard_coded_matrices(v, Fraction(1))
    assert exact_rank(B + D) == exact_rank(D) == v - 1


def test_hard_coded_tvd_through_the_ordinary_evaluation() -> None:
    v = 9
    task, problem = SetComplement(v), minimal_problem("none", v, s=2, batch=1, steps=1)
    engine = TorchEngine(problem, make_ensemble(problem, 1), dtype="float64")
    weights = examples.hard_coded_weights(v)
    parameters = problem.model.parameters(problem.parts)
    assert {name: array.shape[1:] for name, array in weights.items()} == {n: p.shape for n, p in parameters.items()}
    validation = task.validation(seed=0, use="report")
    lengths, tvd, _ = metrics.mean_by_length(engine.measure(weights, validation)["tvd"], validation.length_P)
    expected = [5.67e-6, 0.00216612, 0.01926968, 0.06628828, 0.15290232, 0.28532901, 0.46814447, 0.70518870]
    assert lengths.tolist() == list(range(1, 9))
    np.testing.assert_allclose(tvd[0], expected, atol=5e-9)


# --- ranks -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 9))
def test_lemma_rank(data: st.DataObject, n: int) -> None:
    entry = st.integers(-2, 2)
    u, v = (np.array(data.draw(st.lists(entry, min_size=n, max_size=n))) for _ in "uv")
    w = np.array(data.draw(st.lists(st.integers(-3, -1), min_size=n, max_size=n)))
    assert exact_rank(u + v[:, None] + np.diag(w)) >= n - 1


def test_lemma_needs_its_sign_condition() -> None:
    u, v, w = np.array([0, 1]), np.array([-1, 0]), np.array([1, -1])
    assert exact_rank(u + v[:, None] + np.diag(w)) == 0


@pytest.mark.parametrize("v", SMALL)
def test_rank_bounds_of_precise_models(v: int) -> None:
    for seed in range(30):
        form = checks.random_form(v, seed)
        B, D = compose(*form)
        assert worst_gap(B, D, 1) > 0
        assert worst_gap(B, D, 2) > 0
        assert exact_rank(B + D) >= v - 1
        assert exact_rank(D) >= v - 1
        zero, delta = form[0] - form[0], form[3]
        singular = compose(delta / v, zero, zero, delta, zero)[1]  # D 1 = 0
        assert exact_rank(singular) == v - 1


def test_exact_rank_sees_what_floats_do_not() -> None:
    hilbert = [[Fraction(1, i + j + 1) for j in range(12)] for i in range(12)]
    assert exact_rank(hilbert) == 12
    assert np.linalg.matrix_rank(np.array(hilbert, dtype=float)) < 12
    assert exact_rank(np.zeros((3, 4), dtype=int)) == 0
    assert exact_rank([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == 2


# --- the normal form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", SMALL)
def test_precision_at_lengths_1_and_2_forces_the_normal_form(v: int) -> None:
    assert theorem.free_dimensions(v) == 5 * v - 1
    equalities = np.concatenate([theorem.equality_rows(v, 1), theorem.equality_rows(v, 2)])
    x = np.concatenate([X.ravel() for X in compose(*checks.random_form(v, 0))])
    assert not (equalities @ x).any()


def test_with_three_tokens_the_form_is_not_forced() -> None:
    assert theorem.free_dimensions(3) == 15 > 5 * 3 - 1


@settings(max_examples=30, deadline=None)
@given(v=st.integers(3, 12), seed=st.integers(0, 10**6))
def test_fit_recovers_a_planted_form_exactly(v: int, seed: int) -> None:
    a, c, beta, delta, eps = planted = checks.random_form(v, seed)
    form = fit_normal_form(*compose(*planted))
    shift = sum(c) / v  # the gauge: sum c = 0
    for fitted, value in (
        (form.a, a + shift),
        (form.c, c - shift),
        (form.beta, beta - shift),
        (form.delta, delta),
        (form.eps, eps),
    ):
        assert (fitted == value).all()
    assert form.residual == form.gauged_residual == 0


@settings(max_examples=20, deadline=None)
@given(v=st.integers(3, 9), seed=st.integers(0, 10**6))
def test_fit_is_the_least_squares_solution(v: int, seed: int) -> None:
    B, D = np.random.default_rng(seed).normal(size=(2, v, v))
    basis = []
    for k in range(5 * v):
        parameters = np.zeros((5, v))
        parameters.flat[k] = 1
        basis.append(np.concatenate([X.ravel() for X in compose(*parameters)]))
    x = np.concatenate([B.ravel(), D.ravel()])
    solution = np.linalg.lstsq(np.array(basis).T, x, rcond=None)[0]
    left = np.linalg.norm(x - np.array(basis).T @ solution)
    gauge = np.array(basis[: 3 * v]).T
    matters = np.linalg.norm(x - gauge @ np.linalg.lstsq(gauge, x, rcond=None)[0])
    form = fit_normal_form(B, D)
    np.testing.assert_allclose(form.residual, left / np.linalg.norm(x))
    np.testing.assert_allclose(form.gauged_residual, left / matters)
    np.testing.assert_allclose(form.delta, solution[3 * v : 4 * v])
    np.testing.assert_allclose(form.eps, solution[4 * v :])
    assert form.residual <= form.gauged_residual < 1


def test_fit_works_on_many_models_at_once() -> None:
    B, D = np.random.default_rng(0).normal(size=(2, 3, 5, 5))
    form = fit_normal_form(B, D)
    assert form.residual.shape == (3,)
    np.testing.assert_allclose(form.eps[2], fit_normal_form(B[2], D[2]).eps)
    fitted = compose(form.a, form.c, form.beta, form.delta, form.eps)
    np.testing.assert_allclose(fit_normal_form(*fitted).residual, 0, atol=1e-15)
    assert fit_normal_form(np.zeros((4, 4)), np.zeros((4, 4))).residual == 0
    with pytest.raises(ValueError, match="at least 3 tokens"):
        fit_normal_form(np.zeros((2, 2)), np.zeros((2, 2)))


@pytest.mark.parametrize("v", SMALL)
def test_gap_of_a_form_at_each_token(v: int) -> None:
    form = checks.random_form(v, seed=3)
    B, D = compose(*form)
    delta, eps = form[3], form[4]
    for s in range(1, v):
        for tokens in states(v, s):
            f = B[tokens[-1]] + sum(D[t] for t in tokens) / Fraction(s)
            (top,) = set(np.delete(f, tokens))
            assert top - f[tokens[-1]] == eps[tokens[-1]] + delta[tokens[-1]] / s
            assert all(top - f[u] == delta[u] / s for u in tokens[:-1])
        assert worst_gap(B, D, s) == min([*(eps + delta / s), *(delta / s if s > 1 else [])])


# --- the table -------------------------------------------------------------------------------------------------------


def test_all_checks_hold_and_are_printed() -> None:
    found = checks.check_all(5)
    assert [check.statement for check in found if not check.holds] == []
    console = Console(file=io.StringIO(), width=200)
    print_checks([*found, checks.Check("a [false] one", "by hand", "2 = 3", holds=False)], console)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert text.count(" yes ") == len(found)
    assert " NO " in text
    assert "a [false] one" in text


def test_a_wrong_theory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "hard_coded_weights", lambda v, C=1.0: examples.simplex_weights(v, C))
    assert not checks.check_hard_coded_gap(range(4, 5)).holds
    assert not checks.check_hard_coded_tvd(range(4, 5)).holds


@pytest.mark.parametrize("v", [3, 10])
def test_v_out_of_range(v: int) -> None:
    with pytest.raises(ValueError, match=r"checked for v = 4\.\.9"):
        checks.check_all(v)


def test_the_hard_coded_model_is_a_model_like_any_other():
    model = examples.hard_coded_model(9)
    p = model([[4], [0, 8, 3]])
    assert np.isclose(p[0, 4], np.exp(-10) / (8 + np.exp(-10)), rtol=1e-4)
    tvd = []
    for s in range(1, 9):
        p_star = np.array([0] * s + [1 / (9 - s)] * (9 - s))
        tvd.append(0.5 * np.abs(model([list(range(s))])[0] - p_star).sum())
    expected = [5.67e-6, 0.00216612, 0.01926968, 0.06628828, 0.15290232, 0.28532901, 0.46814447, 0.70518870]
    assert np.allclose(tvd, expected, rtol=1e-3, atol=1e-7)


def test_no_model_that_merges_two_tokens_does_better() -> None:
    """A distribution with p_0 = p_1 is nowhere nearer to p* than the one that shares what is due to the two."""
    rng, v = np.random.default_rng(0), 5
    for s in range(1, v):
        best = Fraction(0)
        sets = list(combinations(range(v), s))
        for present in sets:
            p_star = np.array([(w not in present) / (v - s) for w in range(v)])
            p_NxV = rng.dirichlet(np.full(v, 0.3), 2_000)
            p_NxV[:, 0] = p_NxV[:, 1] = (p_NxV[:, 0] + p_NxV[:, 1]) / 2
            least = Fraction(int((0 in present) != (1 in present)), 2 * (v - s))
            assert metrics.total_variation(p_NxV, p_star).min() >= float(least) - 1e-12
            best += least
        assert best / len(sets) == least_merged_tvd(v, s)
