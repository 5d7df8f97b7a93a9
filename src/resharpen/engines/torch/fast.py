"""The fast torch engine, used by runs. It computes what `definition.py` defines.

Shapes: M models, N sequences, L positions, V tokens, P states (last token, set of tokens), W numbers of all parameters
of a model, H hyperparameters.
"""

import ctypes
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resharpen import own
from resharpen.engines.base import Arrays, Ensemble, Measures, Problem
from resharpen.engines.torch.definition import Definition, Named
from resharpen.engines.torch.pieces import POSITIONS_AT_ONCE, pieces
from resharpen.engines.torch.sets import MOST_BITS, merged
from resharpen.models.adapter import Modules
from resharpen.models.layers import Values
from resharpen.models.loss import counted_nll, total_nll
from resharpen.models.sets import are_enough
from resharpen.parts.moment import Moment
from resharpen.tasks import Batch

FLAT = "all parameters, side by side"
"""The one name of the tensors of a state, [M, W]."""
EVALUATED_AT_ONCE = 2**21
"""Bound on models x positions x tokens in one evaluation call: about 100 MB of activations."""
COMPILED_FROM = 10_000
"""Least number of steps to compile for: compiling takes up to a minute."""
COMPILED_TO = 1024
"""Largest training length to compile for: attention weights of longer sequences may not fit in memory."""
EXAMPLE = 43
"""Length of the sequences that a loss is first compiled with."""
FLOATS_AT_ONCE = 2**19
"""Approximate size of the widest activation of a block of models: two megabytes."""


