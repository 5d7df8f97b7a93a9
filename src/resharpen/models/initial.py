"""Initial weights of declared parameters: random, or constant."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from resharpen import streams
from resharpen.errors import UserError
from resharpen.lazy import scipy
from resharpen.parts.parameter import STD, Parameter

CUT = 2.0


def truncated_normal(
    key: streams.Key, draw_M: NDArray[np.int64], shape: tuple[int, ...], std: float = STD
) -> NDArray[np.float32]:
    """Normal with this std, truncated at two standard deviations, by inverting the distribution function."""
    u = streams.uniforms(key, int(np.prod(shape)), draw_M)
    low = scipy.special.ndtr(-CUT)
    x = std * scipy.special.ndtri(low + (1 - 2 * low) * u)
    return x.reshape(len(draw_M), *shape).astype(np.float32)


def initial_weights(
    seed: int, setting: str, draw_M: NDArray[np.int64], parameters: Mapping[str, Parameter]
) -> dict[str, NDArray[np.float32]]:
    """theta_0 of the given draws: random values depend only on (seed, setting, draw, name)."""

    def start(name: str, parameter: Parameter) -> NDArray[np.float32]:
        shape: tuple[int, ...] = tuple(map(int, parameter.shape))
        key = streams.key(seed, setting, "init", name)
        if parameter.start is None and parameter.uniform is not None:
            u = streams.uniforms(key, int(np.prod(shape)), draw_M).reshape(len(draw_M), *shape)
            return (parameter.uniform * (2 * u - 1)).astype(np.float32)
        if parameter.start is None:
            return truncated_normal(key, draw_M, shape, parameter.std)
        value = parameter.start(*shape) if callable(parameter.start) else parameter.start
        try:
            return np.broadcast_to(np.asarray(value, np.float32), (len(draw_M), *shape)).copy()
        except (ValueError, TypeError):
            raise UserError(f"the start of {name} must be numbers in the shape {list(shape)}, not {value!r}") from None

    return {name: start(name, parameter) for name, parameter in parameters.items()}
