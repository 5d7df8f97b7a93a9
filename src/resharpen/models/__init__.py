"""Networks with a leading model axis, by name, one file each; and users' modules (`adapter.py`)."""

from __future__ import annotations

from resharpen import own
from resharpen.errors import UserError
from resharpen.models.minimal import Minimal
from resharpen.models.model import Model
from resharpen.models.recurrent import Gru, Lstm, Rnn
from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
from resharpen.models.transformer import Transformer

MODELS: dict[str, type[Model]] = {model.kind: model for model in (Minimal, Transformer, Retriever, Rnn, Gru, Lstm)}


def find_model(kind: str) -> type[Model]:
    """The built-in model of that name, or the user's own: a torch module, or a class derived from `Model`."""
    if not own.is_own(kind):
        return own.find_class(MODELS, Model, "model", kind)
    from resharpen.models.adapter import makes_modules, module_model

    if makes_modules(found := own.find(kind)):
        return module_model(kind, found)
    try:
        return own.find_class(MODELS, Model, "model", kind)
    except UserError as error:
        raise UserError(f"{error}, a torch.nn.Module, or a function of the vocabulary that returns one") from error
