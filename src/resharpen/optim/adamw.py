"""AdamW with per-model hyperparameters and per-model clipping, on tensors with a leading model axis."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def has_decay(name: str) -> bool:
    """Weight decay spares token embeddings, norm gains and biases."""
    leaf = name.rsplit(".", 1)[-1]
    return leaf != "E" and not leaf.startswith(("g_", "b_"))


def gradient_norm(gradients: Tensors) -> Tensor:
    """The global norm of each model's gradient, [M]."""
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()


def clip_factor(norm_M: Tensor, max_norm_M: Tensor) -> Tensor:
    """min(1, c / |g|), and 1 for a gradient that is zero."""
    return torch.where(norm_M > max_norm_M, max_norm_M / norm_M, torch.ones_like(norm_M))


def adamw_step(
    theta: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    lr: Tensor,
    decay: Tensor | float,
    one_minus_beta1: Tensor,
    one_minus_beta2: Tensor,
    correction1: Tensor,
    correction2: Tensor,
    epsilon: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One AdamW step; returns the new (theta, m, v).

        m <- m + (1-b1) (g - m)          v <- v + (1-b2) (g^2 - v)
        theta <- theta - lr lambda theta - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon)

    Every hyperparameter is a tensor that broadcasts against theta from its model axis.
    """
    m = m + one_minus_beta1 * (g - m)
    v = v + one_minus_beta2 * (g.square() - v)
    update = m * correction1 / ((v * correction2).sqrt() + epsilon)
    return theta - lr * decay * theta - lr * update, m, v
