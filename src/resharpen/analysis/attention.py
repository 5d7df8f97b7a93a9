"""What a trained transformer attends to, position by position.

Shapes: A layers, H heads, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError, unknown
from resharpen.experiments.spec import Setting
from resharpen.experiments.stored import StoredModel
from resharpen.models import Transformer
from resharpen.tasks import Language


def attention_of(model: StoredModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Attention weights after every prefix of a sequence, [A, H, L, L]; the row is the position that attends."""
    import torch

    family = model.setting.model
    if not isinstance(family, Transformer):
        raise UserError(f"{model.id} is not a transformer: it has no layers of attention maps")
    theta = {name: torch.tensor(array)[None] for name, array in model.weights.items()}
    epsilon = torch.tensor([model.rms_epsilon], dtype=torch.float32)
    layers = family.attention_weights(theta, torch.tensor([list(tokens)]), model.placement, epsilon)
    return np.stack([layer[0, 0].double().numpy() for layer in layers])


def entropy_by_length(weights_AxHxLxL: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats of what each position attends to, [A, H, L]; log of the length if it attends to all alike."""
    logs = np.log(weights_AxHxLxL, out=np.zeros_like(weights_AxHxLxL), where=weights_AxHxLxL > 0)
    return -(weights_AxHxLxL * logs).sum(-1)


def read_prefix(setting: Setting, text: str | None) -> list[int]:
    """Token names or numbers, separated by commas; without any, a sequence of the language longer than in training."""
    language = setting.task
    if not isinstance(language, Language):
        raise UserError(f"{setting.name}: prefixes are those of formal languages")
    names = list(language.automaton.tokens)
    if text is None:
        longest = list(language.validation(0, "selection", sequences=2).pieces(10**9))[-1]
        return longest.inputs_NxL[0].tolist()
    tokens = []
    for word in (word.strip() for word in text.split(",")):
        if word.isdigit() and word not in names and int(word) < len(names):
            word = names[int(word)]
        if word not in names:
            raise unknown("token", word, names)
        tokens.append(names.index(word))
    return tokens
