"""Clipping by the global norm of each model's own gradient, on tensors with a leading model axis."""

from __future__ import annotations

from collections.abc import Iterable

from resharpen.lazy import Tensor


def gradient_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The global norm of each model's gradient, [M], from tensors [M, ...] that together are the gradient."""
    squares_M: Tensor = sum(g.square().reshape(len(g), -1).sum(1) for g in tensors)  # pyright: ignore[reportAssignmentType]
    return squares_M.sqrt()


def clip_factor(norm_M: Tensor, max_norm_M: Tensor) -> Tensor:
    """min(1, c / |g|), and 1 for a zero gradient."""
    return (max_norm_M / norm_M).where(norm_M > max_norm_M, 1.0)
