"""One model of an ensemble as a plain torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resharpen.models.layers import Record
from resharpen.models.model import Model
from resharpen.parts.parts import Parts


class SingleModel(nn.Module):
    """The model's `logits` without the model axis: tokens [N, L] -> next-token logits after every prefix,
    [N, L, V]; for a retriever items -> class logits, [N, C].
    """

    def __init__(
        self, model: Model, parts: Parts, hyperparameters: Mapping[str, float], weights: Mapping[str, NDArray]
    ):
        super().__init__()
        self._model, self._parts = model, parts
        parameters = {name: nn.Parameter(torch.tensor(array)) for name, array in weights.items()}
        self._names = {name: name.replace(".", "/") for name in weights}  # torch allows no dots in names
        self.weights = nn.ParameterDict({self._names[name]: parameter for name, parameter in parameters.items()})
        self._hyper = list(hyperparameters)
        for name, value in hyperparameters.items():
            self.register_buffer(f"hyper_{name}", torch.tensor([value], dtype=torch.float32))

    def forward(self, inputs: Any, record: Record | None = None) -> Tensor:
        inputs = _whole(inputs)
        theta = {name: self.weights[safe][None] for name, safe in self._names.items()}
        hyper = {name: getattr(self, f"hyper_{name}") for name in self._hyper}
        return self._model.logits(theta, inputs, self._parts, hyper, record)[0]


def _whole(inputs: Any) -> Any:
    """Tokens and classes of any integer type as torch indices."""
    if isinstance(inputs, tuple):
        return type(inputs)(*map(_whole, inputs))
    return inputs if inputs.is_floating_point() else inputs.long()
