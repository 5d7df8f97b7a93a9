"""A kernel that is not what Python takes it for is refused when it is loaded, with what differs on both sides."""

from __future__ import annotations

import ctypes
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import TINY_TRANSFORMER, minimal_problem, retriever_problem, transformer_problem

from resharpen.engines.native import build, contract, minimal, retriever, transformer
from resharpen.engines.native.base import variant_of
from resharpen.models import Minimal, Retriever

SMALL = Minimal(4, 3, 1, 3)


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """A copy of the sources to change; kernels are built from it."""
    monkeypatch.setenv("RESHARPEN_CACHE", str(tmp_path / "cache"))
    shutil.copytree(build.SOURCES, tmp_path / "kernels")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "kernels")
    build._sources.cache_clear()
    yield tmp_path / "kernels"
    build._sources.cache_clear()


OTHERS = ", ".join(contract.KNOWN["attention"][3:]).replace("-", "_")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "training.h",
            "int32_t n_steps, n_models;",
            "int64_t n_steps, n_models;",
            "Training: the minimal kernel has 88, but Python has 80",
        ),
        (
            "training.h",
            "softmax, log_n, ssmax",
            "softmax, ssmax, log_n",
            f"attention: the minimal kernel has softmax, ssmax, log_n, {OTHERS}, "
            f"but Python has softmax, log_n, ssmax, {OTHERS}",
        ),
    ],
)
def test_a_source_that_was_changed_alone(sources, file, old, new, said):
    text = (sources / file).read_text()
    assert old in text
    (sources / file).write_text(text.replace(old, new))
    with pytest.raises(contract.Mismatch) as error:
        minimal.kernel.__wrapped__(SMALL)
    assert str(error.value) == said


def test_the_version_is_the_one_that_was_built(monkeypatch):
    assert f"minimal.{build.version('minimal')}-" in minimal.kernel(SMALL)._name
    path = build.kernel("minimal", {"V": 4, "D": 3, "K": 1, "DV": 3})
    monkeypatch.setattr(build, "kernel", lambda *_: path)
    monkeypatch.setattr(build, "version", lambda name: 99)
    with pytest.raises(contract.Mismatch, match=r"^version: the minimal kernel has \d+, but Python has 99$"):
        minimal.kernel.__wrapped__(SMALL)


KERNELS = {
    "minimal": (minimal, SMALL),
    "retriever": (retriever, Retriever(16)),
    "transformer": (transformer, TINY_TRANSFORMER),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ("HYPERPARAMETERS", contract.HYPERPARAMETERS[::-1], r"Hyperparameters\.max_gradient_norm: the .* has \d+ \d+"),
        ("STEP_COLUMNS", (*contract.STEP_COLUMNS, "momentum"), "StepRow: "),
        ("KNOWN", {**contract.KNOWN, "positions": ("nope", "rope")}, "positions: .*has nope, rope"),
        ("KNOWN", {**contract.KNOWN, "norm": ("rms",)}, "norm: the .* kernel has rms, layer, but Python has rms"),
        ("PlacementStruct", contract.TrainingStruct, "Placement: the .* has 7, but Python has 80"),
    ],
)
def test_python_that_was_changed_alone(monkeypatch, name, changed, to, said):
    module, model = KERNELS[name]
    module.kernel.__wrapped__(model)
    monkeypatch.setattr(contract, changed, to)
    with pytest.raises(contract.Mismatch, match=f"^{said}") as error:
        module.kernel.__wrapped__(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", KERNELS)
def test_measures_are_those_of_the_kernel(monkeypatch, name):
    module, model = KERNELS[name]
    monkeypatch.setattr(module, "MEASURES", (*module.MEASURES, "surprise"))
    with pytest.raises(contract.Mismatch, match=rf"^measures: the {name} kernel has [a-z_, ]+, but .*, surprise$"):
        module.kernel.__wrapped__(model)


def test_structures_of_one_kernel(monkeypatch):
    monkeypatch.setattr(retriever, "ITEM", np.dtype([("kind", np.int32), ("priority", np.float32)]))
    with pytest.raises(contract.Mismatch, match=r"^Item\.kind: the retriever kernel has 4 4, but Python has 0 4$"):
        retriever.kernel.__wrapped__(Retriever(16))
    monkeypatch.setattr(transformer, "Tables", contract.PlacementStruct)
    with pytest.raises(contract.Mismatch, match=r"^Automaton: the transformer kernel has 40, but Python has 7$"):
        transformer.kernel.__wrapped__(TINY_TRANSFORMER)


# ---- parameters ------------------------------------------------------------------------------------------------------

PROBLEM = minimal_problem("peri", 4, 3, model=SMALL, attention="ssmax")


def told(change):
    """The layout that a kernel would tell, changed."""
    library = minimal.kernel(SMALL)
    lines = contract._lines(library.parameters(ctypes.byref(variant_of(PROBLEM.parts))))
    text = "\n".join(f"{name} {rest}" for name, rest in change(lines).items())
    return SimpleNamespace(parameters=lambda _: text.encode())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: {**x, "W_P": x["W_O"]}, "the parameters of a variant: the minimal kernel has E, U, W_K, W_O, W_P, "),
        (lambda x: {k: v for k, v in x.items() if k != "s_ssmax"}, "the parameters of a variant: "),
        (
            lambda x: {**x, "W_Q": "12 1 3 3 1 2 1"},
            r"the shape of W_Q: the minimal kernel has \[1, 3, 2\], .* \[3, 1\]",
        ),
        (lambda x: {**x, "W_K": x["W_Q"]}, "memory of 58 weights: the minimal kernel has overlapping"),
        (
            lambda x: {**x, "floats": "57"},
            "memory of 58 weights: the minimal kernel has overlapping or outside",
        ),
        (lambda x: {**x, "decay": "0 45"}, "weight decay on E: the minimal kernel has True, but Python has False"),
    ],
)
def test_parameters_are_those_of_the_model(change, said):
    library = told(change)
    parameters = PROBLEM.model.parameters(PROBLEM.parts)
    with pytest.raises(contract.Mismatch, match=f"^{said}") as error:
        contract.layout("minimal", library, variant_of(PROBLEM.parts), parameters)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        retriever_problem("peri", 16, attention="ssmax"),
        transformer_problem("seven", norm="layer", attention="ssmax"),
    ],
    ids=KERNELS,
)
def test_every_weight_has_its_place(problem):
    """Matrices row by row: neighbors in a row are neighbors in memory, but for the padding of heads."""
    module, _ = KERNELS[problem.model.kind]
    parameters = problem.model.parameters(problem.parts)
    found, floats = contract.layout(
        problem.model.kind, module.kernel(problem.model), variant_of(problem.parts), parameters
    )
    assert {name: where.shape for name, where in found.items()} == {n: p.shape for n, p in parameters.items()}
    assert floats >= sum(where.size for where in found.values())
    assert all((np.diff(where.ravel()) > 0).all() for where in found.values())
