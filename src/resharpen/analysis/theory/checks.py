"""Every statement of the theory, checked by computation for v = 4 .. v_max; `docs/theory.md` has the proofs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np

from resharpen import streams
from resharpen.analysis.circuits import Table, circuit_table
from resharpen.analysis.theory import examples, normal_form, other_tasks, theorem
from resharpen.analysis.theory.normal_form import Matrix, compose, enumerated_precision, fit_normal_form
from resharpen.analysis.theory.theorem import exact_rank, fractions
from resharpen.errors import UserError
from resharpen.metrics import Floats
from resharpen.models import Minimal
from resharpen.parts import PLACEMENTS, Parts
from resharpen.tasks import Recall, SetComplement, WeightedComplement
from resharpen.tasks.set_complement import states

SMALLEST, LARGEST = 4, 9
"""Below 4 a solution need not have the normal form; above 9 the states are not enumerated."""


@dataclass(frozen=True)
class Check:
    statement: str
    method: str
    result: str
    holds: bool


Statement = Callable[[range], tuple[str, bool]]
"""From the values of v: the result in words, and whether the statement holds."""
CHECKS: list[Callable[[range], Check]] = []


def check_all(v_max: int) -> list[Check]:
    """All statements for v = 4 .. v_max; about 2 s at v_max = 7."""
    if not SMALLEST <= v_max <= LARGEST:
        raise UserError(f"v = {v_max}: the theory is checked for v = {SMALLEST}..{LARGEST}")
    return [check(range(SMALLEST, v_max + 1)) for check in CHECKS]


def check(statement: str, method: str) -> Callable[[Statement], Callable[[range], Check]]:
    """Add a function to CHECKS; VS in the method stands for the values of v."""

    def add(function: Statement) -> Callable[[range], Check]:
        def checked(vs: range) -> Check:
            span = f"{vs[0]}..{vs[-1]}" if len(vs) > 1 else str(vs[0])
            return Check(statement, method.replace("VS", span), *function(vs))

        CHECKS.append(checked)
        return checked

    return add


def agreement(cases: Iterable[bool]) -> tuple[str, bool]:
    """The result of a check that compares two values in many cases."""
    agree = list(cases)
    wrong = agree.count(False)
    return (f"{wrong} of {len(agree)} cases disagree" if wrong else f"all {len(agree)} cases agree"), wrong == 0


def lengths(vs: range) -> list[tuple[int, int]]:
    return [(v, s) for v in vs for s in range(1, v)]


def random_form(v: int, seed: int) -> list[Matrix]:
    """Fractions (a, c, beta, delta, eps) with delta > 0 and eps + delta/2 > 0: precise at lengths 1 and 2."""
    rng = np.random.default_rng([v, seed])
    a, c, beta = rng.integers(-9, 10, (3, v))
    delta = rng.integers(6, 20, v)
    eps = rng.integers(-2, 9, v)
    return [fractions(x) / 3 for x in (a, c, beta, delta, eps)]


def hard_coded_matrices(v: int, C: Fraction) -> tuple[Matrix, Matrix]:
    """(B, D) of Example 4.1 in exact arithmetic, from the package's own weights: D = v C E U."""
    weights = examples.hard_coded_weights(v)
    B = fractions((weights["E"] @ weights["U"])[0])
    return B, v * C * B


def model_table(weights: examples.Weights, placement: str) -> Table:
    """The circuit table of a hand-written model, with gains of one and epsilon 0."""
    v, parts = weights["E"].shape[1], Parts(PLACEMENTS[placement])
    weights = examples.with_gains(weights, Minimal.usual(v), parts)
    return circuit_table(weights, parts, {"rms_epsilon": np.zeros(1)}, SetComplement(v))


def simplex_gaps(v: int, placement: str, kappa: float = 1.0, residual: float = 1.0) -> Floats:
    """Smallest gap by length of the simplex model."""
    return model_table(examples.simplex_weights(v, kappa, residual), placement)["gap_min"][0]


@check("Example 4.1: gap 1 + vC at length 1, vC/s from 2 on", "every state in fractions, v = VS, C = 1, 1/3")
def check_hard_coded_gap(vs: range) -> tuple[str, bool]:
    return agreement(
        enumerated_precision(*hard_coded_matrices(v, C), s) == (1 + v * C if s == 1 else v * C / s, 0)
        for (v, s), C in product(lengths(vs), (Fraction(1), Fraction(1, 3)))
    )


