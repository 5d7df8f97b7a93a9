"""The readable engine: what is computed, in plain torch. Any task, model and part, any device, float32 or float64.

Shapes: M models, N sequences, L positions, V tokens, P scored places.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resharpen import own
from resharpen.engines.base import Arrays, Batches, Ensemble, Measures, Problem, initial_state
from resharpen.engines.torch.pieces import POSITIONS_AT_ONCE, pieces
from resharpen.engines.torch.sets import MOST_BITS, are_enough, merged
from resharpen.errors import UserError
from resharpen.models.layers import Values
from resharpen.models.loss import counted_nll, total_nll
from resharpen.optim.clipping import clip_factor, gradient_norm
from resharpen.optim.schedule import step_table
from resharpen.tasks import Batch, Examples

EVALUATED_AT_ONCE = 2**21
"""Bound on models x positions x tokens in one evaluation call: about 100 MB of activations."""
COMPILED_FROM = 10_000
"""Steps from which compiling pays: it takes up to a minute."""
COMPILED_TO = 1024
"""Training length up to which it does: attention weights of a piece of longer ones may not fit in memory."""
EXAMPLE = 43
"""Length of the sequences that a loss is compiled with first, if there are such."""
FLOATS_AT_ONCE = 2**19
"""Models are trained in blocks whose widest activation has about so many numbers: two megabytes."""


class TorchEngine:
    name = "torch"

    def __init__(self, problem: Problem, ensemble: Ensemble, dtype: str = "float32"):
        keep_memory()
        self.problem, self.ensemble = problem, ensemble
        self._dtype, self._device = getattr(torch, dtype), torch_device(problem.device)
        self._hyper = {name: self._tensor(values) for name, values in ensemble.hyperparameters.items()}
        self._hyper_MxH = torch.stack(list(self._hyper.values()), dim=1)
        self._parameters = problem.model.parameters(problem.parts)
        self._shapes = {name: tuple(map(int, p.shape)) for name, p in self._parameters.items()}
        decays = [np.full(math.prod(self._shapes[name]), p.decays) for name, p in self._parameters.items()]
        self._decay_MxW = self._hyper["weight_decay"][:, None] * self._tensor(np.concatenate(decays).astype(float))
        v = problem.task.vocabulary
        states = problem.task.sets and v <= MOST_BITS
        self._reads_sets = states and are_enough(problem.model, problem.parts, self._hyper, v)
        short = self._reads_sets or problem.train_length <= COMPILED_TO
        self._compiles = problem.model.compiles and short and problem.steps >= COMPILED_FROM
        varies = 0 if self._reads_sets else min(EXAMPLE, problem.train_length)
        self._loss_of_flat = Compiled(self._flat_loss, varies) if self._compiles else self._flat_loss
        self.load(initial_state(problem, ensemble))

    @property
    def step(self) -> int:
        return self._step

    @property
    def built(self) -> str:
        return f"torch@{rounding(str(self._device), given_up=getattr(self._loss_of_flat, 'given_up', False))}"

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        return self._diverged_at.cpu().numpy().copy()

    @property
    def _kept(self) -> tuple[str, ...]:
        """What of the state has an array for every parameter; here they are side by side, [M, W]."""
        return "theta", "theta_0", "ema", *self.problem.optimizer.state

    def dump(self) -> Arrays:
        state: Arrays = {"step": np.array([self._step]), "diverged_at": self.diverged_at}
        state["loss"] = self._loss_sum.cpu().numpy().copy()
        for kept in self._kept:
            named = self._named(self._state[kept])
            state |= {f"{kept}.{name}": tensor.cpu().numpy().copy() for name, tensor in named.items()}
        return state

    def load(self, arrays: Arrays) -> None:
        self._step = int(arrays["step"][0])
        self._diverged_at = torch.tensor(arrays["diverged_at"], device=self._device)
        self._loss_sum = torch.tensor(arrays["loss"], dtype=torch.float64, device=self._device)
        models = len(self._diverged_at)
        self._state = {
            kept: self._tensor(
                np.concatenate([arrays[f"{kept}.{n}"].reshape(models, -1) for n in self._shapes], axis=1)
            )
            for kept in self._kept
        }

    def _named(self, x_MxW: Tensor) -> dict[str, Tensor]:
        """Views of what lies side by side."""
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        each = zip(self._shapes.items(), x_MxW.split(sizes, dim=1), strict=True)
        return {name: x.view(len(x), *shape) for (name, shape), x in each}

    def advance(self, n: int, batches: Batches | None = None) -> None:
        """Train for n steps, on the problem's own minibatches or on given ones."""
        problem, first = self.problem, self._step
        table = step_table(problem.optimizer, self.ensemble.hyperparameters, problem.steps, first, n)
        columns = {name: self._tensor(column) for name, column in table.items()}
        for i in range(n):
            batch = problem.minibatch(self.ensemble.group, first + i) if batches is None else batches[i]
            loss_M, g_MxW = self._gradients(batch)
            self._update(loss_M, g_MxW, {name: column[i] for name, column in columns.items()})
            self._step += 1

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Each model's own loss, [M], and its gradient, by name."""
        loss_M, g_MxW = self._gradients(batch)
        return loss_M, self._named(g_MxW)

    def _gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The masked mean negative log likelihood of the targets of each model, [M], and its gradient, [M, W].

        Block by block of models and piece by piece of the minibatch, so that activations stay in the caches.
        """
        count, M = int(batch.mask.sum()), len(self._diverged_at)
        work = [self._tensors(piece) for piece in self._pieces(batch)]
        places = max(len(x[0]) if self._reads_sets else x[2].numel() for x in work)
        if self._compiles and not self._reads_sets:
            places = POSITIONS_AT_ONCE // 4  # whatever the minibatch; what is compiled keeps less in the caches
        at_once = max(1, FLOATS_AT_ONCE // (self.problem.model.width * places))
        models = -(-M // -(-M // at_once))  # blocks of one size, as far as it goes: there is less to compile
        losses, gradients = [], []
        blocks = zip(self._state["theta"].split(models), self._hyper_MxH.split(models), strict=True)
        for theta_MxW, numbers_MxH in blocks:
            theta_MxW = theta_MxW.detach().requires_grad_()
            total, g_MxW = torch.zeros(()), None
            for piece in work:
                loss_M = self._loss_of_flat(theta_MxW, numbers_MxH, piece) / count
                # The models share no parameter, so the gradient of the sum of losses is each model's own.
                (g,) = torch.autograd.grad(loss_M.sum(), theta_MxW)
                total, g_MxW = total + loss_M.detach(), g if g_MxW is None else g_MxW.add_(g)
            losses.append(total)
            gradients.append(g_MxW)
        return torch.cat(losses), torch.cat(gradients)

    def _pieces(self, batch: Batch) -> Iterable[Any]:
        return [merged(batch, self.problem.task.vocabulary)] if self._reads_sets else pieces(batch)

    def _flat_loss(self, theta_MxW: Tensor, hyper_MxH: Tensor, piece: Any) -> Tensor:
        """The sum over the places of a piece, [M]."""
        model, parts, theta = self.problem.model, self.problem.parts, self._named(theta_MxW)
        hyper = dict(zip(self._hyper, hyper_MxH.unbind(1), strict=True))
        if self._reads_sets:
            last_P, present_VxP, counts_VxP = piece
            return counted_nll(model.logits_of_sets(theta, last_P, present_VxP.T, parts, hyper), counts_VxP.T)
        inputs, targets, mask = piece
        return total_nll(model.logits(theta, inputs, parts, hyper), targets, mask)

    @torch.no_grad()
    def _update(self, loss_M: Tensor, g_MxW: Tensor, row: Mapping[str, Tensor]) -> None:
        """Clip, step and EMA. A model whose gradient or weights stop being finite is marked and frozen."""
        norm_M = gradient_norm(g_MxW)
        alive_M = (self._diverged_at < 0) & norm_M.isfinite()
        g_MxW = g_MxW * clip_factor(norm_M, self._hyper["max_gradient_norm"])[:, None]
        old = {name: x for name, x in self._state.items() if name != "theta_0"}
        new = self._stepped(g_MxW, {**self._hyper, **row})
        new["ema"] = old["ema"] + row["ema_weight"][:, None] * (new["theta"] - old["ema"])
        if not alive_M.all():
            new = {name: torch.where(alive_M[:, None], x, old[name]) for name, x in new.items()}
        self._state |= new
        alive_M &= new["theta"].isfinite().all(1)
        self._diverged_at = torch.where(alive_M | (self._diverged_at >= 0), self._diverged_at, self._step)
        self._loss_sum += torch.where(alive_M & loss_M.isfinite(), loss_M.double(), 0.0)

    def _stepped(self, g_MxW: Tensor, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the optimizer makes of weights and its own state: of all at once, or tensor by tensor."""
        optimizer, state = self.problem.optimizer, self._state
        p: Any
        if optimizer.elementwise:
            p = Values({name: x_M[:, None] for name, x_M in numbers.items()})
            p.t, p.decay = self._step + 1, self._decay_MxW
            return optimizer.updated(state["theta"], g_MxW, {name: state[name] for name in optimizer.state}, p)
        named = {kept: self._named(state[kept]) for kept in ("theta", *optimizer.state)}
        new: dict[str, list[Tensor]] = {kept: [] for kept in named}
        for name, g in self._named(g_MxW).items():
            p = Values({key: x_M.view(-1, *(1,) * (g.ndim - 1)) for key, x_M in numbers.items()})
            p.t, p.decay = self._step + 1, p.weight_decay if self._parameters[name].decays else 0.0
            p.inner = self._parameters[name].inner
            kept = {s: named[s][name] for s in optimizer.state}
            for updated, x in optimizer.updated(named["theta"][name], g, kept, p).items():
                new[updated].append(x.reshape(len(x), -1))
        return {kept: torch.cat(tensors, dim=1) for kept, tensors in new.items()}

    @torch.no_grad()
    def measure(self, weights: Arrays, validation: Any, report: bool = False) -> Measures:
        theta = {name: self._tensor(array) for name, array in weights.items()}
        task = self.problem.task
        positions = EVALUATED_AT_ONCE // (len(self.ensemble.draw_M) * task.vocabulary)
        pieces: dict[str, list[Tensor]] = {}
        for piece in validation.pieces(positions):
            for name, value_MxP in self._measure(theta, task.examples(piece), report).items():
                pieces.setdefault(name, []).append(value_MxP)
        return {name: torch.cat(found, dim=1).float().cpu().numpy() for name, found in pieces.items()}

    def _measure(self, theta: Mapping[str, Tensor], examples: Examples, report: bool) -> dict[str, Tensor]:
        model, parts = self.problem.model, self.problem.parts
        truth = {name: self._tensors(x) for name, x in examples.truth.items()}
        inputs, scored = self._tensors(examples.inputs), self._tensors(examples.scored)
        logits = model.logits(theta, inputs, parts, self._hyper)
        found = self.problem.task.score(logits[:, scored], truth)
        return found | (model.dispersion(theta, inputs, parts, self._hyper) if report else {})

    def _tensors(self, arrays: Any) -> Any:
        """Tokens and masks as they are, numbers in the engine's precision; tuples and arrays alike."""
        if isinstance(arrays, tuple):
            made = [self._tensors(x) for x in arrays]
            return type(arrays)(*made) if hasattr(arrays, "_fields") else tuple(made)
        return self._tensor(arrays) if arrays.dtype.kind == "f" else torch.tensor(arrays, device=self._device)

    def _tensor(self, array: NDArray) -> Tensor:
        return torch.tensor(array, dtype=self._dtype, device=self._device)


