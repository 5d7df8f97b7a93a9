"""Every statement of the theory, checked by computation for v = 4 .. v_max; `docs/theory.md` holds the proofs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from resharpen.analysis.theory import examples, merging, resharpening, theorem
from resharpen.analysis.theory.normal_form import compose, fit_normal_form
from resharpen.analysis.theory.precision import Matrix, enumerated_precision, model_precision, worst_gap, worst_spread
from resharpen.analysis.theory.rational import exact_rank, fractions
from resharpen.errors import UserError
from resharpen.metrics import Floats
from resharpen.models import Minimal
from resharpen.parts import PLACEMENTS, Parts
from resharpen.tasks import SetComplement

SMALLEST, LARGEST = 4, 9
"""Below 4 the normal form is not forced; above 9 the states are no longer enumerated."""


@dataclass(frozen=True)
class Check:
    statement: str
    method: str
    result: str
    holds: bool


def check_all(v_max: int) -> list[Check]:
    """All statements for v = 4 .. v_max; about 2 s at v_max = 7."""
    if not SMALLEST <= v_max <= LARGEST:
        raise UserError(f"v = {v_max}: the theory is checked for v = {SMALLEST}..{LARGEST}")
    vs = range(SMALLEST, v_max + 1)
    return [check(vs) for check in CHECKS]


def random_form(v: int, seed: int) -> list[Matrix]:
    """Fractions (a, c, beta, delta, eps) with delta > 0 and eps + delta/2 > 0: precise at lengths 1 and 2."""
    rng = np.random.default_rng([v, seed])
    a, c, beta = rng.integers(-9, 10, (3, v))
    delta = rng.integers(6, 20, v)
    eps = rng.integers(-2, 9, v)
    return [fractions(x) / 3 for x in (a, c, beta, delta, eps)]


def check_hard_coded_gap(vs: range) -> Check:
    wrong = 0
    for (v, s), C in product(lengths(vs), (Fraction(1), Fraction(1, 3))):
        B, D = hard_coded_matrices(v, C)
        expected = 1 + v * C if s == 1 else v * C / s
        wrong += enumerated_precision(B, D, s) != (expected, 0)
        wrong += (worst_gap(B, D, s), worst_spread(B, D, s)) != (expected, 0)
    return Check(
        "Example 4.1: gap 1 + vC at length 1, vC/s from 2 on",
        f"every state in fractions, v = {span(vs)}, C = 1, 1/3",
        agreement(wrong),
        wrong == 0,
    )


def hard_coded_matrices(v: int, C: Fraction) -> tuple[Matrix, Matrix]:
    """(B, D) of Example 4.1 in exact arithmetic, from the package's own weights: D = v C E U."""
    weights = examples.hard_coded_weights(v)
    B = fractions((weights["E"] @ weights["U"])[0])
    return B, v * C * B


def check_hard_coded_tvd(vs: range) -> Check:
    worst = max(float(np.abs(tvd_by_length(v) - closed_tvd(v)).max()) for v in vs)
    return Check(
        "Example 4.1 as weights of the package: TVD in closed form",
        f"logits of placement none over every state, v = {span(vs)}",
        f"largest deviation {worst:.1e}",
        worst < 1e-14,
    )


def closed_tvd(v: int) -> Floats:
    return np.array([examples.hard_coded_tvd(v, s) for s in range(1, v)])


def tvd_by_length(v: int) -> Floats:
    import torch

    from resharpen.metrics import mean_by_length, total_variation

    task = SetComplement(v)
    validation = task.validation(seed=0, use="report")
    theta = {name: torch.tensor(array) for name, array in examples.hard_coded_weights(v).items()}
    tokens, zero = torch.as_tensor(validation.inputs_NxL), torch.zeros(1, dtype=torch.float64)
    logits = Minimal.usual(v).logits(theta, tokens, Parts(PLACEMENTS["none"]), {"rms_epsilon": zero})
    p = logits.softmax(-1).numpy()[:, validation.scored_NxL]
    p_star = task.p_star(validation.inputs_NxL)[validation.scored_NxL]
    return mean_by_length(total_variation(p, p_star), validation.length_P)[1][0]


