"""Networks with a leading model axis, by name: a file each."""

from __future__ import annotations

from resharpen import own
from resharpen.models.minimal import Minimal
from resharpen.models.model import Model
from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
from resharpen.models.transformer import Transformer

__all__ = ["MODELS", "RETRIEVER_PLACEMENTS", "Minimal", "Model", "Retriever", "Transformer", "find_model"]

MODELS: dict[str, type[Model]] = {model.kind: model for model in (Minimal, Transformer, Retriever)}


def find_model(kind: str) -> type[Model]:
    return own.find_class(MODELS, Model, "model", kind)
