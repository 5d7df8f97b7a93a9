"""Networks with a leading model axis, and the placement of their norms."""

from resharpen.models.minimal import Minimal
from resharpen.models.model import Model
from resharpen.models.placement import PAPER_PLACEMENTS, PLACEMENTS, POSITIONS, Placement
from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
from resharpen.models.transformer import Transformer

__all__ = [
    "PAPER_PLACEMENTS",
    "PLACEMENTS",
    "POSITIONS",
    "RETRIEVER_PLACEMENTS",
    "Minimal",
    "Model",
    "Placement",
    "Retriever",
    "Transformer",
]
