"""What every engine promises: torch for each model family, and the native one of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from helpers import (
    BENIGN,
    EVERYTHING,
    assert_same,
    make_ensemble,
    minimal_problem,
    moved,
    retriever_problem,
    transformer_problem,
)
from parity import assert_first_gradient, assert_parity

from resharpen.engines.base import Problem, weights_of
from resharpen.engines.native.minimal import NativeMinimal
from resharpen.engines.native.retriever import NativeRetriever
from resharpen.engines.native.transformer import NativeTransformer
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models import RETRIEVER_PLACEMENTS, Minimal, Transformer
from resharpen.parts import STUDIED_PLACEMENTS
from resharpen.state import arrays_of
from resharpen.tasks import Dyck

PAIRS = Minimal(11, 9, 2, 6)
"""The smallest sizes, about, at which norms are computed without vectors."""
NATIVE = {"minimal": NativeMinimal, "transformer": NativeTransformer, "retriever": NativeRetriever}
PROBLEMS = {
    "minimal-peri": minimal_problem("peri"),
    "minimal-post": minimal_problem("post", 9, 2),
    "minimal-none": minimal_problem("none", 4, 3),
    "transformer-peri": transformer_problem("peri"),
    "transformer-none": transformer_problem("none"),
    **{f"retriever-{name}": retriever_problem(name, hidden=16) for name in RETRIEVER_PLACEMENTS},
}
VARIANTS = {
    "minimal-peri+ssmax": minimal_problem("peri", attention="ssmax"),
    "retriever-peri+ssmax": retriever_problem("peri", hidden=16, attention="ssmax"),
    "transformer-seven+layer+ssmax+alibi": transformer_problem(
        "seven", norm="layer", attention="ssmax", positions="alibi"
    ),
    "transformer-pre+window+kerple": transformer_problem("pre", attention="window", positions="kerple"),
    "transformer-pre+sink": transformer_problem("pre", attention="sink"),
    "transformer-peri+asentmax+nape": transformer_problem("peri", attention="asentmax", positions="nape"),
    "transformer-all+learned": transformer_problem("all", positions="learned"),
    "transformer-peri-init+sinusoidal": transformer_problem("peri-init", positions="sinusoidal"),
    "transformer-peri+t5": transformer_problem("peri", positions="t5"),
}
"""What only the native engine has to show, because torch is the definition."""
POISONED = {
    "minimal": ("W_Q", "W_V", "U"),
    "transformer": ("0.attention.W_Q", "1.mlp.W_1", "U"),
    "retriever": ("W_1", "W_2", "K", "V", "W_4", "b_3", "q"),
}


TRANSFORMERS = (
    "peri+rms+log-n+nope",
    "seven+rms+ssmax+alibi",
    "gemma3+rms+ssmax+rope",
    "all+layer+softmax+alibi",
    "heads-out+layer+ssmax+rope",
)


@dataclass(frozen=True)
class Case:
    problem: Problem
    native: bool

    @property
    def family(self):
        return self.problem.model.kind

    def engine(self, ensemble):
        return (NATIVE[self.family] if self.native else TorchEngine)(self.problem, ensemble)

    @property
    def poisoned(self):
        learned = self.problem.model.parameters(self.problem.parts)
        return *POISONED[self.family], *(
            name
            for name in learned
            if name.endswith(("_ssmax", "_queries", "_t5", "_kerple", "_sink", "_learned", "_sinusoidal"))
            or name.endswith(("_b_asentmax", "w_g_asentmax"))  # 2 tanh(c_g) stays finite
        )

    def validation(self):
        few = (2,) if self.family == "transformer" else ()
        return self.problem.task.validation(0, "selection", *few)


CASES = {
    f"{'native' if native else 'torch'}-{name}": Case(problem, native)
    for name, problem in PROBLEMS.items()
    for native in (False, True)
} | {f"native-{name}": Case(problem, True) for name, problem in VARIANTS.items()}
every_engine = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_native = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.native], ids=[name for name in CASES if name.startswith("native")]
)


@every_engine
def test_resume_is_bit_exact(case):
    first, rest = (31, 39) if case.native else (4, 5)
    ensemble = make_ensemble(case.problem)
    whole, begun, resumed = (case.engine(ensemble) for _ in range(3))
    whole.advance(first + rest)
    begun.advance(first)
    saved = begun.dump()
    begun.advance(2)  # to be forgotten: what was dumped is a copy
    resumed.load(saved)
    assert resumed.step == first
    resumed.advance(rest)
    assert_same(whole.dump(), resumed.dump())


@every_engine
def test_own_minibatches_and_given_ones_give_the_same_bits(case):
    ensemble = make_ensemble(case.problem, range(16, 19))
    own, given = case.engine(ensemble), case.engine(ensemble)
    own.advance(5)
    given.advance(5, [case.problem.minibatch(1, step) for step in range(5)])
    assert_same(own.dump(), given.dump())


@every_engine
def test_what_is_known_without_a_dump(case):
    engine = case.engine(make_ensemble(case.problem))
    state = engine.dump()
    state["diverged_at"][1] = 0
    engine.load(state)
    engine.advance(3)
    assert engine.step == engine.dump()["step"] == 3
    assert engine.diverged_at.tolist() == engine.dump()["diverged_at"].tolist() == [-1, 0, -1]
    engine.diverged_at[0] = 5
    assert engine.diverged_at[0] == -1


@pytest.mark.parametrize("draws", [[2, 9], [5], [3, 9, 14]], ids=str)
@every_engine
def test_a_model_does_not_depend_on_its_neighbors(case, draws):
    everyone, some = (case.engine(make_ensemble(case.problem, chosen)) for chosen in (16, draws))
    n = 50 if case.native and case.family == "minimal" else 5
    everyone.advance(n)
    some.advance(n)
    a, b = everyone.dump(), some.dump()
    if not case.native:  # torch chooses its kernels by the size of the whole ensemble
        for name, x in b.items():
            np.testing.assert_allclose(x, a[name] if name == "step" else a[name][draws], rtol=1e-4, atol=1e-6)
        return
    assert_same(a, b, draws)
    validation = case.validation()
    scores, of_some = (
        engine.measure(weights_of(state, engine.ensemble, "bema"), validation)
        for engine, state in ((everyone, a), (some, b))
    )
    assert list(scores) == list(of_some) == list(case.problem.task.measures)
    assert all(np.array_equal(scores[name][draws], of_some[name]) for name in scores)


# ---- divergence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@every_engine
def test_poison_stays_in_its_model(case, poison):
    """The model is frozen from the step of divergence on, its loss too, and its neighbors keep their bits."""
    n_models = 16 if case.family == "minimal" else 3
    ensemble = make_ensemble(case.problem, n_models)
    others = np.arange(n_models) != 1
    for name in case.poisoned:
        clean, poisoned = case.engine(ensemble), case.engine(ensemble)
        clean.advance(3)
        state = clean.dump()
        state[f"theta.{name}"].reshape(n_models, -1)[1, 0] = poison
        poisoned.load(state)
        clean.advance(4)
        poisoned.advance(4)
        a, b = clean.dump(), poisoned.dump()
        assert b["diverged_at"].tolist() == [3 if m == 1 else -1 for m in range(n_models)], name
        assert_same(b, {key: x if key == "step" else x[others] for key, x in a.items()}, others)
        frozen = {key: x for key, x in state.items() if key not in ("step", "diverged_at")}
        assert_same({key: b[key] for key in frozen}, {key: x[[1]] for key, x in frozen.items()}, [1])
        if np.isnan(poison):
            expected = clean.measure(arrays_of(a, "theta"), case.validation())
            for measure, values in poisoned.measure(arrays_of(b, "theta"), case.validation()).items():
                assert measure == "marked" or np.isnan(values[1]).all()  # one logit may not see it
                assert np.array_equal(values[others], expected[measure][others])


@pytest.mark.parametrize("family", NATIVE)
def test_an_explosion_is_marked_and_frozen(family):
    problem = PROBLEMS[f"{family}-none"]
    ensemble = make_ensemble(problem, peak_learning_rate=1e30, weight_decay=1.0, warmup_steps=0)
    torch, native = TorchEngine(problem, ensemble), NATIVE[family](problem, ensemble)
    for engine in (torch, native):
        engine.advance(20)
        frozen = engine.dump()
        assert (frozen["diverged_at"] >= 0).all()
        assert np.isfinite(frozen["loss"]).all()
        engine.advance(5)
        assert_same({**frozen, "step": np.array([25])}, engine.dump())
    assert np.array_equal(native.diverged_at, torch.diverged_at)


# ---- one state, two engines ------------------------------------------------------------------------------------------


@every_native
def test_they_start_from_the_same_state(case):
    ensemble = make_ensemble(case.problem, range(16, 32))
    assert_same(case.engine(ensemble).dump(), TorchEngine(case.problem, ensemble).dump())


@every_native
def test_either_engine_opens_the_state_of_the_other(case):
    ensemble = make_ensemble(case.problem)
    torch, native = TorchEngine(case.problem, ensemble), case.engine(ensemble)
    torch.advance(3)
    native.load(torch.dump())
    assert_same(torch.dump(), native.dump())
    native.advance(3)
    torch.load(native.dump())
    assert_same(torch.dump(), native.dump())
    for which in ("train", "bema"):
        weights = weights_of(native.dump(), ensemble, which)
        a, b = (engine.measure(weights, case.validation(), report=True) for engine in (torch, native))
        assert set(a) >= set(b)  # torch also measures what kernels do not
        for name in b:  # of answers, right or wrong, one may be close
            assert np.isclose(a[name], b[name], rtol=1e-3, atol=1e-5, equal_nan=True).mean() > 0.97, name


@pytest.mark.parametrize(("v", "s"), [(4, 3), (9, 8), (9, 2)])
@pytest.mark.parametrize("placement", [*STUDIED_PLACEMENTS, "two-after"])
def test_parity_of_the_minimal_transformer(placement, v, s):
    problem = minimal_problem(placement, v, s)
    validation = problem.task.validation(0, "selection")
    assert_parity(NativeMinimal, problem, make_ensemble(problem, 16, **BENIGN), validation=validation)


@pytest.mark.parametrize(
    ("v", "s", "batch", "model"),
    [(9, 1, 16, None), (9, 8, 16, None), (16, 1, 16, None), (16, 8, 16, None), (25, 2, 8, None), (11, 8, 2, PAIRS)],
    ids=str,
)
@pytest.mark.parametrize("attention", ["softmax", "ssmax"])
@pytest.mark.parametrize("placement", ["pre", "peri", "two-after"])
@pytest.mark.parametrize("spread", [1, 60], ids=["even", "wide"])
def test_first_gradient_of_the_minimal_transformer(placement, attention, v, s, batch, model, spread):
    """With the paper's hyperparameters: every tensor of every model, and an exact zero wherever there is one. Inputs of
    one token have no gradient of attention, absent tokens none at all; nor where logits are far apart."""
    problem = minimal_problem(placement, v, s, batch, model=model, attention=attention)
    ensemble = make_ensemble(problem, 16)
    start = moved(problem, ensemble)
    start["theta.W_Q"] *= spread
    assert_first_gradient(NativeMinimal, problem, ensemble, start)


@pytest.mark.parametrize("attention", ["softmax", "log-n", "ssmax"])
@pytest.mark.parametrize("placement", ["pre", "peri"])
def test_inputs_of_one_token_leave_attention_alone(placement, attention):
    """The moments of its weights stay exactly zero, so that only weight decay moves them, over any number of steps."""
    problem = minimal_problem(placement, 9, 1, attention=attention)
    ensemble = make_ensemble(problem, 16)
    torch, native = TorchEngine(problem, ensemble), NativeMinimal(problem, ensemble)
    for engine in (torch, native):
        engine.advance(100)
    expected, got = torch.dump(), native.dump()
    for name in ("W_Q", "W_K", *(["s_ssmax"] if attention == "ssmax" else [])):
        assert not got[f"m.{name}"].any()
        assert not got[f"v.{name}"].any()
        np.testing.assert_allclose(got[f"theta.{name}"], expected[f"theta.{name}"], rtol=1e-5)


@pytest.mark.parametrize("placement", ["peri", "seven"])
@pytest.mark.parametrize("cap", [1, 2, 24])
def test_first_gradient_of_the_transformer(placement, cap):
    """The same: at the first position, where there is one key, and for tokens that do not occur."""
    problem = transformer_problem(
        placement, cap=cap, batch=2, task=Dyck(8, 3), model=Transformer(18, d=8, heads=2, d_mlp=6)
    )
    ensemble = make_ensemble(problem, 8)
    assert_first_gradient(NativeTransformer, problem, ensemble, moved(problem, ensemble))


@pytest.mark.parametrize("attention", ["softmax", "log-n", "ssmax"])
@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
@pytest.mark.parametrize("spread", [1, 30], ids=["even", "saturated"])
def test_first_gradient_of_the_retriever(placement, attention, spread):
    """The same, also where one item has all the weight: the rest is as if it were not there."""
    problem = retriever_problem(placement, hidden=16, batch=16, attention=attention)
    ensemble = make_ensemble(problem, 8)
    start = moved(problem, ensemble)
    start["theta.q"] *= spread
    assert_first_gradient(NativeRetriever, problem, ensemble, start)


@pytest.mark.parametrize("attention", ["log-n", "ssmax"])
@pytest.mark.parametrize("placement", ["none", "post"])
def test_saturated_attention_of_the_retriever_has_no_gradient(placement, attention):
    """Of almost all models one item has all the weight, to the last digit: what is left for K is nothing."""
    problem = retriever_problem(placement, hidden=16, batch=16, attention=attention)
    ensemble = make_ensemble(problem, 8)
    start = moved(problem, ensemble)
    start["theta.q"] *= 1e5
    engine = NativeRetriever(problem, ensemble)
    engine.load(start)
    engine.advance(1)
    gradient = arrays_of(engine.dump(), "m")
    whole = np.sqrt(sum((g.reshape(8, -1) ** 2).sum(1) for g in gradient.values()))
    assert (np.linalg.norm(gradient["K"], axis=(1, 2)) < 1e-12 * whole).sum() >= 6


@pytest.mark.parametrize("placement", EVERYTHING)
def test_parity_of_the_transformer(placement):
    """Four models: of the eight numbers of a gain two are not enough for a mean."""
    problem = transformer_problem(placement, cap=24, batch=4)
    validation = problem.task.validation(0, "report", 2)
    assert_parity(NativeTransformer, problem, make_ensemble(problem, 4, **BENIGN), validation=validation)


@pytest.mark.parametrize("placement", RETRIEVER_PLACEMENTS)
@pytest.mark.parametrize("middle", [False, True], ids=["start", "middle"])
def test_parity_of_the_retriever(placement, middle):
    problem = retriever_problem(placement)
    ensemble = make_ensemble(problem, **({"peak_learning_rate": (1e-4, 1e-3)} if middle else {}))
    assert_parity(NativeRetriever, problem, ensemble, start=moved(problem, ensemble) if middle else None)


@pytest.mark.parametrize(
    ("placement", "attention", "v", "s"), [("none", "log-n", 9, 8), ("peri", "ssmax", 9, 8), ("post", "ssmax", 9, 2)]
)
def test_parity_of_the_minimal_transformer_with_another_attention(placement, attention, v, s):
    """Not from the start, where s has a gradient of a few rounding errors."""
    problem = minimal_problem(placement, v, s, attention=attention)
    ensemble, validation = make_ensemble(problem, 16, **BENIGN), problem.task.validation(0, "selection")
    assert_parity(NativeMinimal, problem, ensemble, start=moved(problem, ensemble), validation=validation)


@pytest.mark.parametrize(("placement", "attention"), [("none", "log-n"), ("pre", "ssmax"), ("post", "ssmax")])
def test_parity_of_the_retriever_with_another_attention(placement, attention):
    """As above; of one number more models are needed."""
    problem = retriever_problem(placement, hidden=16, batch=16, attention=attention)
    ensemble = make_ensemble(problem, 8, peak_learning_rate=(1e-4, 1e-3))
    assert_parity(NativeRetriever, problem, ensemble, start=moved(problem, ensemble))


@pytest.mark.parametrize("variant", TRANSFORMERS)
def test_parity_of_the_transformer_with_other_parts(variant):
    check_parts(*variant.split("+"))


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["rope", "nope", "alibi"])
@pytest.mark.parametrize("attention", ["softmax", "log-n", "ssmax"])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("placement", ["peri", "all", "heads-out", "olmo2"])
def test_parity_of_the_transformer_with_all_parts(placement, norm, attention, positions):
    if placement == "olmo2" and norm == "layer":
        pytest.skip("what is added to all keys alike falls out of the softmax: its gradient is rounding error")
    check_parts(placement, norm, attention, positions)


def check_parts(placement, norm, attention, positions):
    problem = transformer_problem(placement, cap=24, batch=4, norm=norm, attention=attention, positions=positions)
    validation = problem.task.validation(0, "report", 2)
    assert_parity(NativeTransformer, problem, make_ensemble(problem, 4, **BENIGN), validation=validation)