@check("Example 4.1 as weights of the package: TVD in closed form", "logits of placement none over every state, v = VS")
def check_hard_coded_tvd(vs: range) -> tuple[str, bool]:
    worst = 0.0
    for v in vs:
        closed = [examples.hard_coded_tvd(v, s) for s in range(1, v)]
        found = model_table(examples.hard_coded_weights(v), "none")["tvd"][0]
        worst = max(worst, float(np.abs(found - closed).max()))
    return f"largest deviation {worst:.1e}", worst < 1e-14


@check(
    "Lemma A.1: 1u' + v1' + diag(w), w < 0, has rank >= n-1",
    "exact ranks: all u, v in {-1,0,1}^3; 200 random for each n = VS",
)
def check_lemma(vs: range) -> tuple[str, bool]:
    def samples() -> Iterator[tuple[np.ndarray, ...]]:
        small = [np.array(x) for x in product((-1, 0, 1), repeat=3)]
        yield from product(small, small, np.array([(1, 1, 1), (1, 2, 3)]))
        # small integers make coincidences common: u = -v + const makes the rank drop to n-1
        for n in vs:
            rng = np.random.default_rng(n)
            yield from ((rng.integers(-2, 3, n), rng.integers(-2, 3, n), rng.integers(1, 4, n)) for _ in range(200))

    lowest = min(exact_rank(u + v[:, None] - np.diag(w)) - (len(u) - 1) for u, v, w in samples())
    return f"smallest rank minus (n-1): {lowest}", lowest >= 0


@check(
    "Theorem (a), (b): rank(B+D) >= v-1 and rank(D) >= v-1",
    "exact ranks of 20 random and 20 singular solutions for each v = VS",
)
def check_rank_bounds(vs: range) -> tuple[str, bool]:
    lowest = []
    for v, seed in product(vs, range(20)):
        generic = random_form(v, seed)
        _, c, _, delta, eps = generic
        # with row constants delta/v and (delta+eps)/v the vector 1 is in both kernels: as singular as it gets
        for form in (generic, (delta / v, c - c, eps / v, delta, eps)):
            B, D = compose(*form)
            lowest += [exact_rank(B + D) - (v - 1), exact_rank(D) - (v - 1)]
    return f"smallest rank minus (v-1): {min(lowest)}", min(lowest) >= 0


@check("(a), (b) are attained: Example 4.1 has both ranks exactly v-1", "exact ranks, v = VS")
def check_bounds_attained(vs: range) -> tuple[str, bool]:
    matrices = [hard_coded_matrices(v, Fraction(1)) for v in vs]
    return agreement(exact_rank(B + D) == exact_rank(D) == len(D) - 1 for B, D in matrices)


@check(
    "Precision at lengths 1, 2 forces the normal form",
    "exact rank of the equalities, v = VS: 5v-1 free dimensions?",
)
def check_forced_form(vs: range) -> tuple[str, bool]:
    free = [theorem.free_dimensions(v) for v in vs]
    forms = [compose(*random_form(v, 0)) for v in vs]
    contained = all(fit_normal_form(*form).residual == 0 for form in forms) and not any(
        enumerated_precision(*form, s)[1] for form in forms for s in range(1, len(form[0]))
    )
    return ", ".join(str(n) for n in free), contained and free == [5 * v - 1 for v in vs]


@check(
    "In normal form: gap eps_t + delta_t/s at the last token, delta_t/s before",
    "every state of random forms in fractions, v = VS",
)
def check_gaps_of_form(vs: range) -> tuple[str, bool]:
    def cases() -> Iterator[bool]:
        for (v, s), seed in product(lengths(vs), range(2)):
            form = random_form(v, seed)
            delta, eps = form[3], form[4]
            worst = min([*(eps + delta / s), *(delta / s if s > 1 else [])])
            yield enumerated_precision(*compose(*form), s) == (worst, 0)

    return agreement(cases())


@check(
    "Theorem (c) as printed is vacuous: its hypotheses exclude each other",
    "linear program with rational certificate, v = VS; averaging identity in fractions",
)
def check_vacuous(vs: range) -> tuple[str, bool]:
    slacks = [theorem.printed_slack(v) for v in vs]
    values = [None if slack is None else -slack.value for slack in slacks]
    identity = all(theorem.averaging_identity(v) for v in vs)
    result = f"largest slack {', '.join(map(str, values))}; identity {'exact' if identity else 'FAILS'}"
    return result, identity and all(value == 0 for value in values)


