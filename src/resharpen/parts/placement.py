"""Norm placements: seven sites, each with or without a norm.

    x = embedding                           embedding_out normalizes x
    for every block f:  h = x               block_in normalizes h
                        y = f(h)            block_out normalizes y
                        x = x + y           residual normalizes x
    logits = x U                            unembedding_in normalizes x
    in attention:       z = heads           heads_out normalizes z, all heads concatenated, before y = z W_O
                        q, k of a head      queries_keys normalizes each, before positions are applied

`Bound` in `models/layers.py` is the only place that acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Placement:
    embedding_out: bool = False
    block_in: bool = False
    block_out: bool = False
    residual: bool = False
    unembedding_in: bool = False
    heads_out: bool = False
    queries_keys: bool = False


SITES = tuple(field.name for field in fields(Placement))

PLACEMENTS = {
    # the four of the paper
    "pre": Placement(block_in=True),
    "post": Placement(residual=True),
    "peri": Placement(block_in=True, block_out=True, unembedding_in=True),
    "peri-init": Placement(embedding_out=True, block_in=True, block_out=True, unembedding_in=True),
    # ours
    "none": Placement(),
    "out": Placement(block_out=True),
    "pre-final": Placement(block_in=True, unembedding_in=True),
    # with the norms inside attention
    "heads-out": Placement(heads_out=True),
    "olmo2": Placement(block_out=True, unembedding_in=True, queries_keys=True),
    "qwen3": Placement(block_in=True, unembedding_in=True, queries_keys=True),
    "gemma3": Placement(block_in=True, block_out=True, unembedding_in=True, queries_keys=True),
}
PAPER_PLACEMENTS = ("pre", "post", "peri", "peri-init")
STUDIED_PLACEMENTS = (*PAPER_PLACEMENTS, "none", "out", "pre-final")
"""Placements of the figure `placements`: all that have norms only around blocks."""

PLACEMENT_SOURCES = {
    "pre": "the paper",
    "post": "the paper; Vaswani et al., 2017",
    "peri": "the paper; the block of Gemma 2",
    "peri-init": "the paper",
    "none": "ours",
    "out": "ours; res-post-norm of Swin v2, the block of OLMo 2",
    "pre-final": "the usual Pre-LN of GPT-2 and Llama",
    "heads-out": "where differential attention has its norm",
    "olmo2": "OLMo 2",
    "qwen3": "Qwen 3, ViT-22B",
    "gemma3": "Gemma 3",
}
"""Source of each placement. This is about norms only: Gemma 2 also scales its embedding by sqrt(d) and caps its logits,
OLMo 2 normalizes the queries of all heads as one vector, Swin v2 has cosines as attention logits."""
