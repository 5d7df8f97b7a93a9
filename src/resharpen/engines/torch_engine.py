"""The readable engine: what is computed, in plain torch. Any device, float32 or float64.

Shapes: M models, N sequences, L positions, V tokens, P scored prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resharpen.engines.base import ATTENTION, Arrays, Batch, Batches, Ensemble, Problem, initial_state
from resharpen.models import Retriever
from resharpen.models.remedies import REMEDIES, Remedy
from resharpen.optim.adamw import adamw_step, clip_factor, gradient_norm, has_decay
from resharpen.optim.schedule import StepTable, step_table

EVALUATED_AT_ONCE = 2**21
"""Bound on models x positions x tokens in one evaluation call: about 100 MB of activations."""


class TorchEngine:
    name = "torch"

    def __init__(
        self,
        problem: Problem,
        ensemble: Ensemble,
        dtype: str = "float32",
        device: str = "cpu",
        attend: Remedy | None = None,
    ):
        """`attend` is an attention remedy of your own, in place of the one that the problem names."""
        self.problem, self.ensemble = problem, ensemble
        self._attend = attend or REMEDIES[problem.attention]
        self._dtype, self._device = getattr(torch, dtype), device
        self._hyper = {name: self._tensor(values) for name, values in ensemble.hyperparameters.items()}
        start = initial_state(problem, ensemble)
        # The order in which a sum over parameters is taken, whatever the order in a loaded file.
        self._names = [name.removeprefix("theta.") for name in start if name.startswith("theta.")]
        self.load(start)

    def dump(self) -> Arrays:
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._state.items()}

    def load(self, arrays: Arrays) -> None:
        self._state = {
            name: self._tensor(array) if "." in name else torch.tensor(array, device=self._device)
            for name, array in arrays.items()
        }

    @property
    def step(self) -> int:
        return int(self._state["step"])

    @property
    def diverged_at(self) -> NDArray[np.int64]:
        return self._state["diverged_at"].cpu().numpy().copy()

    def advance(self, n: int, batches: Batches | None = None) -> None:
        """Train for n steps, on the problem's own minibatches or on given ones."""
        problem, first = self.problem, self.step
        table = step_table(self.ensemble.hyperparameters, problem.steps, first, n)
        for i in range(n):
            batch = problem.minibatch(self.ensemble.group, first + i) if batches is None else batches[i]
            gradients, loss_M = self.gradients(batch)
            self._update(gradients, i, table)
            counts_M = (self._state["diverged_at"] < 0) & loss_M.isfinite()
            self._state["loss"] += torch.where(counts_M, loss_M, 0)
            self._state["step"] += 1

    def gradients(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient of each model's own loss, and the loss [M]."""
        theta = {name: self._state[f"theta.{name}"].detach().requires_grad_() for name in self._names}
        # The models share no parameter, so the gradient of the sum of losses is each model's own.
        model, placement = self.problem.model, self.problem.placement
        loss_M = model.loss(theta, self._tensors(batch), placement, self._hyper["rms_epsilon"], self._attend)
        gradients = torch.autograd.grad(loss_M.sum(), list(theta.values()))
        return dict(zip(theta, gradients, strict=True)), loss_M.detach()

    @torch.no_grad()
    def _update(self, gradients: dict[str, Tensor], i: int, table: StepTable) -> None:
        """Clip, AdamW and EMA. A model whose gradient or weights stop being finite is marked and frozen."""
        state, hyper = self._state, self._hyper
        norm_M = gradient_norm(gradients)
        newly_diverged_M = ~norm_M.isfinite()
        alive_M = (state["diverged_at"] < 0) & ~newly_diverged_M
        clip_M = clip_factor(norm_M, hyper["max_gradient_norm"])
        lr_M, correction1_M, correction2_M, ema_weight_M = (
            self._tensor(column[i])
            for column in (table.learning_rate, table.correction1, table.correction2, table.ema_weight)
        )
        for name, g in gradients.items():

            def per_model(x_M: Tensor, like: Tensor = g) -> Tensor:
                return x_M.view(-1, *(1,) * (like.ndim - 1))

            theta, m, v, ema = (state[f"{part}.{name}"] for part in ("theta", "m", "v", "ema"))
            new_theta, new_m, new_v = adamw_step(
                theta,
                m,
                v,
                g * per_model(clip_M),
                lr=per_model(lr_M),
                decay=per_model(hyper["weight_decay"]) if has_decay(name) else 0.0,
                one_minus_beta1=per_model(hyper["one_minus_beta1"]),
                one_minus_beta2=per_model(hyper["one_minus_beta2"]),
                correction1=per_model(correction1_M),
                correction2=per_model(correction2_M),
                epsilon=per_model(hyper["adam_epsilon"]),
            )
            new_ema = ema + per_model(ema_weight_M) * (new_theta - ema)
            alive = per_model(alive_M)
            for part, old, new in (
                ("theta", theta, new_theta),
                ("m", m, new_m),
                ("v", v, new_v),
                ("ema", ema, new_ema),
            ):
                state[f"{part}.{name}"] = torch.where(alive, new, old)
            newly_diverged_M |= alive_M & ~new_theta.flatten(1).isfinite().all(1)
        mark = newly_diverged_M & (state["diverged_at"] < 0)
        state["diverged_at"] = torch.where(mark, state["step"], state["diverged_at"])

    @torch.no_grad()
    def evaluate(self, weights: Arrays, validation: Any) -> NDArray[np.float32]:
        return self._in_pieces(weights, validation, lambda *args: [self.problem.model.scores(*args)])[0]

    @torch.no_grad()
    def examine(self, weights: Arrays, validation: Any) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        scores, model = self.evaluate(weights, validation), self.problem.model
        if not isinstance(model, Retriever):
            return scores, {}
        return scores, dict(zip(ATTENTION, self._in_pieces(weights, validation, model.attention), strict=True))

    def _in_pieces(
        self, weights: Arrays, validation: Any, measure: Callable[..., Sequence[Tensor]]
    ) -> list[NDArray[np.float32]]:
        """Measure a validation set in pieces of bounded memory; each of the measured arrays is [M, P]."""
        theta = {name: self._tensor(array) for name, array in weights.items()}
        rest = (self.problem.placement, self._hyper["rms_epsilon"], self._attend)
        positions = EVALUATED_AT_ONCE // (len(self.ensemble.draw_M) * self.problem.task.vocabulary)
        pieces = [
            measure(theta, self._tensors(self.problem.task.examples(piece)), *rest)
            for piece in validation.pieces(positions)
        ]
        return [torch.cat(columns, dim=1).float().cpu().numpy() for columns in zip(*pieces, strict=True)]

    def _tensors(self, arrays: Batch) -> list[Tensor]:
        """Tokens and masks as they are, numbers in the engine's precision."""
        return [self._tensor(x) if x.dtype.kind == "f" else torch.tensor(x, device=self._device) for x in arrays]

    def _tensor(self, array: NDArray) -> Tensor:
        return torch.tensor(array, dtype=self._dtype, device=self._device)
