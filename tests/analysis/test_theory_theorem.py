"""Theorem (c), printed and corrected, and the closed form of examples."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worst_states import worst_gap, worst_spread

from resharpen.analysis.theory import checks, examples, theorem
from resharpen.analysis.theory.normal_form import compose, enumerated_precision, states
from resharpen.analysis.theory.theorem import certified_minimum, fractions, is_descending_ray

SMALL = range(4, 7)


def random_matrices(v: int, seed: int) -> tuple:
    B, D = np.random.default_rng([seed, v]).integers(-9, 10, (2, v, v))
    return fractions(B), fractions(D)


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
    """The program can say yes: with 3C for 2C the averages allow 3 - sigma >= 2 (1 + sigma), sigma = 1/3."""
    optimum = theorem.printed_slack(5, bound=3)
    assert optimum is not None
    assert -optimum.value == Fraction(1, 3)


@pytest.mark.parametrize("v", SMALL)
def test_corrected_hypothesis_gives_exactly_2_over_s(v: int) -> None:
    for s in range(1, v):
        for last in (True, False)[: 1 if s == 1 else 2]:
            optimum = theorem.corrected_minimum(v, s, last)
            assert optimum is not None
            assert optimum.value == 2
            B, D = np.array(optimum.x, dtype=object).reshape(2, v, v)
            assert enumerated_precision(B, D, s) == (Fraction(2, s), 0)


@settings(max_examples=25, deadline=None)
@given(v=st.integers(4, 10), seed=st.integers(0, 10**6))
def test_corrected_theorem_beyond(v: int, seed: int) -> None:
    a, c, beta, delta, eps = checks.random_form(v, seed)
    B, D = compose(a, c, beta, delta, abs(eps))
    C = min(worst_gap(B, D, 1), worst_gap(B, D, 2))
    for s in range(1, v):
        assert worst_gap(B, D, s) >= 2 * C / s
        assert worst_spread(B, D, s) == 0


@pytest.mark.parametrize("v", SMALL)
def test_without_the_condition_the_gap_falls_without_bound_from_length_3(v: int) -> None:
    assert [theorem.falls_without_bound(v, s) for s in range(1, v)] == [False, False, *[True] * (v - 3)]
    for far in (10, 1000):
        B, D = compose(*(fractions(np.full(v, x)) for x in (0, 0, 0, 2 + 2 * far, -far)))
        assert worst_gap(B, D, 1) >= 1
        assert worst_gap(B, D, 2) == 1
        assert worst_gap(B, D, 3) == -far + Fraction(2 + 2 * far, 3)


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
        assert examples.squared_gaps(v, s) == {(Fraction(v, (v - 1) * s) ** 2, Fraction(v * v, s * (v - s)))}
        assert Fraction(v * v, s * (v - s)) >= 4


@pytest.mark.parametrize("v", SMALL)
def test_norm_after_the_sum_is_exact(v: int) -> None:
    for s, residual in ((s, r) for s in range(2, v) for r in (1, 3)):
        normed = Fraction(v * v, s * (residual**2 * s * (v - 1) + (2 * residual + 1) * (v - s)))
        assert {pair[1] for pair in examples.squared_gaps(v, s, residual)} == {normed}
        np.testing.assert_allclose(examples.gap_after_sum(v, s, residual=residual) ** 2, float(normed))


@pytest.mark.parametrize("v", [4, 5, 6, 9])
@pytest.mark.parametrize(("kappa", "residual"), [(1.0, 1.0), (3.0, 0.25)])
def test_resharpening_in_the_package_with_the_residual(v: int, kappa: float, residual: float) -> None:
    s = np.arange(1, v)
    bonus = np.where(s == 1, residual * kappa * v / (v - 1), 0)
    plain = checks.simplex_gaps(v, "none", kappa, residual)
    np.testing.assert_allclose(plain, examples.plain_gap(v, s, kappa) + bonus, atol=1e-12)
    out = checks.simplex_gaps(v, "out", kappa, residual)
    np.testing.assert_allclose(out, examples.resharpened_gap(v, s, kappa) + bonus, atol=1e-12)
    assert (out >= 2 * kappa - 1e-12).all()
    post = examples.gap_after_sum(v, s, kappa, residual) * np.where(s == 1, 1 + residual, 1)
    np.testing.assert_allclose(checks.simplex_gaps(v, "post", kappa, residual), post, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(v=st.integers(2, 200), share=st.floats(0, 1), kappa=st.floats(0.01, 100))
def test_resharpened_gap_never_falls_below_2_kappa(v: int, share: float, kappa: float) -> None:
    s = 1 + int(share * (v - 2))
    subset = examples.corners(v)[:s].mean(axis=0)
    normed = subset / np.sqrt((subset**2).mean())
    logits = -kappa * examples.corners(v) @ normed
    found = logits[s:].min() - logits[:s].max()
    np.testing.assert_allclose(found, examples.resharpened_gap(v, s, kappa), rtol=1e-8)
    assert found >= 2 * kappa * (1 - 1e-9)
