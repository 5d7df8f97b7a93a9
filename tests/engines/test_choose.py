"""Which engine runs a problem, and why not the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from helpers import make_ensemble, make_problem, minimal_problem, retriever_problem, transformer_problem

from resharpen.engines.base import weights_of
from resharpen.engines.choose import check_march, make_engine, measure_all, why_not_native
from resharpen.engines.native.minimal import NativeMinimal
from resharpen.engines.native.retriever import NativeRetriever
from resharpen.engines.native.transformer import NativeTransformer
from resharpen.engines.torch.fast import TorchEngine
from resharpen.errors import UserError
from resharpen.metrics import mean_by_length
from resharpen.models.model import Misfit
from resharpen.optim.hyperparameters import Row
from resharpen.parts import ATTENTIONS
from resharpen.tasks import Batch, Dyck, MaxRetrieval, SetComplement


@dataclass(frozen=True)
class Gru:
    kind: ClassVar[str] = "gru"


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (minimal_problem("peri"), NativeMinimal),
        (transformer_problem(), NativeTransformer),
        (retriever_problem("none", 16), NativeRetriever),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_every_family_has_its_native_engine(problem, kind):
    assert why_not_native(problem) == ""
    ensemble = make_ensemble(problem)
    assert isinstance(make_engine("native", problem, ensemble), kind)
    assert isinstance(make_engine("torch", problem, ensemble), TorchEngine)


def test_reasons_not_to_run_natively(monkeypatch, tmp_path):
    problem = make_problem("peri")
    assert why_not_native(replace(problem, model=Gru())) == "there is no native kernel for the model 'gru'"
    problem = retriever_problem("none", attention="adaptive-temperature")
    assert "only softmax, log-n and ssmax" in why_not_native(problem)
    assert why_not_native(problem, training=False) == ""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("RESHARPEN_CACHE", str(tmp_path / "cache"))
    # sizes of no other test: a kernel that this process has loaded needs no compiler
    assert "no C++ compiler" in why_not_native(minimal_problem("peri", v=11, s=2))


@pytest.mark.parametrize("training", [True, False])
def test_a_kernel_is_not_given_the_attention_of_another(training):
    """All kernels share one list of enumerators, which says nothing about what each of them computes."""

    def accepted(make):
        of_kernel = []
        for attention in ATTENTIONS:
            try:
                problem = make(attention)
            except Misfit:
                continue
            if why_not_native(problem, training) == "":
                of_kernel.append(attention)
        return set(of_kernel)

    few = {"softmax", "log-n", "ssmax"}
    assert accepted(lambda name: make_problem("peri", attention=name)) == few
    read = few | {"adaptive-temperature"}
    assert accepted(lambda name: retriever_problem("none", 16, attention=name)) == (few if training else read)
    many = few | {"window", "sink", "entmax", "asentmax"}
    assert accepted(lambda name: transformer_problem("peri", attention=name)) == many


@dataclass(frozen=True)
class Sharp(SetComplement):
    """Set Complement with one more measure, the probability of the likeliest token."""

    measures: ClassVar[tuple[str, ...]] = ("tvd", "sharpness")

    def score(self, logits_MxPxV, truth):
        return {**super().score(logits_MxPxV, truth), "sharpness": logits_MxPxV.softmax(-1).amax(-1)}


class SharpFirst(Sharp):
    metric = "sharpness"


class Halved(SetComplement):
    """The same measure by name, of another value."""

    def score(self, logits_MxPxV, truth):
        return {"tvd": super().score(logits_MxPxV, truth)["tvd"] / 2}


class Reduced(Sharp):
    def by_length(self, measured, validation):
        return {"tvd": mean_by_length(measured["tvd"] * measured["sharpness"], validation.length_P)}


class SharpRetrieval(MaxRetrieval):
    """The likeliest answer's probability, under a name that the kernel has for something else."""

    measures = ("accuracy", "largest_weight")

    def score(self, logits_MxPxV, truth):
        return {**super().score(logits_MxPxV, truth), "largest_weight": logits_MxPxV.softmax(-1).amax(-1)}


def test_what_the_kernel_does_not_measure_comes_from_torch():
    problem = replace(minimal_problem("peri"), task=Sharp(9))
    assert why_not_native(problem) == ""
    ensemble = make_ensemble(problem)
    native, torch_engine = (make_engine(name, problem, ensemble) for name in ("native", "torch"))
    native.advance(5)
    weights, validation = weights_of(native.dump(), ensemble, "train"), problem.task.validation(0, "report")
    assert list(native.measure(weights, validation)) == ["tvd"]
    found, expected = measure_all(native, weights, validation), torch_engine.measure(weights, validation)
    assert list(found) == ["tvd", "sharpness", "kl", "illegal", "error"]
    assert np.array_equal(found["sharpness"], expected["sharpness"])
    assert np.allclose(found["tvd"], expected["tvd"], atol=1e-5)


