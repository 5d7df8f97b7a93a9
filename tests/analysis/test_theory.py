"""Every statement of the theory: exhaustively and exactly for v <= 6, by properties beyond."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from resharpen import metrics
from resharpen.analysis import theory
from resharpen.analysis.theory import checks, examples, resharpening, theorem
from resharpen.analysis.theory.normal_form import compose, fit_normal_form
from resharpen.analysis.theory.precision import states
from resharpen.analysis.theory.rational import certified_minimum, exact_rank, fractions, is_descending_ray
from resharpen.engines.base import Ensemble, Problem
from resharpen.engines.torch_engine import TorchEngine
from resharpen.models import PLACEMENTS, Minimal
from resharpen.optim.hyperparameters import TABLE, draw
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
            assert (theory.worst_gap(B, D, s), theory.worst_spread(B, D, s)) == theory.enumerated_precision(B, D, s)


@settings(max_examples=20, deadline=None)
@given(v=st.integers(4, 12), s=st.integers(1, 11), seed=st.integers(0, 10**6))
def test_no_state_is_worse_than_the_worst(v: int, s: int, seed: int) -> None:
    s = min(s, v - 1)
    B, D = random_matrices(v, seed)
    order = np.random.default_rng(seed).permutation(v)
    tokens, absent = order[:s], order[s:]
    f = B[tokens[-1]] + sum(D[t] for t in tokens) / Fraction(s)
    assert min(f[absent]) - max(f[tokens]) >= theory.worst_gap(B, D, s)
    assert max(f[absent]) - min(f[absent]) <= theory.worst_spread(B, D, s)


def test_precision_of_a_model_is_that_of_its_matrices_when_attention_is_constant() -> None:
    v, rng = 6, np.random.default_rng(0)
    model = Minimal(v, d=4, d_k=2, d_v=3)
    weights = {name: rng.normal(size=(2, *shape)) for name, shape in model.matrices().items()}
    weights["W_Q"][:] = 0
    gap, spread = theory.model_precision(model, weights, PLACEMENTS["none"], np.zeros(2), SetComplement(v))
    for m in range(2):
        E, U, W_V, W_O = (weights[name][m] for name in ("E", "U", "W_V", "W_O"))
        B, D = E @ U, E @ W_V @ W_O @ U
        np.testing.assert_allclose(gap[m], [theory.worst_gap(B, D, s) for s in range(1, v)], atol=1e-12)
        np.testing.assert_allclose(spread[m], [theory.worst_spread(B, D, s) for s in range(1, v)], atol=1e-12)


# --- the hard-coded model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", SMALL)
@pytest.mark.parametrize("C", [Fraction(1), Fraction(2, 7)])
def test_hard_coded_gap(v: int, C: Fraction) -> None:
    B, D = checks.hard_coded_matrices(v, C)
    assert theory.enumerated_precision(B, D, 1) == (1 + v * C, 0)
    for s in range(2, v):
        assert theory.enumerated_precision(B, D, s) == (v * C / s, 0)


@settings(max_examples=10, deadline=None)
@given(v=st.integers(7, 20), s=st.integers(2, 19), C=st.fractions(Fraction(1, 9), 9))
def test_hard_coded_gap_beyond(v: int, s: int, C: Fraction) -> None:
    s = min(s, v - 1)
    B, D = checks.hard_coded_matrices(v, C)
    assert theory.worst_gap(B, D, s) == v * C / s > C
    assert theory.worst_spread(B, D, s) == 0


def test_hard_coded_matrices_are_the_printed_ones() -> None:
    weights = theory.hard_coded_weights(4, C=0.5)
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
    task, model = SetComplement(v), theory.smallest_model(v)
    problem = Problem(task, model, PLACEMENTS["none"], train_length=2, batch=1, steps=1, seed=0, setting="hard-coded")
    draw_M = np.arange(1)
    engine = TorchEngine(problem, Ensemble(draw_M, draw(TABLE, 0, "hard-coded", draw_M)), dtype="float64")
    weights = theory.hard_coded_weights(v)
    assert {name: array.shape[1:] for name, array in weights.items()} == model.matrices()
    validation = task.validation(seed=0, use="report")
    lengths, tvd, _ = metrics.mean_by_length(engine.evaluate(weights, validation), validation.length_P)
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
        assert theory.worst_gap(B, D, 1) > 0
        assert theory.worst_gap(B, D, 2) > 0
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
    np.testing.assert_allclose(fit_normal_form(*form.matrices()).residual, 0, atol=1e-15)
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
        assert fit_normal_form(B, D).gap(s) == theory.worst_gap(B, D, s)


# --- theorem (c) -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", SMALL)
def test_printed_hypothesis_has_no_slack(v: int) -> None:
    optimum = theorem.printed_slack(v)
    assert optimum is not None
    assert optimum.value == 0


@settings(max_examples=30, deadline=None)
@given(v=st.integers(4, 8), seed=st.integers(0, 10**6))
def test_mean_gap_at_length_1_is_the_sum_of_the_mean_gaps_at_length_2(v: int, seed: int) -> None:
    B, D = random_matrices(v, seed)
    one = [B[t, w] + D[t, w] - B[t, t] - D[t, t] for t in range(v) for w in range(v) if w != t]
    last, earlier = [], []
    for u, t in states(v, 2):
        f = B[t] + (D[t] + D[u]) / Fraction(2)
        last += [f[w] - f[t] for w in range(v) if w not in (t, u)]
        earlier += [f[w] - f[u] for w in range(v) if w not in (t, u)]
    assert sum(one) / len(one) == sum(last) / len(last) + sum(earlier) / len(earlier)


@pytest.mark.parametrize("v", [3, *SMALL, 8])
def test_averaging_identity(v: int) -> None:
    assert theorem.averaging_identity(v)


def test_a_weaker_upper_bound_would_leave_slack() -> None:
    """The program can say yes: delta = 5/2, eps = 0 has every gap of lengths 1, 2 above 1 and below 3 at length 1."""
    v = 5
    B, D = compose(*(fractions(np.full(v, x)) for x in (0, 0, 0, 2.5, 0)))
    assert theory.worst_gap(B, D, 2) == Fraction(5, 4)
    optimum = theorem.bounded_minimum(v, 3, bound=3)
    assert optimum is not None
    assert optimum.value == 1


@pytest.mark.parametrize("v", SMALL)
def test_corrected_hypothesis_gives_exactly_2_over_s(v: int) -> None:
    for s in range(1, v):
        for last in (True, False)[: 1 if s == 1 else 2]:
            optimum = theorem.corrected_minimum(v, s, last)
            assert optimum is not None
            assert optimum.value == 2
            B, D = np.array(optimum.x, dtype=object).reshape(2, v, v)
            assert theory.enumerated_precision(B, D, s) == (Fraction(2, s), 0)


@settings(max_examples=25, deadline=None)
@given(v=st.integers(4, 10), seed=st.integers(0, 10**6))
def test_corrected_theorem_beyond(v: int, seed: int) -> None:
    a, c, beta, delta, eps = checks.random_form(v, seed)
    B, D = compose(a, c, beta, delta, abs(eps))
    C = min(theory.worst_gap(B, D, 1), theory.worst_gap(B, D, 2))
    for s in range(1, v):
        assert theory.worst_gap(B, D, s) >= 2 * C / s
        assert theory.worst_spread(B, D, s) == 0


@pytest.mark.parametrize("v", SMALL)
def test_without_the_condition_the_gap_falls_without_bound_from_length_3(v: int) -> None:
    assert [theorem.falls_without_bound(v, s) for s in range(1, v)] == [False, False, *[True] * (v - 3)]
    for far in (10, 1000):
        B, D = compose(*(fractions(np.full(v, x)) for x in (0, 0, 0, 2 + 2 * far, -far)))
        assert theory.worst_gap(B, D, 1) >= 1
        assert theory.worst_gap(B, D, 2) == 1
        assert theory.worst_gap(B, D, 3) == -far + Fraction(2 + 2 * far, 3)


@pytest.mark.parametrize(("bound", "s", "expected"), [(2, 3, 2), (3, 3, 1), (3, 4, 0), (3, 5, -1), (5, 4, -4)])
def test_bounded_first_gap(bound: int, s: int, expected: int) -> None:
    optimum = theorem.bounded_minimum(6, s, bound)
    assert optimum is not None
    assert optimum.value == expected == 2 * (s - 1) - bound * (s - 2)


def test_certificates_refuse_what_is_not_proved() -> None:
    one, none = np.array([[1]]), np.zeros((0, 1), dtype=np.int64)
    optimum = certified_minimum(np.array([2]), one, np.array([3]), none)
    assert optimum is not None
    assert (optimum.value, optimum.x, optimum.y) == (6, [3], [2])
    assert certified_minimum(np.array([-1]), one, np.array([3]), none) is None  # unbounded
    # a solution of denominator 10007 is not among the fractions tried, so nothing is claimed
    assert certified_minimum(np.array([1]), np.array([[10007]]), np.array([1]), none) is None
    assert is_descending_ray([Fraction(1)], np.array([-1]), one, none)
    assert not is_descending_ray([Fraction(1)], np.array([1]), one, none)
    assert not is_descending_ray([Fraction(-1)], np.array([1]), one, none)


# --- resharpening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", [4, 5, 9])
def test_corners_of_the_simplex(v: int) -> None:
    p = examples.corners(v)
    assert p.shape == (v, v - 1)
    np.testing.assert_allclose(p @ p.T, np.where(np.eye(v) == 1, 1, -1 / (v - 1)), atol=1e-14)


@pytest.mark.parametrize("v", range(3, 8))
def test_closed_form_of_resharpening_is_exact(v: int) -> None:
    for s in range(1, v):
        assert resharpening.squared_gaps(v, s) == {(Fraction(v, (v - 1) * s) ** 2, Fraction(v * v, s * (v - s)))}
        assert Fraction(v * v, s * (v - s)) >= 4


@pytest.mark.parametrize("v", SMALL)
def test_norm_after_the_sum_is_exact(v: int) -> None:
    for s, residual in ((s, r) for s in range(2, v) for r in (1, 3)):
        normed = Fraction(v * v, s * (residual**2 * s * (v - 1) + (2 * residual + 1) * (v - s)))
        assert {pair[1] for pair in resharpening.squared_gaps(v, s, residual)} == {normed}
        np.testing.assert_allclose(resharpening.gap_after_sum(v, s, residual=residual) ** 2, float(normed))


@pytest.mark.parametrize("v", [4, 5, 6, 9])
@pytest.mark.parametrize(("kappa", "residual"), [(1.0, 1.0), (3.0, 0.25)])
def test_resharpening_in_the_package_with_the_residual(v: int, kappa: float, residual: float) -> None:
    s = np.arange(1, v)
    bonus = np.where(s == 1, resharpening.last_token_bonus(v, kappa, residual), 0)
    plain = checks.simplex_gaps(v, "none", kappa, residual)
    np.testing.assert_allclose(plain, theory.plain_gap(v, s, kappa) + bonus, atol=1e-12)
    out = checks.simplex_gaps(v, "out", kappa, residual)
    np.testing.assert_allclose(out, theory.resharpened_gap(v, s, kappa) + bonus, atol=1e-12)
    assert (out >= 2 * kappa - 1e-12).all()
    post = resharpening.gap_after_sum(v, s, kappa, residual) * np.where(s == 1, 1 + residual, 1)
    np.testing.assert_allclose(checks.simplex_gaps(v, "post", kappa, residual), post, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(v=st.integers(2, 200), share=st.floats(0, 1), kappa=st.floats(0.01, 100))
def test_resharpened_gap_never_falls_below_2_kappa(v: int, share: float, kappa: float) -> None:
    s = 1 + int(share * (v - 2))
    subset = examples.corners(v)[:s].mean(axis=0)
    normed = subset / np.sqrt((subset**2).mean())
    logits = -kappa * examples.corners(v) @ normed
    found = logits[s:].min() - logits[:s].max()
    np.testing.assert_allclose(found, theory.resharpened_gap(v, s, kappa), rtol=1e-8)
    assert found >= 2 * kappa * (1 - 1e-9)


# --- the table -------------------------------------------------------------------------------------------------------


def test_all_checks_hold_and_are_printed() -> None:
    found = theory.check_all(5)
    assert [check.statement for check in found if not check.holds] == []
    console = Console(file=io.StringIO(), width=200)
    print_checks([*found, theory.Check("a [false] one", "by hand", "2 = 3", holds=False)], console)
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
        theory.check_all(v)
