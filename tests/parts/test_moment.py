"""What parts know of a step: its number and random numbers that are a pure function of what they are for."""

import math

import numpy as np
import pytest
import torch
from helpers import make_ensemble, make_problem, minimal_problem, transformer_problem

import resharpen as rs
from resharpen import streams
from resharpen.engines.torch.definition import Definition
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models.layers import Values
from resharpen.parts.moment import Moment, uniforms
from resharpen.parts.part import Norm
from resharpen.parts.philox import philox


def moment(models=3, row_N=None, t=5):
    key = torch.tensor(streams.words((1, 2), 2, np.arange(models)).astype(np.int64))
    return Moment(torch.tensor(float(t)), 100, key, row_N)


def test_philox_is_the_project_s():
    rng = np.random.default_rng(0)
    k0, k1, *counter = rng.integers(0, 2**32, (6, 50))
    expected = [streams.philox((int(a), int(b)), c) for a, b, *c in zip(k0, k1, *counter, strict=True)]
    got = torch.stack(philox(*map(torch.tensor, (k0, k1, *counter))), -1)
    assert np.array_equal(got.numpy(), np.array(expected))


def test_random_numbers_are_uniform_and_differ():
    u = uniforms(moment(), "a", 4, (5, 6, 1000))
    assert u.shape == (3, 4, 5, 6, 1000)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / u.numel())
    assert len(u.unique()) > 0.97 * u.numel()  # 360,000 of 2^24
    assert not torch.equal(u, uniforms(moment(), "b", 4, (5, 6, 1000)))


def test_a_random_number_depends_on_its_place_and_on_nothing_else():
    """Not on how many models, sequences and positions are computed together."""
    whole = uniforms(moment(), "a", 6, (2, 9, 9))
    rows = torch.tensor([4, 1])
    some = uniforms(moment(2, rows), "a", 2, (2, 7, 5))
    assert torch.equal(some, whole[:2, rows, :, :7, :5])


def test_shared_numbers_are_those_of_all_sequences():
    shared = uniforms(moment(), "a", None, (7,))
    assert shared.shape == (3, 1, 7)
    assert torch.equal(shared[:2], uniforms(moment(2, torch.tensor([3])), "a", None, (7,)))
    assert not torch.equal(shared, uniforms(moment(), "a", 1, (7,)))


def test_too_many_axes_are_refused():
    with pytest.raises(rs.UserError, match="at most 3 axes"):
        uniforms(moment(), "a", 1, (1, 1, 1, 1))


def test_what_p_does_not_have_is_said():
    p = Values({"training": False, "n": 1, "g": 2})
    with pytest.raises(rs.UserError, match=r"p\.step does not exist; available: p.g, p.n, p.training"):
        p.step  # noqa: B018
    assert not hasattr(p, "step")
    for name in ("t", "steps", "uniform"):
        with pytest.raises(rs.UserError, match=f"p.{name} exists in training only: check p.training first"):
            getattr(p, name)


@pytest.mark.parametrize("name", ["t", "uniform"])
def test_names_that_every_part_has_are_taken(name):
    with pytest.raises(
        rs.UserError, match=f"'{name}' is reserved: every part has p.training, p.t, p.steps, p.lengths, "
    ):
        rs.norm(**{name: rs.learned("d", start=1.0)})(lambda x, p: x)


def watching(seen):
    def watched(x, p):
        if p.training:
            draws = [p.uniform(x.shape[-1]), p.uniform(x.shape[-1])]
            seen.append((float(p.t), p.steps, *(u.clone() for u in draws)))
            return x + 0 * draws[0][:, :, None]
        seen.append(None)
        return x

    return Norm("watched", watched)


def test_a_part_sees_every_step_and_nothing_when_scored():
    seen = []
    problem = transformer_problem("out", norm=watching(seen), steps=7)
    engine = Definition(problem, make_ensemble(problem))
    engine.advance(3)
    blocks = len(problem.model.blocks)
    assert [t for t, *_ in seen] == [t for t in (1.0, 2.0, 3.0) for _ in range(blocks)]
    assert {steps for _, steps, *_ in seen} == {7}
    drawn = [u for *_, a, b in seen for u in (a, b)]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])  # block, call and step differ
    seen.clear()
    engine.measure(
        {k[6:]: x for k, x in engine.dump().items() if k.startswith("theta.")},
        problem.task.validation(0, "selection", 2),
    )
    assert set(seen) == {None}


@pytest.mark.parametrize("model", ["minimal", "transformer"])
def test_random_numbers_do_not_depend_on_the_company(model):
    """The same bits for a draw among three and alone, in one go and resumed."""

    @rs.norm(g=rs.learned("d", start=1.0))
    def noisy(x, p):
        return x * p.g * (1 + 0.5 * p.uniform(*x.shape[2:])) if p.training else x * p.g

    problem = minimal_problem("peri", norm=noisy) if model == "minimal" else transformer_problem("peri", norm=noisy)
    three, alone = (Definition(problem, make_ensemble(problem, draws)) for draws in ([1, 2, 5], [5]))
    three.advance(4)
    alone.advance(2)
    resumed = Definition(problem, make_ensemble(problem, [5]))
    resumed.load(alone.dump())
    resumed.advance(2)
    for name, x in resumed.dump().items():
        if name != "step":
            np.testing.assert_allclose(x[0], three.dump()[name][2], rtol=1e-4, atol=1e-6, err_msg=name)
    fast = TorchEngine(problem, make_ensemble(problem, [1, 2, 5]), "float64")
    exact = Definition(problem, make_ensemble(problem, [1, 2, 5]), "float64")
    for engine in (fast, exact):
        engine.advance(3)
    for name, x in exact.dump().items():
        np.testing.assert_allclose(fast.dump()[name], x, rtol=1e-9, atol=1e-12, err_msg=name)


def test_prefixes_are_not_merged_where_a_part_draws():
    @rs.norm()
    def noisy(x, p):
        return x * (1 + p.uniform(*x.shape[2:])) if p.training else x

    problem = make_problem("peri", norm=noisy)
    assert not TorchEngine(problem, make_ensemble(problem))._reads_sets
    assert TorchEngine(make_problem("peri"), make_ensemble(make_problem("peri")))._reads_sets
