import math
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import hyper, make_ensemble, random_theta, transformer_problem

import resharpen as rs
from resharpen.engines.base import initial_state
from resharpen.models import Transformer
from resharpen.models.layers import Bound
from resharpen.parts import PLACEMENTS, POSITIONS, Parts
from resharpen.parts.moment import Moment
from resharpen.parts.positions.randomized import drawn
from resharpen.parts.positions.rope import rotated as rotate
from resharpen.parts.positions.t5 import bucket
from resharpen.tasks import Dyck

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it says of torch while it loads
    from x_transformers.x_transformers import RelativePositionBias


def test_rotation_depends_on_relative_positions_only():
    """q_p . k_r is the same for (p, r) and (p + 5, r + 5), changes with p - r, and positions keep lengths."""
    rng = np.random.default_rng(0)
    q, k = (torch.tensor(rng.standard_normal(8)) for _ in range(2))
    turned_q, turned_k = rotate(q.expand(40, 8)), rotate(k.expand(40, 8))
    table = turned_q @ turned_k.T
    assert torch.allclose(table[:35, :35], table[5:, 5:], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(table[0, :10], table[0, 1:11])
    assert torch.allclose(turned_q.norm(dim=-1), q.norm().expand(40))
    assert torch.equal(turned_q[0], q)


def test_the_base_and_the_halves_of_the_rotation():
    """With K = 4: pairs (0, 2) and (1, 3), frequencies 1 and 1/100."""
    x = rotate(torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0]], dtype=torch.float64))
    assert np.allclose(x[1], [math.cos(1), 0, math.sin(1), 0])
    assert np.allclose(x[2], [0, math.cos(0.02), 0, math.sin(0.02)])


