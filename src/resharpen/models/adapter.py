"""A user's `torch.nn.Module` as a model: no base class, no model axis.

    class Net(nn.Module):
        def __init__(self, vocabulary, d=32): ...
        def forward(self, tokens): ...          # [N, L] -> logits [N, L, V]

`net.py:Net` is a class or a function that returns a module. It is called with keywords: the number of tokens is passed
as the argument with a name in `TOKENS`, and every other argument without a default, or with an integer default, is a
size in the spec. Others keep their defaults. A module that reads items has an argument with a name in `CLASSES`
instead, gets items.priority and .kind [N, L] and .length [N], and returns logits [N, C].

Each draw has its own module. Before it is constructed, and thereby initialized, torch's generator is seeded with (seed,
setting, draw). In training the generator is seeded with (seed, setting, draw, step) before every forward pass.

Weight decay and Muon treat a parameter according to the layer that owns it:

    embedding    of an nn.Embedding, tied or not                                     no decay, not inner
    vector       fewer than two axes, or of a norm: biases, gains                    no decay, not inner
    output       of the nn.Linear called last that returns one number per token      decays, not inner
    matrix       two axes                                                            decays, inner
    other        three axes and more, such as a convolution                          decays, not inner

A parameter of the module itself is interpreted as [in, out], and is inner only if no axis is as long as the vocabulary.
An nn.Linear on items, with 1 or 1 + C input features, is not inner either. Buffers and parameters that need no gradient
are constants: created with the module, never trained.

Shapes: M models, N sequences, L positions, V tokens, C classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, make_dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from resharpen import own, streams
from resharpen.errors import UserError
from resharpen.models.layers import Record, Tensors
from resharpen.models.model import Misfit, Model
from resharpen.parts.parameter import Parameter
from resharpen.parts.parts import Parts

TOKENS = ("vocabulary", "vocab", "vocab_size", "n_vocab", "n_tokens", "num_tokens")
CLASSES = ("classes", "n_classes", "num_classes")
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)

Factory = Callable[..., nn.Module]
State = dict[str, Tensor]


def makes_modules(found: Any) -> bool:
    """Whether an object in the user's file is a class of modules, or a function of the number of tokens."""
    if isinstance(found, type):
        return issubclass(found, nn.Module)
    return inspect.isfunction(found) and any(
        name in (*TOKENS, *CLASSES) for name in inspect.signature(found).parameters
    )


@cache
def module_model(kind: str, factory: Factory) -> type[Model]:
    """The model class of a module: its fields are the sizes that the module accepts."""
    name, parameters = own.short(kind), inspect.signature(factory).parameters
    counts = [x for x in parameters if x in (*TOKENS, *CLASSES)]
    if len(counts) != 1:
        raise UserError(
            f"'{name}' has the arguments ({', '.join(parameters)}): one must be the number of tokens, called "
            f"{', '.join(TOKENS[:-1])} or {TOKENS[-1]}; or the number of classes: {', '.join(CLASSES)}"
        )
    items = counts[0] in CLASSES
    sizes = [p for p in parameters.values() if p.name != counts[0] and _is_size(p)]
    if taken := [p.name for p in sizes if p.name == "kind" or (hasattr(ModuleModel, p.name) and p.name != "width")]:
        raise UserError(f"'{name}': a size cannot be called '{taken[0]}': rename the argument")
    described = [(p.name, int, None if p.default is p.empty else p.default) for p in sizes]
    namespace = {"kind": kind, "reads": "items" if items else "tokens", "factory": staticmethod(factory)}
    count = ("classes" if items else "vocabulary", int)
    made = make_dataclass(
        name, [count, *described], bases=(ModuleModel,), frozen=True, namespace={**namespace, "counted": counts[0]}
    )
    made.__doc__ = factory.__doc__
    return made