def test_a_measure_that_means_something_else_is_not_the_kernels():
    task = SharpRetrieval(longest=64, items=512, selection_items=256)
    problem = retriever_problem("none", 16, task=task)
    assert why_not_native(problem) == ""
    native = make_engine("native", problem, make_ensemble(problem))
    weights, validation = weights_of(native.dump(), native.ensemble, "train"), task.validation(0, "report")
    assert list(native.measure(weights, validation, report=True)) == ["accuracy", "entropy"]
    expected = make_engine("torch", problem, native.ensemble).measure(weights, validation)["largest_weight"]
    assert np.array_equal(measure_all(native, weights, validation)["largest_weight"], expected)


@pytest.mark.parametrize(
    ("task", "measure"), [(SharpFirst(9), "sharpness"), (Halved(9), "tvd"), (Reduced(9), "sharpness")]
)
def test_checkpoints_are_selected_by_what_the_kernel_measures(task, measure):
    problem = replace(minimal_problem("peri"), task=task)
    assert why_not_native(problem) == f"it does not measure '{measure}', which {task.name} selects checkpoints by"
    assert why_not_native(problem, training=False) == ""


def test_hyperparameters_that_no_kernel_reads(monkeypatch):
    row = {"sharpness": Row(1.0, 2.0)}
    monkeypatch.setitem(ATTENTIONS, "softmax", replace(ATTENTIONS["softmax"], hyperparameters=row))
    for problem in (minimal_problem("peri"), transformer_problem(), retriever_problem("none", 16)):
        assert why_not_native(problem) == "it does not read the hyperparameter 'sharpness'"
        own_range = replace(ATTENTIONS["softmax"], hyperparameters={"rms_epsilon": Row(1e-6, 1e-5)})
        with monkeypatch.context() as patch:
            patch.setitem(ATTENTIONS, "softmax", own_range)
            assert why_not_native(replace(problem, parts=replace(problem.parts, attention=own_range))) == ""


def test_an_instruction_set_is_one_that_the_compiler_knows(monkeypatch, tmp_path):
    monkeypatch.setenv("RESHARPEN_CACHE", str(tmp_path / "cache"))
    check_march("native")
    with pytest.raises(UserError, match="march = banana: unknown instruction set") as error:
        check_march("banana")
    assert "\n" not in str(error.value)
    monkeypatch.setenv("CXX", "no-such-compiler")
    check_march("banana")  # nobody knows


@dataclass(frozen=True)
class Answers(Dyck):
    """Only every other place counts."""

    def batch(self, key, group, step, n, train_length):
        inputs, targets, mask = super().batch(key, group, step, n, train_length)
        return Batch(inputs, targets, mask & (np.arange(mask.shape[1]) % 2 == 1))


@dataclass(frozen=True)
class Shuffled(Dyck):
    """The same language in minibatches that are drawn otherwise."""

    def batch(self, key, group, step, n, train_length):
        return super().batch(key, group + 1, step, n, train_length)


@pytest.mark.parametrize("kind", [Answers, Shuffled])
def test_minibatches_of_one_s_own_are_those_that_native_trains_on(kind):
    """A task that is derived from a built-in one may draw others than the kernel would, or train on fewer places."""
    problem, usual = (replace(transformer_problem(), task=of(2, 3)) for of in (kind, Dyck))
    assert why_not_native(problem) == ""
    ensemble = make_ensemble(usual)
    engine, given, other = (make_engine("native", p, ensemble) for p in (problem, usual, usual))
    engine.advance(2)
    given.advance(2, [problem.minibatch(0, step) for step in range(2)])
    other.advance(2)
    assert np.array_equal(engine.dump()["theta.E"], given.dump()["theta.E"])
    assert not np.array_equal(engine.dump()["theta.E"], other.dump()["theta.E"])


def test_kernels_that_draw_by_themselves_leave_other_minibatches_to_torch():
    class Even(SetComplement):
        def batch(self, *args):
            return super().batch(*args)

    class Few(MaxRetrieval):
        def batch(self, *args):
            return super().batch(*args)

    minimal, retriever = minimal_problem("peri"), retriever_problem("none")
    assert "samples differently" in why_not_native(replace(minimal, task=Even(9)))
    few = Few(longest=64, items=512, selection_items=256)
    assert "samples differently" in why_not_native(replace(retriever, task=few))
