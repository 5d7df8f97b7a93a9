"""A device without float64, as mps is. There is none here, so one is made up: its arithmetic is the CPU's, it refuses
float64 in whatever is computed there or goes there or back, and it does not mix with tensors of the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import BENIGN, make_ensemble, minimal_problem, retriever_problem, transformer_problem
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from resharpen.engines.base import arrays_of
from resharpen.engines.torch import definition
from resharpen.engines.torch.definition import Definition
from resharpen.engines.torch.fast import TorchEngine
from resharpen.parts.positions.rope import _computed

DEVICE = "meta"
"""A kind of device that torch has without its hardware, and computes nothing on."""


class There(torch.Tensor):
    """A tensor on the device; its numbers are in `here`, on the CPU."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here):
        made = torch.Tensor._make_wrapper_subclass(
            cls, here.size(), here.stride(), here.storage_offset(), dtype=here.dtype, device=DEVICE
        )
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


class SinglePrecision(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        goes_to = (kwargs or {}).get("device")
        from_there = any(isinstance(x, There) for x in given)
        to_there = from_there if goes_to is None else torch.device(goes_to).type == DEVICE
        args, kwargs = tree_map(lambda x: x.here if isinstance(x, There) else x, (args, kwargs or {}))
        found = func(*args, **kwargs if goes_to is None else kwargs | {"device": "cpu"})
        made = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        if (from_there or to_there) and any(x.dtype == torch.float64 for x in (*given, *made)):
            raise TypeError(f"{func}: this device has no float64")
        if from_there and any(x.ndim and not isinstance(x, There) for x in given):
            raise RuntimeError(f"{func}: tensors on two devices")
        if func._schema.is_mutable:
            return next(x for x in given if (x.here if isinstance(x, There) else x) is args[0])
        return tree_map(lambda x: There(x) if to_there and isinstance(x, torch.Tensor) else x, found)


@pytest.fixture
def single_precision(monkeypatch):
    monkeypatch.setattr(definition, "torch_device", torch.device)
    with SinglePrecision():
        yield
    _computed.cache_clear()


def test_the_device_refuses_float64(single_precision):
    x = torch.ones(3).to(DEVICE)
    assert isinstance(x, There)
    assert (x + 1).cpu().tolist() == [2, 2, 2]
    for refused in (
        lambda: torch.zeros(2, dtype=torch.float64, device=DEVICE),
        lambda: torch.tensor(np.ones(2), device=DEVICE),
        lambda: torch.ones(2).double().to(DEVICE, torch.float32),
        lambda: x.double(),
        lambda: x.to("cpu", torch.float64),
    ):
        with pytest.raises(TypeError, match="no float64"):
            refused()
    with pytest.raises(RuntimeError, match="two devices"):
        x + torch.ones(3)


@pytest.mark.parametrize("engine", [Definition, TorchEngine])
@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(minimal_problem("peri"), id="minimal"),
        pytest.param(minimal_problem("post", optimizer="muon", positions="alibi"), id="minimal-muon-alibi"),
        pytest.param(transformer_problem("gemma3", norm="layer"), id="transformer"),
        pytest.param(transformer_problem("peri", attention="asentmax", positions="nape"), id="transformer-asentmax"),
        pytest.param(transformer_problem("peri", attention="ssmax", optimizer="lion"), id="transformer-ssmax-lion"),
        pytest.param(retriever_problem("peri", hidden=12), id="retriever"),
        pytest.param(retriever_problem("pre", hidden=12, attention="entmax"), id="retriever-entmax"),
    ],
)
def test_training_and_measuring_need_no_float64_on_the_device(engine, problem, single_precision):
    ensemble = make_ensemble(problem, **BENIGN)
    here, there = engine(problem, ensemble), engine(replace(problem, device=DEVICE), ensemble)
    validation = problem.task.validation(0, "selection", *([2] if problem.model.kind == "transformer" else []))
    states, scores = [], []
    for each in (here, there):
        each.advance(2)
        each.load(each.dump())
        each.advance(2)
        states.append(each.dump())
        scores.append(each.measure(arrays_of(states[-1], "theta"), validation, report=True))
    assert isinstance(next(iter(there._state["theta"].values())), There)
    for expected, got in (states, scores):
        assert list(expected) == list(got)
        for name, array in expected.items():  # another device has another kernel for attention
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