def _is_size(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    default = parameter.default
    return default is parameter.empty or (isinstance(default, int) and not isinstance(default, bool))


class ModuleModel(Model):
    is_module: ClassVar[bool] = True
    factory: ClassVar[Factory]
    counted: ClassVar[str]
    """The argument of the factory that gets the number of tokens or classes."""

    @classmethod
    def usual(cls, vocabulary: int) -> ModuleModel:
        return cls(vocabulary)  # pyright: ignore[reportCallIssue]

    @property
    def answers(self) -> int:
        """The number of tokens or classes."""
        return getattr(self, fields(self)[0].name)  # pyright: ignore[reportArgumentType]

    def check(self, parts: Parts) -> None:
        try:
            super().check(parts)
        except Misfit as misfit:
            why = f"has no {misfit.kind} to replace: the part would have no effect"
            raise Misfit(misfit.kind, str(self.wrong(why))) from misfit

    def make(self, key: streams.Key, draw: int) -> nn.Module:
        """The module of a draw, as it is before training."""
        _, *sizes = fields(self)  # pyright: ignore[reportArgumentType]
        given = {self.counted: self.answers, **{size.name: getattr(self, size.name) for size in sizes}}
        with seeded(int_of(streams.words(key, 2, draw))):
            try:
                made = type(self).factory(**given)
            except Exception as error:
                if not own.raised_by_own(error):
                    raise
                what = ", ".join(f"{name}={x}" for name, x in given.items())
                raise own.OwnCodeError(f"{type(self).__name__}({what}) failed in your own code", error) from error
        if not isinstance(made, nn.Module):
            raise self.wrong(f"returns a {type(made).__name__}, not a torch.nn.Module")
        return made

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        return dict(_declared(self))

    def initial(
        self, seed: int, setting: str, draw_M: NDArray[np.int64], parts: Parts
    ) -> dict[str, NDArray[np.float32]]:
        key = init_key(seed, setting)
        each = [trained(self.make(key, int(draw))) for draw in draw_M]
        return {name: np.stack([x[name].detach().numpy() for x in each]) for name in each[0]}

    def logits(
        self, theta: Tensors, inputs: Any, parts: Parts, hyper: Tensors, record: Record | None = None, /
    ) -> Tensor:
        raise NotImplementedError("modules are called one by one: see `Modules`")

    def shape(self, inputs: Any) -> list[int]:
        """Shape of the logits."""
        return [len(inputs.kind), self.answers] if self.reads == "items" else [*inputs.shape, self.answers]

    def wrong(self, what: str) -> UserError:
        return UserError(f"the module '{type(self).__name__}' {what}")


class Modules:
    """The modules of an ensemble, one per draw, called one after another."""

    def __init__(
        self,
        model: ModuleModel,
        seed: int,
        setting: str,
        draw_M: NDArray[np.int64],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        key, self._model = init_key(seed, setting), model
        self._modules = [model.make(key, int(draw)).to(device, dtype) for draw in draw_M]
        self._forward_key, self._draw_M = streams.key(seed, setting, "forward"), draw_M
        self._cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []

    def logits(self, theta: Tensors, inputs: Any, step: int | None = None) -> Tensor:
        """Logits of all models, [M, ...]: in training mode for a step, otherwise in evaluation mode."""
        each = [{name: x[i] for name, x in theta.items()} for i in range(len(self._modules))]
        return torch.stack([self.logits_of(i, theta_of, inputs, step) for i, theta_of in enumerate(each)])

    def logits_of(self, i: int, theta: Tensors, inputs: Any, step: int | None = None) -> Tensor:
        module = self._modules[i]
        if module.training != (step is not None):
            module.train(step is not None)
        if step is None:
            if not all(x.isfinite().all() for x in theta.values()):  # diverged: user code may not expect that
                return next(iter(theta.values())).new_full(self._model.shape(inputs), torch.nan)
            return functional_call(module, dict(theta), (inputs,))
        with seeded(int_of(streams.words(self._forward_key, 2, int(self._draw_M[i]), step)), self._cuda):
            return functional_call(module, dict(theta), (inputs,))


def init_key(seed: int, setting: str) -> streams.Key:
    return streams.key(seed, setting, "init", "module")


def int_of(words_2: NDArray[np.uint32]) -> int:
    return int(words_2[0]) << 32 | int(words_2[1])


@contextmanager
def seeded(seed: int, cuda: list[torch.device] | None = None) -> Iterator[None]:
    """Seed torch's generators, and restore their state afterwards."""
    with torch.random.fork_rng(devices=cuda or []):
        torch.default_generator.manual_seed(seed)
        for device in cuda or ():
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trained parameters, each once, by the first of its names."""
    return {name: x for name, x in module.named_parameters() if x.requires_grad}


def with_weights(module: nn.Module, weights: Mapping[str, NDArray]) -> nn.Module:
    """The module with other weights, ready to be evaluated."""
    with torch.no_grad():
        for name, x in trained(module).items():
            x.copy_(torch.tensor(weights[name]))
    return module.eval()


# ---- what a parameter is ---------------------------------------------------------------------------------------------


@cache
def _declared(model: ModuleModel) -> dict[str, Parameter]:
    module = model.make(init_key(0, ""), 0)
    check_parameters(model, module)
    owners: dict[int, list[nn.Module]] = {}
    for layer in module.modules():
        for x in layer.parameters(recurse=False):
            owners.setdefault(id(x), []).append(layer)
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    outer = _output([layer for layer in linear if layer.out_features == model.answers], model, module)
    if model.reads == "items":
        outer += [layer for layer in linear if layer.in_features in (1, 1 + model.answers)]
    return {name: _kind(x, owners[id(x)], outer, model.answers) for name, x in trained(module).items()}


def _output(candidates: list[nn.Linear], model: ModuleModel, module: nn.Module) -> list[nn.Linear]:
    """The layer that is called last; empty if none is called."""
    called: list[nn.Linear] = []
    for layer in candidates:
        layer.register_forward_hook(lambda *_, layer=layer: called.append(layer))
    tokens = torch.zeros(2, 2, dtype=torch.int64)
    items = _Items(torch.zeros(2, 2), tokens, torch.full((2,), 2))
    try:
        with torch.no_grad(), seeded(0):
            module.eval()(items if model.reads == "items" else tokens)
    except Exception as error:
        if not own.raised_by_own(error):
            raise
        raise own.OwnCodeError(f"the module '{type(model).__name__}' failed in your own code", error) from error
    return called[-1:]


class _Items(NamedTuple):
    priority: Tensor
    kind: Tensor
    length: Tensor


def _kind(x: Tensor, owners: list[nn.Module], outer: list[nn.Linear], answers: int) -> Parameter:
    embedding = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in owners)
    vector = x.ndim < 2 or any(isinstance(layer, NORMS) for layer in owners)
    of_torch = all(type(layer).__module__.startswith("torch.nn") for layer in owners)
    at_an_end = any(layer is one for layer in owners for one in outer) or (not of_torch and answers in x.shape)
    inner = x.ndim == 2 and not (embedding or vector or at_an_end)
    decays = not (embedding or vector)
    return Parameter(tuple(x.shape), None, decays, inner, by_module=True, out_first=inner and of_torch)


# ---- what cannot be trained ------------------------------------------------------------------------------------------


def check_parameters(model: ModuleModel, module: nn.Module) -> None:
    """UserError, with the reason, for a module that cannot be one model of an ensemble."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            raise model.wrong(f"has batch norm ({name}): it mixes sequences and keeps statistics; use a layer norm")
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(x):
            raise model.wrong(f"creates its parameter {name} at its first call: give the layer its sizes")
    for name, x in module.named_parameters():
        if x.dtype != torch.float32:
            raise model.wrong(f"has a parameter of type {_type(x)} ({name}): all must be float32")
    if not trained(module):
        raise model.wrong("has no parameter to train")


def check_module(model: ModuleModel, inputs: Any, others: Any, longest: Any) -> None:
    """UserError for a module whose logits are not a function of its weights, its inputs and torch's generator; tested
    on two minibatches and one sequence of the greatest length. Tests of all models, such as that the logits of a
    sequence do not depend on others, are in `experiments/running/trial.py`."""
    first, again = (model.make(init_key(0, ""), 0) for _ in range(2))
    check_parameters(model, first)
    if changed := _changed(_state(first), _state(again)):
        raise model.wrong(
            f"has a different initialization with the same seed ({changed}): use torch's random functions"
        )
    inputs, others, longest = (tensors(x) for x in (inputs, others, longest))
    before, found = _state(first), dict[bool, Tensor]()
    for training in (True, False):
        first.train(training)
        for given in (inputs, others, inputs):
            with seeded(0):
                logits = first(given)
            _check_logits(model, logits, given, training)
            if changed := _changed(before, _state(first)):
                raise model.wrong(f"changes {changed} when it is called: it must not keep state between calls")
            if given is inputs and not torch.equal(found.setdefault(training, logits.detach()), logits):
                raise model.wrong(
                    "keeps state between calls: the second call with the same input returns something else"
                )
    with torch.no_grad():
        _check_logits(model, first(longest), longest, training=False)


def _check_logits(model: ModuleModel, logits: Any, inputs: Any, training: bool) -> None:
    wanted = model.shape(inputs)
    if not isinstance(logits, Tensor):
        raise model.wrong(f"returns a {type(logits).__name__}, not logits {wanted}")
    if list(logits.shape) != wanted or logits.dtype != torch.float32:
        axes = "sequences, classes" if model.reads == "items" else "sequences, positions, tokens"
        raise model.wrong(f"returns {list(logits.shape)} of {_type(logits)}, not {wanted} of float32 ({axes})")
    if not logits.isfinite().all():
        raise model.wrong("returns logits that are not finite")
    if training and not logits.requires_grad:
        raise model.wrong("returns logits that do not depend on any parameter: there is nothing to train")


def _state(module: nn.Module) -> State:
    """All parameters and buffers, copied."""
    return {name: x.detach().clone() for name, x in (*module.named_parameters(), *module.named_buffers())}


def _changed(before: State, now: State) -> str:
    """The first name that is new, gone, or has another value; empty if there is none."""
    for name in (*before, *now):
        a, b = before.get(name), now.get(name)
        if a is None or b is None or a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=0, equal_nan=True):
            return name
    return ""


def tensors(arrays: Any) -> Any:
    """Inputs of a task as tensors on the CPU."""
    if isinstance(arrays, tuple):
        return type(arrays)(*map(tensors, arrays))
    return torch.tensor(arrays, dtype=torch.float32 if arrays.dtype.kind == "f" else torch.int64)


def _type(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