def rounding(device: str, given_up: bool = False) -> str:
    """What decides how torch rounds: long runs are compiled, where there is a compiler and it can."""
    if device.startswith("cuda"):
        device = f"{device}-{torch.cuda.get_device_name()}"
    where_torch_looks = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    uncompiled = "-uncompiled" * (given_up or not shutil.which(where_torch_looks))
    return f"{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}-{device}{uncompiled}"


def torch_device(name: str) -> torch.device:
    """The device of that name, if this machine has one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":")[0]
    if not there.get(kind, False):
        raise UserError(
            f"device '{name}': there is none here (there is: {', '.join(k for k, ok in there.items() if ok)})"
        )
    return torch.device(name)


class Compiled:
    """A loss of weights, hyperparameters and a piece, compiled: for pieces of sequences, [N, L], once for all N and L,
    for others shape by shape. One that torch cannot compile stays as it is: then it has given up.

    What is compiled may depend on the shape that comes first. So that results do not, that is always the same: `varies`
    is the length of its sequences, or 0 if pieces are not of sequences.
    """

    def __init__(self, loss: Any, varies: int = 0):
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor

        inductor.compile_threads = 1  # every core has a worker of its own
        # By default torch stops after eight shapes, or eight shards in one process: results would depend on which.
        dynamo.cache_size_limit = dynamo.accumulated_cache_size_limit = 2**20
        dynamo.automatic_dynamic_shapes = False  # and on the order in which numbers of models come
        # Torch keeps what it compiled by the code object, and does not look at all that a bound method refers to: with
        # the same code for all engines a variant would be trained as another that came before it.
        own_code = FunctionType(loss.__code__.replace(), loss.__globals__, closure=loss.__closure__)
        bound = MethodType(own_code, loss.__self__) if isinstance(loss, MethodType) else own_code
        self._plain, self._fast = loss, torch.compile(bound, fullgraph=True)
        self._varies, self._known = varies, set[Any]()
        self.given_up = False

    def __call__(self, theta_MxW: Tensor, hyper_MxH: Tensor, piece: Any) -> Tensor:
        if not self.given_up:
            try:
                if self._varies:
                    self._compile_for(theta_MxW, hyper_MxH, piece)
                return self._fast(theta_MxW, hyper_MxH, piece)
            except Exception as error:
                if own.raised_by_own(error):
                    raise
                reason = " ".join(str(error).split()[:20])
                warnings.warn(f"torch cannot compile this variant, which trains slower without: {reason}", stacklevel=2)
                self.given_up = True
        return self._plain(theta_MxW, hyper_MxH, piece)

    def _compile_for(self, theta_MxW: Tensor, hyper_MxH: Tensor, piece: Any) -> None:
        """Both numbers may be any but one, which torch takes for a case of its own: there are up to four of them."""
        many = [n > 1 for n in piece[0].shape]
        if (key := (*many, len(theta_MxW))) not in self._known:
            self._known.add(key)
            shape = [n if more else 1 for n, more in zip((self._varies + 1, self._varies), many, strict=True)]
            example = type(piece)(*(_varying(x.new_zeros(shape)) for x in piece))
            torch.autograd.grad(self._fast(theta_MxW, hyper_MxH, example).sum(), theta_MxW)
        for x in piece:
            _varying(x)


def _varying(x: Tensor) -> Tensor:
    """The same, marked for torch.compile."""
    for axis, n in enumerate(x.shape):
        if n > 1:
            torch._dynamo.mark_dynamic(x, axis)
    return x


@cache
def keep_memory() -> None:
    """Ask the C library to keep freed memory: by default every larger tensor is mapped anew, page by page, and a fifth
    of the time of small models goes into that."""
    try:
        libc = ctypes.CDLL(None)
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(option, 2**30)
    except (OSError, AttributeError, TypeError):  # not glibc
        pass


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