@check(
    "Theorem (c) corrected (eps >= 0): the smallest gap at length s is exactly 2C/s",
    "linear programs with rational certificates, v = VS",
)
def check_corrected(vs: range) -> tuple[str, bool]:
    cases = [(v, s, last) for v, s in lengths(vs) for last in (True, False) if last or s > 1]
    optima = [theorem.corrected_minimum(*case) for case in cases]
    values = {None if optimum is None else optimum.value for optimum in optima}
    gaps = ", ".join(f"{value}C" for value in values)
    return f"s x gap = {gaps} in all {len(cases)} cases", values == {Fraction(2)}


@check("Without that condition the gap has no lower bound, exactly from s = 3 on", "a rational ray for every s, v = VS")
def check_unbounded(vs: range) -> tuple[str, bool]:
    falls = {(v, s) for v, s in lengths(vs) if theorem.falls_without_bound(v, s)}
    found = ", ".join(map(str, sorted({s for _, s in falls})))
    return f"unbounded at s = {found}", falls == {(v, s) for v, s in lengths(vs) if s >= 3}


@check(
    "If the gaps at length 1 are at most KC, K >= 2: at length s >= (2(s-1) - K(s-2)) C/s, sharp",
    "linear programs with rational certificates, v = VS, K = 2, 3, 5",
)
def check_bounded(vs: range) -> tuple[str, bool]:
    cases = [(v, s, K) for v, s in lengths(vs) for K in (2, 3, 5) if s >= 3]
    optima = [theorem.bounded_minimum(*case) for case in cases]
    return agreement(
        optimum is not None and optimum.value == 2 * (s - 1) - K * (s - 2)
        for (_, s, K), optimum in zip(cases, optima, strict=True)
    )


@check(
    "Resharpening: gap kappa v/((v-1)s) becomes kappa v/sqrt(s(v-s)) >= 2 kappa",
    "squared gaps of every state in fractions, v = VS",
)
def check_resharpening(vs: range) -> tuple[str, bool]:
    return agreement(
        examples.squared_gaps(v, s) == {(Fraction(v, (v - 1) * s) ** 2, normed)} and normed >= 4
        for v, s in lengths(vs)
        for normed in (Fraction(v * v, s * (v - s)),)
    )


@check(
    "The same with the residual stream (embedding = corners): none, out, post",
    "logits of the package's model over every state, v = VS",
)
def check_resharpening_model(vs: range) -> tuple[str, bool]:
    worst = 0.0
    for v in vs:
        s = np.arange(1, v)
        bonus = np.where(s == 1, v / (v - 1), 0)  # at length 1 the gap is at the last token
        closed = {
            "none": examples.plain_gap(v, s) + bonus,
            "out": examples.resharpened_gap(v, s) + bonus,
            "post": examples.gap_after_sum(v, s) * np.where(s == 1, 2, 1),
        }
        worst = max(worst, *(float(np.abs(simplex_gaps(v, name) - gaps).max()) for name, gaps in closed.items()))
    return f"largest deviation {worst:.1e}", worst < 1e-12


@check(
    "Two tokens with one logit cost a TVD of at least s/(v(v-1)); below v-1 twice that if one hides both",
    "every set in fractions, v = VS",
)
def check_merged(vs: range) -> tuple[str, bool]:
    return agreement(
        normal_form.enumerated_merged_tvd(v, s) == (least, least * (1 if s == v - 1 else 2))
        for v, s in lengths(vs)
        for least in (normal_form.least_merged_tvd(v, s),)
    )


def histograms(v: int, n: int) -> list[tuple[int, ...]]:
    """How often each of v tokens can occur among n."""
    return [tuple(np.bincount(x, minlength=v).tolist()) for x in combinations_with_replacement(range(v), n)]


@check(
    "Majority by constant attention: gaps kappa v (c_max-c)/((v-1)(n+2)), normed kappa v (c_max-c)/sqrt((v-1) S)",
    "every question of up to 4 items through the package's model, v = 2, 3, VS",
)
def check_majority(vs: range) -> tuple[str, bool]:
    worst = 0.0
    for v, n, (placement, normed) in product((2, 3, *vs), range(1, 5), (("none", False), ("out", True))):
        counts = histograms(v, n)
        questions = [[v, *np.repeat(np.arange(v), c), v + 1] for c in counts]
        logits = other_tasks.last_logits(other_tasks.majority_weights(v), placement, questions)[:, :v]
        closed = np.array([other_tasks.majority_gap(v, c, normed=normed) for c in counts])
        worst = max(worst, float(np.abs(logits.max(1, keepdims=True) - logits - closed).max()))
    return f"largest deviation {worst:.1e}", worst < 1e-8


