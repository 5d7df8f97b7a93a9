"""The readable engine: what is computed, in plain torch. Any task, model and part, any device, float32 or float64.

Shapes: M models, N sequences, L positions, V tokens, P scored places.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resharpen.engines.base import Arrays, Batches, Ensemble, Measures, Problem, initial_state
from resharpen.engines.sets import merged
from resharpen.errors import UserError
from resharpen.models.loss import counted_nll, total_nll
from resharpen.optim.clipping import clip_factor, gradient_norm
from resharpen.optim.schedule import step_table
from resharpen.tasks import Batch, Examples

EVALUATED_AT_ONCE = 2**21
"""Bound on models x positions x tokens in one evaluation call: about 100 MB of activations."""


class TorchEngine:
    name = "torch"

    def __init__(self, problem: Problem, ensemble: Ensemble, dtype: str = "float32"):
        self.problem, self.ensemble = problem, ensemble
        self._dtype, self._device = getattr(torch, dtype), torch_device(problem.device)
        self._hyper = {name: self._tensor(values) for name, values in ensemble.hyperparameters.items()}
        self._parameters = problem.model.parameters(problem.parts)
        self._reads_sets = problem.task.sets and not problem.model.sees_order(problem.parts)
        self.load(initial_state(problem, ensemble))

    @property
    def step(self) -> int:
        return int(self._state["step"])

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        return self._state["diverged_at"].cpu().numpy()

    def dump(self) -> Arrays:
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._state.items()}

    def load(self, arrays: Arrays) -> None:
        self._state = {
            name: torch.tensor(array, device=self._device) if name in ("step", "diverged_at") else self._tensor(array)
            for name, array in arrays.items()
        }
        self._state["loss"] = torch.tensor(arrays["loss"], dtype=torch.float64, device=self._device)

    def advance(self, n: int, batches: Batches | None = None) -> None:
        """Train for n steps, on the problem's own minibatches or on given ones."""
        problem, first = self.problem, self.step
        table = step_table(problem.optimiser, self.ensemble.hyperparameters, problem.steps, first, n)
        columns = {name: self._tensor(column) for name, column in table.items()}
        for i in range(n):
            batch = problem.minibatch(self.ensemble.group, first + i) if batches is None else batches[i]
            loss_M, gradients = self.gradients(batch)
            self._update(loss_M, gradients, {name: column[i] for name, column in columns.items()})
            self._state["step"] += 1

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Each model's own loss, [M], and its gradient."""
        theta = {name: self._state[f"theta.{name}"].detach().requires_grad_() for name in self._parameters}
        loss_M = self._loss(theta, batch)
        # The models share no parameter, so the gradient of the sum of losses is each model's own.
        found = torch.autograd.grad(loss_M.sum(), list(theta.values()), allow_unused=True, materialize_grads=True)
        return loss_M.detach(), dict(zip(theta, found, strict=True))

    def _loss(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The masked mean negative log likelihood of the targets, [M]."""
        model, parts, count = self.problem.model, self.problem.parts, int(batch.mask.sum())
        if self._reads_sets:
            last_P, present_PxV, counts_PxV = self._tensors(merged(batch, self.problem.task.vocabulary))
            logits_MxPxV = model.logits_of_sets(theta, last_P, present_PxV, parts, self._hyper)
            return counted_nll(logits_MxPxV, counts_PxV) / count
        inputs, targets, mask = self._tensors(batch)
        return total_nll(model.logits(theta, inputs, parts, self._hyper), targets, mask) / count

    @torch.no_grad()
    def _update(self, loss_M: Tensor, gradients: dict[str, Tensor], row: Mapping[str, Tensor]) -> None:
        """Clip, step and EMA. A model whose gradient or weights stop being finite is marked and frozen."""
        state, optimiser = self._state, self.problem.optimiser
        norm_M = gradient_norm(gradients.values())
        newly_diverged_M = ~norm_M.isfinite()
        alive_M = (state["diverged_at"] < 0) & ~newly_diverged_M
        clip_M = clip_factor(norm_M, self._hyper["max_gradient_norm"])
        for name, g in gradients.items():

            def per_model(x_M: Tensor, like: Tensor = g) -> Tensor:
                return x_M.view(-1, *(1,) * (like.ndim - 1))

            p = SimpleNamespace(
                **{key: per_model(x_M) for key, x_M in {**self._hyper, **row}.items()}, t=state["step"] + 1
            )
            p.decay = p.weight_decay if self._parameters[name].decays else 0.0
            old = {part: state[f"{part}.{name}"] for part in ("theta", *optimiser.state, "ema")}
            kept = {part: old[part] for part in optimiser.state}
            theta, new = optimiser.update(old["theta"], g * per_model(clip_M), kept, p)
            new = {"theta": theta, **new, "ema": old["ema"] + p.ema_weight * (theta - old["ema"])}
            for part, before in old.items():
                state[f"{part}.{name}"] = torch.where(per_model(alive_M), new[part], before)
            newly_diverged_M |= alive_M & ~theta.reshape(len(theta), -1).isfinite().all(1)
        mark = newly_diverged_M & (state["diverged_at"] < 0)
        state["diverged_at"] = torch.where(mark, state["step"], state["diverged_at"])
        counts_M = (state["diverged_at"] < 0) & loss_M.isfinite()
        state["loss"] += torch.where(counts_M, loss_M.double(), 0.0)

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


def torch_device(name: str) -> torch.device:
    """The device of that name, if this machine has one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":")[0]
    if not there.get(kind, False):
        raise UserError(
            f"device '{name}': there is none here (there is: {', '.join(k for k, ok in there.items() if ok)})"
        )
    return torch.device(name)