def check_lemma(vs: range) -> Check:
    small = [np.array(x) for x in product((-1, 0, 1), repeat=3)]
    lowest = min(exact_rank(u + v[:, None] - np.diag(w)) for u in small for v in small for w in ((1, 1, 1), (1, 2, 3)))
    short = [n - 1 - rank for n in vs for rank in sampled_lemma_ranks(n)]
    return Check(
        "Lemma A.1: 1u' + v1' + diag(w), w < 0, has rank >= n-1",
        f"exact ranks: all u, v in {{-1,0,1}}^3; 200 random for each n = {span(vs)}",
        f"smallest rank minus (n-1): {min(lowest - 2, -max(short))}",
        lowest >= 2 and max(short) <= 0,
    )


def sampled_lemma_ranks(n: int, samples: int = 200) -> Iterator[int]:
    """Exact ranks for small integers, where coincidences are common: u = -v + const makes the rank drop to n-1."""
    rng = np.random.default_rng(n)
    for _ in range(samples):
        u, v, w = rng.integers(-2, 3, n), rng.integers(-2, 3, n), rng.integers(1, 4, n)
        yield exact_rank(u + v[:, None] - np.diag(w))


def check_rank_bounds(vs: range) -> Check:
    lowest = []
    for v, seed in product(vs, range(20)):
        generic = random_form(v, seed)
        _, c, _, delta, eps = generic
        # with row constants delta/v and (delta+eps)/v the vector 1 is in both kernels: as singular as it gets
        for form in (generic, (delta / v, c - c, eps / v, delta, eps)):
            B, D = compose(*form)
            lowest += [exact_rank(B + D) - (v - 1), exact_rank(D) - (v - 1)]
    return Check(
        "Theorem (a), (b): rank(B+D) >= v-1 and rank(D) >= v-1",
        f"exact ranks of 20 random and 20 singular solutions for each v = {span(vs)}",
        f"smallest rank minus (v-1): {min(lowest)}",
        min(lowest) >= 0,
    )


def check_bounds_attained(vs: range) -> Check:
    above = 0
    for v in vs:
        B, D = hard_coded_matrices(v, Fraction(1))
        above += (exact_rank(B + D), exact_rank(D)) != (v - 1, v - 1)
    return Check(
        "(a), (b) are attained: Example 4.1 has both ranks exactly v-1",
        f"exact ranks, v = {span(vs)}",
        agreement(above),
        above == 0,
    )


def check_forced_form(vs: range) -> Check:
    free = [theorem.free_dimensions(v) for v in vs]
    contained = all(
        fit_normal_form(*compose(*random_form(v, 0))).residual == 0
        and all(worst_spread(*compose(*random_form(v, 0)), s) == 0 for s in range(1, v))
        for v in vs
    )
    return Check(
        "Precision at lengths 1, 2 forces the normal form",
        f"exact rank of the equalities, v = {span(vs)}: 5v-1 free dimensions?",
        ", ".join(str(n) for n in free),
        contained and free == [5 * v - 1 for v in vs],
    )


def check_gaps_of_form(vs: range) -> Check:
    wrong = 0
    for (v, s), seed in product(lengths(vs), range(2)):
        form = random_form(v, seed)
        B, D = compose(*form)
        delta, eps = form[3], form[4]
        worst = min([*(eps + delta / s), *(delta / s if s > 1 else [])])
        wrong += enumerated_precision(B, D, s) != (worst, 0)
    return Check(
        "In normal form: gap eps_t + delta_t/s at the last token, delta_t/s before",
        f"every state of random forms in fractions, v = {span(vs)}",
        agreement(wrong),
        wrong == 0,
    )


def check_vacuous(vs: range) -> Check:
    slacks = [theorem.printed_slack(v) for v in vs]
    values = [None if slack is None else -slack.value for slack in slacks]
    identity = all(theorem.averaging_identity(v) for v in vs)
    return Check(
        "Theorem (c) as printed is vacuous: its hypotheses exclude each other",
        f"linear program with rational certificate, v = {span(vs)}; averaging identity in fractions",
        f"largest slack {', '.join(map(str, values))}; identity {'exact' if identity else 'FAILS'}",
        identity and all(value == 0 for value in values),
    )


def check_corrected(vs: range) -> Check:
    cases = [(v, s, last) for v, s in lengths(vs) for last in (True, False) if last or s > 1]
    optima = [theorem.corrected_minimum(v, s, last) for v, s, last in cases]
    values = {None if optimum is None else optimum.value for optimum in optima}
    return Check(
        "Theorem (c) corrected (eps >= 0): the smallest gap at length s is exactly 2C/s",
        f"{len(cases)} linear programs with rational certificates, v = {span(vs)}",
        f"s x gap = {', '.join(f'{value}C' for value in values)} in all of them",
        values == {Fraction(2)},
    )


