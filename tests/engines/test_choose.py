"""Which engine runs a problem, and why not the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from helpers import make_ensemble, make_problem, minimal_problem, retriever_problem, transformer_problem

from resharpen.engines.choose import check_march, make_engine, why_not_native
from resharpen.engines.native.minimal import NativeMinimal
from resharpen.engines.native.retriever import NativeRetriever
from resharpen.engines.native.transformer import NativeTransformer
from resharpen.engines.torch.fast import TorchEngine
from resharpen.errors import UserError


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
    assert "no C++ compiler" in why_not_native(minimal_problem("peri", v=5, s=2))


def test_an_instruction_set_is_one_that_the_compiler_knows(monkeypatch, tmp_path):
    monkeypatch.setenv("RESHARPEN_CACHE", str(tmp_path / "cache"))
    check_march("native")
    with pytest.raises(UserError, match="march = banana: not an instruction set here") as error:
        check_march("banana")
    assert "\n" not in str(error.value)
    monkeypatch.setenv("CXX", "no-such-compiler")
    check_march("banana")  # nobody knows