class TorchEngine(Definition):
    """The same as its definition up to rounding, but faster:

    - models in blocks and minibatches in pieces of similar length, so that activations stay in the caches;
    - prefixes with the same last token and set are merged, if a variant depends on nothing else;
    - the loss is compiled, if a run is long enough;
    - the parameters of a model are concatenated, [M, W], so that an elementwise optimizer is called once.
    """

    def __init__(self, problem: Problem, ensemble: Ensemble, dtype: str = "float32"):
        keep_memory()
        super().__init__(problem, ensemble, dtype)
        self._hyper_MxH = torch.stack(list(self._hyper_M.values()), dim=1)
        self._shapes = {name: tuple(map(int, p.shape)) for name, p in self._parameters.items()}
        decays = [np.full(math.prod(self._shapes[name]), p.decays, float) for name, p in self._parameters.items()]
        self._decay_MxW = self._hyper_M["weight_decay"][:, None] * self._tensor(np.concatenate(decays))
        v = problem.task.vocabulary
        states = problem.task.sets and v <= MOST_BITS
        self._reads_sets = states and are_enough(problem.model, problem.parts, self._hyper_M, v)
        short = self._reads_sets or problem.train_length <= COMPILED_TO
        self._compiles = problem.model.compiles and short and problem.steps >= COMPILED_FROM
        varies = 0 if self._reads_sets else min(EXAMPLE, problem.train_length)
        self._loss_of_flat = Compiled(self._flat_loss, varies) if self._compiles else self._flat_loss

    @property
    def built(self) -> str:
        return f"torch@{rounding(str(self._device), given_up=getattr(self._loss_of_flat, 'given_up', False))}"

    # ---- parameters side by side -------------------------------------------------------------------------------------

    def load(self, arrays: Arrays) -> None:
        super().load(arrays)
        self._state = {kept: {FLAT: side_by_side(tensors)} for kept, tensors in self._state.items()}

    def _by_name(self, kept: str) -> Named:
        return self.split(self._state[kept][FLAT])

    def split(self, x_MxW: Tensor) -> Named:
        """Views of the concatenated parameters, by name."""
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        each = zip(self._shapes.items(), x_MxW.split(sizes, dim=1), strict=True)
        return {name: x.view(len(x), *shape) for (name, shape), x in each}

    def _stepped(self, g: Named, numbers_M: Mapping[str, Tensor]) -> dict[str, Named]:
        optimizer = self.problem.optimizer
        if not optimizer.elementwise:
            new = super()._stepped(self.split(g[FLAT]), numbers_M)
            return {kept: {FLAT: side_by_side(tensors)} for kept, tensors in new.items()}
        p: Any = Values({name: x_M[:, None] for name, x_M in numbers_M.items()})
        p.t, p.decay = self._step + 1, self._decay_MxW
        state = {kept: self._state[kept][FLAT] for kept in optimizer.state}
        new = optimizer.updated(self._state["theta"][FLAT], g[FLAT], state, p)
        return {kept: {FLAT: x_MxW} for kept, x_MxW in new.items()}

    # ---- blocks of models, pieces of a minibatch ---------------------------------------------------------------------

    def gradients(self, batch: Batch) -> tuple[Tensor, Named]:
        if self._modules is not None:
            return self._gradients_of(self._modules, batch)
        count, M = int(batch.mask.sum()), len(self._diverged_at_M)
        work = [self._tensors(piece) for piece in self._pieces(batch)]
        models = self._models_at_once(M, work)
        losses, gradients = [], []
        moment = self._moment(batch)
        of_models = (self._state["theta"][FLAT], self._hyper_MxH, moment.key_Mx2)
        for theta_MxW, numbers_MxH, key_Mx2 in zip(*(x.split(models) for x in of_models), strict=True):
            theta_MxW = theta_MxW.detach().requires_grad_()
            total, g_MxW = torch.zeros(()), None
            for piece in work:
                loss_M = self._loss_of_flat(theta_MxW, numbers_MxH, piece, moment.t, key_Mx2, moment.length_B) / count
                (g,) = torch.autograd.grad(loss_M.sum(), theta_MxW)
                total, g_MxW = total + loss_M.detach(), g if g_MxW is None else g_MxW.add_(g)
            losses.append(total)
            gradients.append(g_MxW)
        return torch.cat(losses), {FLAT: torch.cat(gradients)}

    def _gradients_of(self, modules: Modules, batch: Batch) -> tuple[Tensor, Named]:
        """The same for the user's modules, one after another, so that only one has activations at a time."""
        inputs, targets, mask = self._tensors(batch)
        theta, losses, gradients = self._by_name("theta"), [], []
        for i, diverged in enumerate((self._diverged_at_M >= 0).tolist()):
            if diverged:  # its weights are frozen
                losses.append(self._hyper_M["weight_decay"].new_full((1,), math.nan))
                gradients.append(torch.zeros_like(self._state["theta"][FLAT][i]))
                continue
            # copied, so that memory alignment, which may affect rounding, is the same for all models
            of_this = {name: x[i].clone().requires_grad_() for name, x in theta.items()}
            logits = modules.logits_of(i, of_this, inputs, self._step)
            loss_1 = total_nll(logits[None], targets, mask) / mask.sum()
            g = torch.autograd.grad(loss_1.sum(), list(of_this.values()), materialize_grads=True)
            losses.append(loss_1.detach())
            gradients.append(torch.cat([x.flatten() for x in g]))
        return torch.cat(losses), {FLAT: torch.stack(gradients)}

    def _pieces(self, batch: Batch) -> Iterable[Any]:
        if self.problem.model.goes_in_order:
            return [batch]
        return [merged(batch, self.problem.task.vocabulary)] if self._reads_sets else pieces(batch)

    def _models_at_once(self, M: int, work: Sequence[Any]) -> int:
        """Models per block: as many as fit in the caches with the largest piece."""
        if self.problem.model.goes_in_order:
            return M
        places = max(len(x[0]) if self._reads_sets else x[2].numel() for x in work)
        if self._compiles and not self._reads_sets:
            places = POSITIONS_AT_ONCE // 4  # the same for all minibatches; compiled code keeps less in the caches
        at_once = max(1, FLOATS_AT_ONCE // (self.problem.model.width * places))
        return -(-M // -(-M // at_once))  # blocks of equal size if possible, so that there is less to compile

    def _flat_loss(
        self, theta_MxW: Tensor, hyper_MxH: Tensor, piece: Any, t: Tensor, key_Mx2: Tensor, length_B: Tensor | None
    ) -> Tensor:
        """The sum over the places of a piece, [M]."""
        model, theta, row_N = self.problem.model, self.split(theta_MxW), getattr(piece, "row", None)
        parts = replace(self.problem.parts, moment=Moment(t, self.problem.steps, key_Mx2, row_N, length_B))
        hyper_M = dict(zip(self._hyper_M, hyper_MxH.unbind(1), strict=True))
        if self._reads_sets:
            last_P, present_VxP, counts_VxP = piece
            return counted_nll(model.logits_of_sets(theta, last_P, present_VxP.T, parts, hyper_M), counts_VxP.T)
        inputs, targets, mask = piece[:3]
        return total_nll(model.logits(theta, inputs, parts, hyper_M), targets, mask)

    def measure(self, weights: Arrays, validation: Any, report: bool = False) -> Measures:
        positions = EVALUATED_AT_ONCE // (len(self.ensemble.draw_M) * self.problem.task.vocabulary)
        found = [Definition.measure(self, weights, x, report) for x in validation.pieces(positions)]
        return {name: np.concatenate([piece[name] for piece in found], axis=1) for name in found[0]}


def side_by_side(tensors: Named) -> Tensor:
    return torch.cat([x.reshape(len(x), -1) for x in tensors.values()], dim=1)


def rounding(device: str, given_up: bool = False) -> str:
    """Everything that determines rounding in torch: version, instruction set, device, and whether it can compile."""
    if device.startswith("cuda"):
        device = f"{device}-{torch.cuda.get_device_name()}"
    where_torch_looks = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    uncompiled = "-uncompiled" * (given_up or not shutil.which(where_torch_looks))
    return f"{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}-{device}{uncompiled}"


class Compiled:
    """A compiled loss: for pieces of sequences, [N, L], once for all N and L, for others once per shape. If torch
    cannot compile it, the plain loss is used, and `given_up` is set.

    The compiled code may depend on the first shape. So that results do not, that shape is fixed: sequences of length
    `varies`, or 0 if pieces are not of sequences.
    """

    def __init__(self, loss: Any, varies: int = 0):
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor

        inductor.compile_threads = 1  # every core has its own worker
        # by default torch stops compiling after eight shapes or shards per process: results would depend on the order
        dynamo.cache_size_limit = dynamo.accumulated_cache_size_limit = 2**20
        dynamo.automatic_dynamic_shapes = False  # results would depend on the order of ensemble sizes
        # Torch caches compiled code by the code object and does not check everything that a bound method refers to:
        # with one code object for all engines, a variant could run the code compiled for another one.
        own_code = FunctionType(loss.__code__.replace(), loss.__globals__, closure=loss.__closure__)
        bound = MethodType(own_code, loss.__self__) if isinstance(loss, MethodType) else own_code
        self._plain, self._fast = loss, torch.compile(bound, fullgraph=True)
        self._varies, self._known = varies, set[Any]()
        self.given_up = False

    def __call__(self, theta_MxW: Tensor, hyper_MxH: Tensor, piece: Any, *step: Tensor | None) -> Tensor:
        if not self.given_up:
            try:
                if self._varies:
                    self._compile_for(theta_MxW, hyper_MxH, piece, *step)
                return self._fast(theta_MxW, hyper_MxH, piece, *step)
            except Exception as error:
                if own.raised_by_own(error):
                    raise
                reason = " ".join(str(error).split()[:20])
                warnings.warn(f"torch cannot compile this variant, so it trains slower: {reason}", stacklevel=2)
                self.given_up = True
        return self._plain(theta_MxW, hyper_MxH, piece, *step)

    def _compile_for(self, theta_MxW: Tensor, hyper_MxH: Tensor, piece: Any, *step: Tensor | None) -> None:
        """Compile for any N and L; torch specializes on a size of one, so there are up to four cases."""
        many = [n > 1 for n in piece[0].shape]
        if (key := (*many, len(theta_MxW))) not in self._known:
            self._known.add(key)
            shape = [n if more else 1 for n, more in zip((self._varies + 1, self._varies), many, strict=True)]
            example = type(piece)(*(_varying(x.new_zeros(shape[: x.ndim])) for x in piece))
            torch.autograd.grad(self._fast(theta_MxW, hyper_MxH, example, *step).sum(), theta_MxW)
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
    """Make the C library keep freed memory: mapping memory for every larger tensor takes a fifth of the time of small
    models."""
    try:
        libc = ctypes.CDLL(None)
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(option, 2**30)
    except (OSError, AttributeError, TypeError):  # not glibc
        pass


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