def check_unbounded(vs: range) -> Check:
    falls = {(v, s) for v, s in lengths(vs) if theorem.falls_without_bound(v, s)}
    return Check(
        "Without that condition the gap has no lower bound, exactly from s = 3 on",
        f"a rational ray for every s, v = {span(vs)}",
        f"unbounded at s = {', '.join(map(str, sorted({s for _, s in falls})))}",
        falls == {(v, s) for v, s in lengths(vs) if s >= 3},
    )


def check_bounded(vs: range) -> Check:
    cases = [(v, s, K) for v, s in lengths(vs) for K in (2, 3, 5) if s >= 3]
    wrong = 0
    for v, s, K in cases:
        optimum = theorem.bounded_minimum(v, s, K)
        wrong += optimum is None or optimum.value != 2 * (s - 1) - K * (s - 2)
    return Check(
        "If the gaps at length 1 are at most KC, K >= 2: at length s >= (2(s-1) - K(s-2)) C/s, sharp",
        f"{len(cases)} linear programs with rational certificates, K = 2, 3, 5",
        agreement(wrong),
        wrong == 0,
    )


def check_resharpening(vs: range) -> Check:
    wrong = 0
    for v, s in lengths(vs):
        plain, normed = Fraction(v, (v - 1) * s) ** 2, Fraction(v * v, s * (v - s))
        wrong += resharpening.squared_gaps(v, s) != {(plain, normed)} or normed < 4
    return Check(
        "Resharpening: gap kappa v/((v-1)s) becomes kappa v/sqrt(s(v-s)) >= 2 kappa",
        f"squared gaps of every state in fractions, v = {span(vs)}",
        agreement(wrong),
        wrong == 0,
    )


def check_resharpening_model(vs: range) -> Check:
    worst = 0.0
    for v in vs:
        s = np.arange(1, v)
        bonus = np.where(s == 1, resharpening.last_token_bonus(v), 0)
        none, out = simplex_gaps(v, "none"), simplex_gaps(v, "out")
        post = resharpening.gap_after_sum(v, s) * np.where(s == 1, 2, 1)
        for found, formula in (
            (none, resharpening.plain_gap(v, s) + bonus),
            (out, resharpening.resharpened_gap(v, s) + bonus),
            (simplex_gaps(v, "post"), post),
        ):
            worst = max(worst, float(np.abs(found - formula).max()))
    return Check(
        "The same with the residual stream (embedding = corners): none, out, post",
        f"logits of the package's model over every state, v = {span(vs)}",
        f"largest deviation {worst:.1e}",
        worst < 1e-12,
    )


def check_merged(vs: range) -> Check:
    wrong = 0
    for v, s in lengths(vs):
        least, hidden = merging.enumerated_merged_tvd(v, s)
        wrong += least != merging.least_merged_tvd(v, s) or hidden != merging.hidden_merged_tvd(v, s)
    return Check(
        "Two tokens with one logit cost a TVD of s/(v(v-1)) or more; below v-1 twice that if one hides both",
        f"every set in fractions, v = {span(vs)}",
        agreement(wrong),
        wrong == 0,
    )


def simplex_gaps(v: int, placement: str, kappa: float = 1.0, residual: float = 1.0) -> Floats:
    """Worst gap by length of the simplex model under a placement, through the package's own forward pass."""
    model, parts = Minimal.usual(v), Parts(PLACEMENTS[placement])
    weights = examples.with_gains(examples.simplex_weights(v, kappa, residual), model, parts)
    return model_precision(model, weights, parts, np.zeros(1), SetComplement(v))[0][0]


def lengths(vs: range) -> list[tuple[int, int]]:
    return [(v, s) for v in vs for s in range(1, v)]


def span(vs: range) -> str:
    return f"{vs[0]}..{vs[-1]}" if len(vs) > 1 else str(vs[0])


def agreement(wrong: int) -> str:
    return "agrees everywhere" if wrong == 0 else f"{wrong} disagreements"


CHECKS = (
    check_hard_coded_gap,
    check_hard_coded_tvd,
    check_lemma,
    check_rank_bounds,
    check_bounds_attained,
    check_forced_form,
    check_gaps_of_form,
    check_vacuous,
    check_corrected,
    check_unbounded,
    check_bounded,
    check_resharpening,
    check_resharpening_model,
    check_merged,
)