@pytest.mark.parametrize(("name", "width", "base"), [("rope-half", 4, 1e4), ("rope-500k", 8, 5e5), ("rope", 8, 1e4)])
def test_rotations_by_complex_numbers(name, width, base):
    """The first `width` of 8 features, in pairs that are half of it apart; queries and keys alike."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 3, 9, 8))
    got = POSITIONS[name].turned(torch.tensor(q), torch.tensor(k), None)
    for x, turned in ((q, got[0]), (k, got[1])):
        half = width // 2
        pairs = x[..., :half] + 1j * x[..., half:width]
        pairs = pairs * np.exp(1j * np.arange(9)[:, None] * base ** (-np.arange(half) / half))
        expected = np.concatenate([pairs.real, pairs.imag, x[..., width:]], -1)
        assert np.allclose(turned, expected, rtol=1e-12, atol=1e-12)


def test_rotation_turns_pairs():
    with pytest.raises(ValueError, match="even width, not 3"):
        rotate(torch.zeros(2, 3))


def test_nope_is_nothing():
    x = torch.randn(2, 3)
    assert POSITIONS["nope"].on == "nothing"
    assert POSITIONS["nope"](x, None) is x


def test_sinusoidal_is_vaswani_s():
    """PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j + 1) = cos of the same, times s; also where d is odd."""
    for d in (8, 5):
        x = torch.randn(2, 3, 7, d, dtype=torch.float64)
        s = torch.tensor([0.02, -1.5], dtype=torch.float64)
        expected = x.clone()
        for i in range(7):
            for feature in range(d):
                angle = i / 10_000 ** (2 * (feature // 2) / (d + d % 2))
                wave = math.cos(angle) if feature % 2 else math.sin(angle)
                expected[..., i, feature] += s[:, None] * wave
        p = SimpleNamespace(s=s[:, None, None, None])
        torch.testing.assert_close(POSITIONS["sinusoidal"](x, p), expected, rtol=1e-12, atol=1e-12)


def test_sinusoidal_goes_into_the_embedding_once():
    problem = transformer_problem("none", positions="sinusoidal")
    found = [name for name in problem.model.parameters(problem.parts) if "sinusoidal" in name]
    assert found == ["s_sinusoidal"]
    state = initial_state(problem, make_ensemble(problem))
    assert (state["theta.s_sinusoidal"] == np.float32(0.02)).all()
    theta = {name: torch.tensor(x[:1]) for name, x in random_theta(problem).items()}
    with_s, record = {}, {}
    problem.model.logits(theta, torch.tensor([[1, 1, 4]]), problem.parts, hyper([1e-6]), with_s)
    problem.model.logits(
        {**theta, "s_sinusoidal": theta["s_sinusoidal"] * 0},
        torch.tensor([[1, 1, 4]]),
        problem.parts,
        hyper([1e-6]),
        record,
    )
    assert torch.equal(record["embedding"][0, 0, 0], record["embedding"][0, 0, 1])
    assert not torch.equal(with_s["embedding"][0, 0, 0], with_s["embedding"][0, 0, 1])


def raised(x):
    """A parameter of a head as a part gets it: [M, 1, H, ..., 1] with five axes."""
    return x.view(len(x), 1, *x.shape[1:], *(1,) * (4 - x.ndim))


def test_buckets_are_those_of_t5():
    """For every distance up to 3000, in both precisions, as Hugging Face and x-transformers have them, and by hand."""
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(3000)
    expected = RelativePositionBias._relative_position_bucket(-distance, causal=True)
    by_hand = [d if d < 16 else min(31, 16 + math.floor(16 * math.log(d / 16, 8) + 1e-12)) for d in range(3000)]
    assert expected.tolist() == by_hand
    assert torch.equal(T5Attention._relative_position_bucket(-distance, bidirectional=False), expected)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(bucket(distance.to(dtype)), expected)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_learned_biases_by_distance(length):
    """T5 and KERPLE against loops, and the gradient by finite differences; what is not seen may be anything finite."""
    rng, shape = np.random.default_rng(0), (2, 3, 2, length, length)
    e = torch.tensor(rng.standard_normal(shape))
    b, log_r1, log_r2 = (torch.tensor(rng.standard_normal(size)) for size in ((2, 2, 32), (2, 2), (2, 2)))
    buckets = RelativePositionBias._relative_position_bucket(-torch.arange(length), causal=True)
    got = {
        "t5": POSITIONS["t5"](e, SimpleNamespace(b=raised(b))),
        "kerple": POSITIONS["kerple"](e, SimpleNamespace(log_r1=raised(log_r1), log_r2=raised(log_r2))),
    }
    for m, n, h, i in np.ndindex(*shape[:-1]):
        for j in range(i + 1):
            at = m, n, h, i, j
            assert math.isclose(got["t5"][at], e[at] + b[m, h, buckets[i - j]], abs_tol=1e-12)
            r1, r2 = math.exp(log_r1[m, h]), math.exp(log_r2[m, h])
            assert math.isclose(got["kerple"][at], e[at] - r1 * math.log(1 + r2 * (i - j)), abs_tol=1e-12)
    assert all(x.isfinite().all() for x in got.values())
    if length == 2:
        few, seen = e[:1, :1], torch.ones(2, 2, dtype=torch.float64).tril()
        for name, learned in (("t5", {"b": b[:1]}), ("kerple", {"log_r1": log_r1[:1], "log_r2": log_r2[:1]})):

            def of(*values, name=name, names=tuple(learned)):
                p = {key: raised(x) for key, x in zip(names, values, strict=True)}
                return POSITIONS[name](few, SimpleNamespace(**p)) * seen

            assert torch.autograd.gradcheck(of, tuple(x.requires_grad_() for x in learned.values()))


def test_kerple_starts_with_positive_numbers_that_differ_between_heads():
    problem = transformer_problem(positions="kerple", model=Transformer(6))
    state = initial_state(problem, make_ensemble(problem))
    assert np.allclose(np.exp(state["theta.0.attention.log_r1_kerple"]), [[0.25, 0.75, 1.25, 1.75]] * 3)
    assert np.allclose(np.exp(state["theta.1.attention.log_r2_kerple"]), 0.5)


def test_own_positions_get_queries_and_keys_together():
    @rs.positions(on="queries_keys")
    def apart(q, k, p):
        return q + 1, k * 2

    q, k = torch.randn(2, 1, 3, 2, 4, 5)
    bound = Bound(Parts(PLACEMENTS["none"], positions=apart), {}, {"rms_epsilon": torch.ones(1)})
    turned = bound.turned(q, k)
    assert torch.equal(turned[0], q + 1)
    assert torch.equal(turned[1], k * 2)


def test_wrong_positions_are_refused():
    with pytest.raises(rs.UserError, match=r"@rs.positions is for a function of \(q, k, p\), and this is old"):

        @rs.positions(on="queries_keys")
        def old(x, p):
            return x

    with pytest.raises(rs.UserError, match="unknown place of positions 'keys'"):
        rs.positions(on="keys")

    @rs.positions(on="queries_keys")
    def one(q, k, p):
        return q

    with pytest.raises(rs.UserError, match=r"it must return both, as \(q, k\)"):
        one.turned(torch.ones(1), torch.ones(1), None)


def test_learned_is_one_row_per_position():
    """As many rows as the longest input has tokens, drawn like an embedding and spared by weight decay."""
    problem = transformer_problem("none", positions="learned", task=Dyck(2, 3))
    P = problem.model.parameters(problem.parts)["P_learned"]
    assert P.shape == (Dyck(2, 3).longest, problem.model.d) == (168, 8)
    assert not P.decays
    assert not P.inner
    state = initial_state(problem, make_ensemble(problem))
    assert abs(state["theta.P_learned"].std() - 0.0176) < 2e-4
    x, P = torch.randn(2, 3, 5, 4), torch.randn(2, 7, 4)
    assert torch.equal(POSITIONS["learned"](x, SimpleNamespace(P=P[:, None])), x + P[:, None, :5])
    with pytest.raises(rs.UserError, match="an input of 8 tokens: there are only 7 learned positions"):
        POSITIONS["learned"](torch.zeros(2, 3, 8, 4), SimpleNamespace(P=P[:, None]))


def test_learned_offset_begins_anywhere_that_fits():
    """In training uniform on 0 .. longest - length of each sequence, in every model its own; when scored at 0."""
    longest, n = 9, 4000
    P = torch.arange(longest, dtype=torch.float64)[None, :, None].expand(2, longest, 3)
    lengths = torch.tensor([4, 8]).repeat(n // 2)
    key = torch.tensor([[1, 2], [3, 4]])
    moment = Moment(torch.tensor(1.0, dtype=torch.float64), 10, key, length_B=lengths)
    x = torch.zeros(2, n, 8, 3, dtype=torch.float64)
    found = {}
    for moment_ in (moment, None):
        parts = Parts(PLACEMENTS["none"], positions=POSITIONS["learned-offset"], moment=moment_)
        found[moment_ is None] = Bound(parts, {"P_learned-offset": P}, {}).embedded(x)[..., 0]
    assert torch.equal(found[True], torch.arange(8.0, dtype=torch.float64).expand(2, n, 8))
    for length, rows in ((4, slice(0, None, 2)), (8, slice(1, None, 2))):
        real = found[False][:, rows, :length]
        assert (real.diff(dim=-1) == 1).all()
        counts = torch.stack([torch.bincount(first.long(), minlength=longest) for first in real[..., 0]])
        allowed = longest - length + 1
        assert (counts[:, allowed:] == 0).all()
        assert (counts[:, :allowed] / (n / 2) - 1 / allowed).abs().max() < 4 * (allowed * n / 2) ** -0.5
    assert not torch.equal(found[False][0], found[False][1])


def test_a_task_has_to_say_how_long_inputs_are():
    problem = transformer_problem("none", positions="learned")
    with pytest.raises(ValueError, match=r"does not define it \(`longest_input`\)"):
        problem.model.check(replace(problem.parts, longest=None))


# ---- randomized ------------------------------------------------------------------------------------------------------


RANDOMIZED = ("rope", "alibi", "sinusoidal", "learned")


def at_step(lengths, longest, key=((1, 2), (3, 4))):
    moment = Moment(torch.tensor(1.0, dtype=torch.float64), 10, torch.tensor(key), length_B=torch.tensor(lengths))
    return lambda name: Parts(PLACEMENTS["none"], positions=POSITIONS[name], moment=moment, longest=longest)


def positions_in(parts, length, sequences=1):
    """What positions tokens have, read off a learned table whose rows are their own numbers, [M, N, L]."""
    table = torch.arange(4.0 * parts.longest, dtype=torch.float64)[None, :, None].expand(2, -1, 1)
    x = torch.zeros(2, sequences, length, 1, dtype=torch.float64)
    return Bound(parts, {"P_randomized-learned": table}, {}).embedded(x)[..., 0]


def test_randomized_positions_are_sorted_draws_without_replacement():
    """A sequence of n tokens has a uniformly drawn set of n positions out of 4 x longest, sorted; in both models their
    own; whatever padding there is."""
    longest, lengths, first = 3, [5, 2] * 5, []
    for i in range(400):
        parts = at_step(lengths, longest, [(i, 1), (i, 2)])("randomized-learned")
        found = positions_in(parts, 5, len(lengths))
        for row, length in enumerate(lengths[:2]):
            real = found[:, row, :length]
            assert (real.diff(dim=-1) > 0).all()
            assert (real >= 0).all()
            assert (real < 4 * longest).all()
        first.append(found[:, 1, :2])
        assert torch.equal(found[:, 0], found[:, 2])  # one draw per model and step, as the authors have one per batch
    pairs = torch.cat(first)
    sets = torch.bincount((12 * pairs[:, 0] + pairs[:, 1]).long(), minlength=144)
    assert (sets > 0).sum() == 66  # all pairs of twelve, and nothing else
    chi_square = ((sets[sets > 0] - 800 / 66) ** 2 / (800 / 66)).sum()
    assert chi_square < 120  # 65 degrees of freedom: 99.99% are below
    assert not torch.equal(first[0][0], first[0][1])


def test_randomized_positions_are_fixed_when_scored():
    parts = Parts(PLACEMENTS["none"], positions=POSITIONS["randomized-learned"], longest=6)
    found = positions_in(parts, 6)
    assert torch.equal(found, positions_in(parts, 6))
    assert torch.equal(found[0], found[1])
    assert (found.diff(dim=-1) > 0).all()
    assert not torch.equal(found[0, 0], torch.arange(6.0).double())
    with pytest.raises(rs.UserError, match="an input of 25 tokens: there are only 24 randomized positions"):
        positions_in(parts, 25)


@pytest.mark.parametrize("name", RANDOMIZED)
def test_a_randomized_encoding_is_the_plain_one_at_other_positions(name):
    """The plain encoding of 4 x longest tokens, of which only those at the drawn positions are looked at."""
    longest, length, heads, d = 6, 6, 2, 4
    make = at_step([length], longest)
    other = torch.Generator().manual_seed(0)
    every = Parts(PLACEMENTS["none"], positions=POSITIONS[name], longest=4 * longest)
    theta = {}
    if name == "learned":
        theta = {"P_learned": torch.randn(2, 4 * longest, d, generator=other, dtype=torch.float64)}
    if name == "sinusoidal":
        theta = {"s_sinusoidal": torch.tensor([0.5, 2.0]).double()}
    renamed = {key.replace(f"_{name}", f"_randomized-{name}"): x for key, x in theta.items()}
    plain, randomized = Bound(every, theta, {}), Bound(make(f"randomized-{name}"), renamed, {})
    tokens = torch.zeros(2, 1, length, d, dtype=torch.float64)
    position = drawn(tokens, randomized._values(f"randomized-{name}", tokens, {}))  # [M, 1, L]

    def at(x, axis):
        """Of [M, 1, ..., 4 x longest, ...] what is at the drawn positions."""
        return torch.stack([x[m].index_select(axis - 1, position[m, 0]) for m in range(2)])

    if name in ("learned", "sinusoidal"):
        x = torch.randn(2, 1, 4 * longest, d, generator=other, dtype=torch.float64)
        expected, got = at(plain.embedded(x), 2), randomized.embedded(at(x, 2))
    elif name == "rope":
        q, k = torch.randn(2, 2, 1, heads, 4 * longest, d, generator=other, dtype=torch.float64)
        expected = torch.cat([at(x, 3) for x in plain.turned(q, k)])
        got = torch.cat(randomized.turned(at(q, 3), at(k, 3)))
    else:
        e = torch.randn(2, 1, heads, 4 * longest, 4 * longest, generator=other, dtype=torch.float64)
        expected = at(at(POSITIONS["alibi"](e, None), 3), 4)
        p = randomized._values("randomized-alibi", at(at(e, 3), 4), {})
        got = POSITIONS["randomized-alibi"](at(at(e, 3), 4), p)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


# ---- FIRE ------------------------------------------------------------------------------------------------------------


def fire_values(models, heads, longest, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {name: p.sized({"heads": heads}).shape for name, p in POSITIONS["fire"].parameters.items()}
    learned = {name: torch.tensor(rng.standard_normal((models, *shape))) for name, shape in shapes.items()}
    raised = {name: x.view(models, 1, *x.shape[1:], *(1,) * (4 - x.ndim)) for name, x in learned.items()}
    return SimpleNamespace(**raised, longest=longest, kept={}), learned


def test_fire_is_its_formula(monkeypatch):
    """f(psi(i - j) / psi(max(L, i))), as in the appendix of Li et al. (2024); in pieces of a few queries, too."""
    models, heads, length, longest = 2, 3, 9, 12
    p, learned = fire_values(models, heads, longest)
    e = torch.zeros(models, 2, heads, length, length, dtype=torch.float64)
    got = POSITIONS["fire"](e, p)
    for m, h, i in np.ndindex(models, heads, length):
        one = {name: x[m].numpy() for name, x in learned.items()}
        c, L = abs(one["c"]), abs(one["L"]) * longest / 4
        for j in range(i + 1):
            share = math.log(c * (i - j) + 1) / (math.log(c * max(L, i) + 1) + 1e-6)
            hidden = np.maximum(one["W_1"] * share + one["b_1"], 0)
            expected = one["W_2"][h] @ hidden + one["b_2"][h]
            np.testing.assert_allclose(got[m, :, h, i, j], expected, rtol=1e-10)
    monkeypatch.setattr(sys.modules[POSITIONS["fire"].function.__module__], "AT_ONCE", 32 * 2 * length * 2)
    p.kept = {}
    torch.testing.assert_close(POSITIONS["fire"](e, p), got, rtol=1e-12, atol=1e-12)


def test_fire_gradients_by_finite_differences():
    p, _ = fire_values(1, 2, 8)
    e, names = torch.zeros(1, 1, 2, 5, 5, dtype=torch.float64), list(POSITIONS["fire"].parameters)

    def logits(*learned):
        return POSITIONS["fire"](
            e, SimpleNamespace(**dict(zip(names, learned, strict=True)), longest=8, kept={})
        ).tril()

    assert torch.autograd.gradcheck(logits, tuple(getattr(p, name).requires_grad_() for name in names))
