"""One model of an ensemble as a plain torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resharpen.models.model import Model
from resharpen.models.placement import Placement


class SingleModel(nn.Module):
    """What the family's `logits` takes, without the model axis: tokens [N, L] -> next-token logits after every prefix,
    [N, L, V]; for a retriever (priorities [N, L], classes [N, L], lengths [N]) -> class logits, [N, C].
    """

    def __init__(self, model: Model, placement: Placement, rms_epsilon: float, weights: Mapping[str, NDArray]):
        super().__init__()
        self._model, self._placement = model, placement
        parameters = {name: nn.Parameter(torch.tensor(array)) for name, array in weights.items()}
        self._names = {name: name.replace(".", "/") for name in weights}  # torch allows no dots in names
        self.weights = nn.ParameterDict({self._names[name]: parameter for name, parameter in parameters.items()})
        self.rms_epsilon: Tensor
        self.register_buffer("rms_epsilon", torch.tensor([rms_epsilon], dtype=torch.float32))

    def forward(self, inputs: Any) -> Tensor:
        theta = {name: self.weights[safe][None] for name, safe in self._names.items()}
        return self._model.logits(theta, inputs, self._placement, self.rms_epsilon)[0]
