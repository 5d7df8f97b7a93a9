"""Attention maps of a trained transformer. Shapes: A layers, H heads, L tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.stored import StoredModel
from resharpen.experiments.specs.spec import Setting
from resharpen.models import Transformer
from resharpen.tasks import Language


def attention_of(model: StoredModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Attention weights after every prefix of a sequence, [A, H, L, L]; the row is the token that attends."""
    import torch

    if not isinstance(model.model, Transformer):
        raise UserError(f"{model.id} is not a transformer: it has no layers of attention maps")
    record = {}
    with torch.no_grad():
        model.module()(model.read(list(tokens)), record)
    layers = [record[f"{block}weights"] for block in model.model.blocks if block.endswith("attention.")]
    return np.stack([layer[0, 0].double().numpy() for layer in layers])


def entropy_by_length(weights_AxHxLxL: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats of each row of attention, [A, H, L]; the log of the length for uniform attention."""
    return entr(weights_AxHxLxL).sum(-1)


def read_prefix(setting: Setting, text: str | None) -> list[int]:
    """Tokens from names or numbers separated by commas; for None a sequence of the task, longer than in training."""
    task, names = setting.task, list(setting.task.token_names)
    if text is None:
        if isinstance(task, Language):
            return task.validation(0, "selection", sequences=2).inputs_NxL[0].tolist()
        examples = task.examples(next(iter(task.validation(0, "selection").pieces(10**9))))
        return examples.inputs[-1].tolist()
    tokens = []
    for word in (word.strip() for word in text.split(",")):
        if word.isdecimal() and word not in names and int(word) < len(names):
            word = names[int(word)]
        if word not in names:
            raise unknown("token", word, names)
        tokens.append(names.index(word))
    return tokens
