"""The definition of training, in plain torch: every other engine computes the same and is tested against it.

All models read the same minibatches; every hyperparameter is one number per model. Step n = 0, 1, ... of a model:

    L        mean over the places of the mask of  -log softmax(logits(theta, inputs))[target]
    g        dL / dtheta, times min(1, c / |g|)              |g| over all parameters of the model
    theta    optimizer(theta, g)                             AdamW, or another of `optim/`, with the scheduled rate
    ema      ema + b (theta - ema)                           b = (rho + n)^-kappa
    loss     loss + L

A model whose |g| or new theta is not finite has diverged at step n: its loss is not added, and its weights are frozen.
A gradient that is not finite is not applied.

Shapes: M models, N sequences, L positions, V tokens, P scored places. Tensors of parameters are [M, ...].
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resharpen.engines.base import Arrays, Batches, Ensemble, Measures, Problem, initial_state, lengths
from resharpen.errors import UserError
from resharpen.models.adapter import ModuleModel, Modules
from resharpen.models.layers import Values
from resharpen.models.loss import total_nll
from resharpen.optim.clipping import clip_factor, gradient_norm
from resharpen.optim.schedule import step_table
from resharpen.parts import Parts
from resharpen.parts.moment import Moment, step_keys
from resharpen.parts.parameter import Parameter
from resharpen.tasks import Batch

Named = dict[str, Tensor]
"""Parameters, or state of each parameter, by name."""
KEYS_AT_ONCE = 256
"""Steps whose keys of random numbers are computed together."""


class Definition:
    def __init__(self, problem: Problem, ensemble: Ensemble, dtype: str = "float32"):
        self.problem, self.ensemble = problem, ensemble
        self._dtype, self._device = getattr(torch, dtype), torch_device(problem.device)
        self._hyper_M = {name: self._tensor(x_M) for name, x_M in ensemble.hyperparameters.items()}
        self._parameters = problem.model.parameters(problem.parts)
        self._modules = self._own_modules()
        self._keys: tuple[int, Tensor] | None = None
        self.load(initial_state(problem, ensemble))

    def _own_modules(self) -> Modules | None:
        """The user's own modules, one per model: they have no model axis."""
        problem = self.problem
        if not isinstance(problem.model, ModuleModel):
            return None
        draw_M = self.ensemble.draw_M
        return Modules(problem.model, problem.seed, problem.setting, draw_M, self._device, self._dtype)

    @property
    def step(self) -> int:
        return self._step

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        return self._diverged_at_M.cpu().numpy().copy()

    # ---- state -------------------------------------------------------------------------------------------------------

    def load(self, arrays: Arrays) -> None:
        self._step = int(arrays["step"][0])
        self._diverged_at_M = torch.tensor(arrays["diverged_at"], device=self._device)
        self._loss_M = torch.tensor(arrays["loss"], dtype=torch.float64)  # on the CPU: not every device has float64
        self._state = {
            kept: {name: self._tensor(arrays[f"{kept}.{name}"]) for name in self._parameters}
            for kept in ("theta", "theta_0", "ema", *self.problem.optimizer.state)
        }

    def dump(self) -> Arrays:
        state: Arrays = {"step": np.array([self._step]), "diverged_at": self.diverged_at}
        state["loss"] = self._loss_M.numpy().copy()
        for kept in self._state:
            state |= {f"{kept}.{name}": x.cpu().numpy().copy() for name, x in self._by_name(kept).items()}
        return state

    def _by_name(self, kept: str) -> Named:
        return self._state[kept]

    # ---- training ----------------------------------------------------------------------------------------------------

    def advance(self, n: int, batches: Batches | None = None) -> None:
        """Train for n steps, on the problem's own minibatches or on given ones."""
        problem, first = self.problem, self._step
        draws = self.ensemble.hyperparameters
        table = step_table(problem.optimizer, problem.schedule, draws, problem.steps, first, n)
        columns_nxM = {name: self._tensor(column) for name, column in table.items()}
        for i in range(n):
            batch = problem.minibatch(self.ensemble.group, first + i) if batches is None else batches[i]
            loss_M, g = self.gradients(batch)
            self._update(loss_M, g, {name: column[i] for name, column in columns_nxM.items()})
            self._step += 1

    def gradients(self, batch: Batch) -> tuple[Tensor, Named]:
        """The loss of every model, [M], and its gradient."""
        inputs, targets, mask = self._tensors(batch)
        theta = {name: x.detach().requires_grad_() for name, x in self._state["theta"].items()}
        parts = replace(self.problem.parts, moment=self._moment(batch))
        logits = self._logits(theta, inputs, parts, self._step)
        loss_M = total_nll(logits, targets, mask) / mask.sum()
        # models share no parameters, so the gradient of the sum of losses contains the gradient of each model
        g = torch.autograd.grad(loss_M.sum(), list(theta.values()), materialize_grads=True)
        return loss_M.detach(), dict(zip(theta, g, strict=True))

    def _logits(self, theta: Named, inputs: Any, parts: Parts, step: int | None = None) -> Tensor:
        """Logits of every model, in training mode for a step, otherwise in evaluation mode."""
        if self._modules is not None:
            return self._modules.logits(theta, inputs, step)
        return self.problem.model.logits(theta, inputs, parts, self._hyper_M)

    def _moment(self, batch: Batch) -> Moment:
        """This step as parts see it: its number, the keys of each model's random numbers, and the lengths of
        sequences."""
        problem, offset = self.problem, self._step % KEYS_AT_ONCE
        if self._keys is None or self._keys[0] != self._step - offset:
            first = self._step - offset
            steps = range(first, first + KEYS_AT_ONCE)
            keys_SxMx2 = step_keys(problem.seed, problem.setting, self.ensemble.draw_M, steps)
            self._keys = first, torch.tensor(keys_SxMx2.astype(np.int64), device=self._device)
        t = torch.tensor(self._step + 1, dtype=self._dtype, device=self._device)
        length_B = torch.tensor(lengths(batch.mask), device=self._device) if batch.mask.ndim == 2 else None
        return Moment(t, problem.steps, self._keys[1][offset], length_B=length_B)

    @torch.no_grad()
    def _update(self, loss_M: Tensor, g: Named, row_M: Mapping[str, Tensor]) -> None:
        """Clip, step and average; freeze diverged models. `row_M` is the row of this step in the step table."""
        old, norm_M = self._state, gradient_norm(g.values())
        factor_M = clip_factor(norm_M, self._hyper_M["max_gradient_norm"])
        new = self._stepped({name: x * along(factor_M, x) for name, x in g.items()}, {**self._hyper_M, **row_M})
        new["ema"] = {
            name: ema + along(row_M["ema_weight"], ema) * (new["theta"][name] - ema) for name, ema in old["ema"].items()
        }
        alive_M = (self._diverged_at_M < 0) & norm_M.isfinite()
        if not alive_M.all():
            new = {
                kept: {name: x.where(along(alive_M, x), old[kept][name]) for name, x in tensors.items()}
                for kept, tensors in new.items()
            }
        self._state = old | new
        for theta in new["theta"].values():
            alive_M &= theta.isfinite().reshape(len(theta), -1).all(1)
        self._diverged_at_M = self._diverged_at_M.where(alive_M | (self._diverged_at_M >= 0), self._step)
        self._loss_M += loss_M.where(alive_M & loss_M.isfinite(), 0.0).cpu().double()

    def _stepped(self, g: Named, numbers_M: Mapping[str, Tensor]) -> dict[str, Named]:
        """New weights and optimizer state, parameter by parameter."""
        optimizer, theta = self.problem.optimizer, self._by_name("theta")
        state = {kept: self._by_name(kept) for kept in optimizer.state}
        new: dict[str, Named] = {kept: {} for kept in ("theta", *optimizer.state)}
        for name, parameter in self._parameters.items():
            p: Any = Values({key: along(x_M, g[name]) for key, x_M in numbers_M.items()})
            p.t, p.inner = self._step + 1, parameter.inner
            p.decay = p.weight_decay if parameter.decays else 0.0
            of_this = {kept: turned(tensors[name], parameter) for kept, tensors in state.items()}
            moved = optimizer.updated(turned(theta[name], parameter), turned(g[name], parameter), of_this, p)
            for kept, x in moved.items():
                new[kept][name] = turned(x, parameter)
        return new

    # ---- measuring ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(self, weights: Arrays, validation: Any, report: bool = False) -> Measures:
        """Scores at every place of a validation set, [M, P]; for a report also the model's dispersion."""
        task, model, parts = self.problem.task, self.problem.model, self.problem.parts
        theta = {name: self._tensor(array) for name, array in weights.items()}
        examples = task.examples(validation)
        inputs, scored = self._tensors(examples.inputs), self._tensors(examples.scored)
        truth = {name: self._tensors(x) for name, x in examples.truth.items()}
        logits_MxPxV = self._logits(theta, inputs, self.problem.parts)[:, scored]
        found = task.score(logits_MxPxV, truth)
        if report or task.metric not in found:
            found |= task.further_scores(logits_MxPxV, truth)
        if report:
            found |= model.dispersion(theta, inputs, parts, self._hyper_M)
        return {name: x_MxP.float().cpu().numpy() for name, x_MxP in found.items()}

    # ---- arrays to tensors -------------------------------------------------------------------------------------------

    def _tensors(self, arrays: Any) -> Any:
        """Arrays and tuples of arrays as tensors; floats in the engine's precision."""
        if isinstance(arrays, tuple):
            made = [self._tensors(x) for x in arrays]
            return type(arrays)(*made) if hasattr(arrays, "_fields") else tuple(made)
        return self._tensor(arrays) if arrays.dtype.kind == "f" else torch.tensor(arrays, device=self._device)

    def _tensor(self, array: NDArray[np.floating]) -> Tensor:
        return torch.tensor(array, dtype=self._dtype).to(self._device)  # float64 arrays are rounded on the CPU


def along(x_M: Tensor, tensor: Tensor) -> Tensor:
    """One number per model, shaped to broadcast against [M, ...]."""
    return x_M.view(-1, *(1,) * (tensor.ndim - 1))


def turned(x: Tensor, parameter: Parameter) -> Tensor:
    """Transpose a matrix that is stored as [out, in] to [in, out] for the optimizer, and back."""
    return x.mT if parameter.out_first else x


def torch_device(name: str) -> torch.device:
    """The device of that name, if this machine has one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":")[0]
    if not there.get(kind, False):
        raise UserError(
            f"device '{name}' is not available (available: {', '.join(k for k, ok in there.items() if ok)})"
        )
    return torch.device(name)