@check(
    "With a norm the smallest gap of majority is kappa sqrt(8) at every n for v = 2, and falls like 1/n for v >= 3",
    "every histogram of up to 7 items against the bound, sharp at odd n, v = 2, 3, VS",
)
def check_majority_bound(vs: range) -> tuple[str, bool]:
    def cases() -> Iterator[bool]:
        for v, n in product((2, 3, *vs), range(1, 8)):
            gaps = np.concatenate([other_tasks.majority_gap(v, c, normed=True) for c in histograms(v, n)])
            least, bound = gaps[gaps > 0].min(), other_tasks.majority_bound(v, n)
            yield bool(np.isclose(least, bound, rtol=1e-12) if n % 2 or v == 2 else least > bound)

    return agreement(cases())


@check(
    "Weighted-complement: with the weights in the residual stream, none and out have the gaps of Set Complement",
    "logits minus log-weights of the package's model over every state, v = VS, ratio 0.5, 2",
)
def check_weighted(vs: range) -> tuple[str, bool]:
    worst = 0.0
    for (v, s), ratio in product(lengths(vs), (0.5, 2.0)):
        task, tokens = WeightedComplement(v, ratio), np.array(list(states(v, s)))
        for placement, gap in (("none", examples.plain_gap), ("out", examples.resharpened_gap)):
            f = other_tasks.last_logits(other_tasks.weighted_weights(task), placement, tokens) - np.log(task.weight_V)
            wider = np.sqrt(v / (v - 1)) if placement == "out" else 1.0  # corners span v-1 of d = v coordinates
            expected = np.zeros(f.shape)
            np.put_along_axis(expected, tokens, wider * gap(v, s), axis=1)
            expected[np.arange(len(f)), tokens[:, -1]] += v / (v - 1)  # of the residual stream
            worst = max(worst, float(np.abs(f.max(1, keepdims=True) - f - expected).max()))
    return f"largest deviation {worst:.1e}", worst < 1e-8


@check(
    "A norm on the sum (post) raises the weights to a power that depends on the length",
    "log-ratios of absent tokens in the package's model over every state, v = VS, ratio 2",
)
def check_weighted_post(vs: range) -> tuple[str, bool]:
    worst, powers = 0.0, []
    for v, s in lengths(vs):
        task, tokens = WeightedComplement(v, 2.0), np.array(list(states(v, s)))
        f = other_tasks.last_logits(other_tasks.weighted_weights(task), "post", tokens)
        power = other_tasks.post_power(v, s)
        absent = np.ones(f.shape, bool)
        np.put_along_axis(absent, tokens, False, axis=1)
        rest = np.where(absent, f - power * np.log(task.weight_V), np.nan)
        worst = max(worst, float((np.nanmax(rest, 1) - np.nanmin(rest, 1)).max()))
        powers += [power] if v == vs[-1] else []
    said = f"largest deviation {worst:.1e}; powers {powers[0]:.2f} .. {powers[-1]:.2f} at v = {vs[-1]}"
    return said, worst < 1e-8 and powers == sorted(powers)


@check(
    "Recall by two layers: gap (e^b - 1 + c_answer - c)/(e^b - 1 + sum c), so b has to grow like log n",
    "random questions of 2..40 pairs, b = 1, 4, log n + 1: closed form, and errors",
)
def check_recall(vs: range) -> tuple[str, bool]:
    worst, errors = 0.0, {}
    for n, (name, sharp) in product((2, 10, 40), (("1", 1.0), ("4", 4.0), ("log n + 1", None))):
        task, b = Recall(keys=40, values=vs[0], train_items=n), np.log(n) + 1 if sharp is None else sharp
        tokens = task.sample(streams.words(streams.key(0, "recall", str(n)), 16 * 4 * n).reshape(16, -1))
        deviation, wrong = other_tasks.compare_recall(task, tokens, b)
        worst, errors[name, n] = max(worst, deviation), wrong
    said = ", ".join(f"b = {name}: {errors[name, 40]:.0%}" for name in ("1", "4", "log n + 1"))
    return f"largest deviation {worst:.1e}; errors at n = 40: {said}", worst < 1e-6 and not errors["log n + 1", 40]
