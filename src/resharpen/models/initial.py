"""Initial weights: matrices from a truncated normal, gains at one, biases at zero."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from resharpen import streams

STD, CUT = 0.02, 2.0


def truncated_normal(key: streams.Key, draw_M: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Normal of std 0.02, redrawn outside two std, by inverting the distribution function; [M, *shape]."""
    from scipy.special import ndtr, ndtri  # here, so that a command that trains nothing does not wait for it

    u = streams.uniforms(key, int(np.prod(shape)), draw_M)
    low = ndtr(-CUT)
    x = STD * ndtri(low + (1 - 2 * low) * u)
    return x.reshape(len(draw_M), *shape).astype(np.float32)


def initial_weights(
    seed: int,
    setting: str,
    draw_M: NDArray[np.int64],
    matrices: Mapping[str, tuple[int, ...]],
    gains: Mapping[str, tuple[int, ...]],
    biases: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, NDArray[np.float32]]:
    """theta_0 of the given draws: a matrix depends on (seed, setting, draw, name) and on nothing else."""
    theta = {
        name: truncated_normal(streams.key(seed, setting, "init", name), draw_M, shape)
        for name, shape in matrices.items()
    }
    zeros = {name: np.zeros((len(draw_M), *shape), dtype=np.float32) for name, shape in biases.items()}
    ones = {name: np.ones((len(draw_M), *shape), dtype=np.float32) for name, shape in gains.items()}
    return theta | zeros | ones
