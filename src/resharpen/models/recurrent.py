"""Recurrent networks as in torch.nn: an embedding, layers of `rnn`, `gru` or `lstm`, an unembedding; no norms.

    x_t = E[t];   for every layer   x_t = h_t = cell(x_t, h_{t-1});   logits = h U

Every layer has torch's two matrices and two biases, [in, out], with the gates concatenated in torch's order. Their
initialization is torch's, uniform on +-1/sqrt(d): with the truncated normals of standard deviation 0.02 of the other
models, a cell would forget all but the last token. E and U are initialized as in the other models.

Shapes: M models, N sequences, L positions, D width, G gates side by side (a multiple of D).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from resharpen.lazy import Tensor
from resharpen.models.layers import Record, Tensors, embedding, linear
from resharpen.models.model import Model
from resharpen.parts import parameter
from resharpen.parts.parameter import Parameter
from resharpen.parts.parts import Parts

State = tuple["Tensor", ...]
"""State of a layer, [M, N, D] each; the first is its output."""


@dataclass(frozen=True)
class Recurrent(Model):
    """Sizes of a recurrent network."""

    vocabulary: int
    d: int = 64
    layers: int = 1

    goes_in_order: ClassVar[bool] = True
    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("d", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: model sizes are at least 1")

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        d, gates, most = self.d, self.gates * self.d, 1 / math.sqrt(self.d)
        matrix = parameter.learned(d, gates, uniform=most)
        bias = parameter.learned(gates, uniform=most, decays=False)
        of_layer = {"W_ih": matrix, "W_hh": matrix, "b_ih": bias, "b_hh": bias}
        return {
            "E": parameter.embedding(self.vocabulary, d),
            **{f"{layer}.{name}": x for layer in range(self.layers) for name, x in of_layer.items()},
            "U": parameter.outer(d, self.vocabulary),
        }

    def logits(
        self, theta: Tensors, tokens_NxL: Tensor, parts: Parts, hyper: Tensors, record: Record | None = None
    ) -> Tensor:
        """Next-token logits after every prefix, [M, N, L, V]; all models read the same sequences."""
        import torch

        x_MxNxLxD = embedding(theta["E"], tokens_NxL)
        if record is not None:
            record["embedding"] = x_MxNxLxD
        for layer in range(self.layers):
            W_ih, W_hh, b_ih, b_hh = (theta[f"{layer}.{name}"] for name in ("W_ih", "W_hh", "b_ih", "b_hh"))
            read = linear(x_MxNxLxD, W_ih) + b_ih[:, None, None]
            state: State = (read.new_zeros(*read.shape[:2], self.d),) * self.states
            outputs = []
            for read_MxNxG in read.unbind(2):
                state = self.cell(read_MxNxG, b_hh[:, None].baddbmm(state[0], W_hh), state)
                outputs.append(state[0])
            x_MxNxLxD = torch.stack(outputs, dim=2)
            if record is not None:
                record[f"{layer}.stream"] = x_MxNxLxD
        return linear(x_MxNxLxD, theta["U"])

    def cell(self, read_MxNxG: Tensor, recalled_MxNxG: Tensor, state: State) -> State:
        """The next state from x_t W_ih + b_ih and h_{t-1} W_hh + b_hh."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rnn(Recurrent):
    """h' = tanh(x W_ih + b_ih + h W_hh + b_hh) (Elman, 1990)."""

    kind: ClassVar[str] = "rnn"
    gates: ClassVar[int] = 1

    def cell(self, read_MxNxG: Tensor, recalled_MxNxG: Tensor, state: State) -> State:
        return ((read_MxNxG + recalled_MxNxG).tanh(),)


@dataclass(frozen=True)
class Gru(Recurrent):
    """r, z = sigma(read + recalled), n = tanh(read + r recalled), h' = (1 - z) n + z h (Cho et al., 2014)."""

    kind: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3

    def cell(self, read_MxNxG: Tensor, recalled_MxNxG: Tensor, state: State) -> State:
        read, recalled = read_MxNxG.chunk(3, -1), recalled_MxNxG.chunk(3, -1)
        r, z = ((a + b).sigmoid() for a, b in zip(read[:2], recalled[:2], strict=True))
        n = (read[2] + r * recalled[2]).tanh()
        return (n + z * (state[0] - n),)


@dataclass(frozen=True)
class Lstm(Recurrent):
    """i, f, o = sigma(read + recalled), g = tanh of it, c' = f c + i g, h' = o tanh(c') (Hochreiter and Schmidhuber,
    1997)."""

    kind: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 2

    def cell(self, read_MxNxG: Tensor, recalled_MxNxG: Tensor, state: State) -> State:
        i, f, g, o = (read_MxNxG + recalled_MxNxG).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
