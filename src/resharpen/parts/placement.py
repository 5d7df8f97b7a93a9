"""Where the norms stand: five yes/no positions, named.

    x = embedding                           embedding_out normalises x
    for every block f:  h = x               block_in normalises h
                        y = f(h)            block_out normalises y
                        x = x + y           residual normalises x
    logits = x U                            unembedding_in normalises x

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


POSITIONS = tuple(field.name for field in fields(Placement))

PLACEMENTS = {
    # the four of the paper
    "pre": Placement(block_in=True),
    "post": Placement(residual=True),
    "peri": Placement(block_in=True, block_out=True, unembedding_in=True),
    "peri-init": Placement(embedding_out=True, block_in=True, block_out=True, unembedding_in=True),
    # ours: no norm at all; the block of OLMo 2 and Swin v2; the usual Pre-LN of GPT-2 and Llama
    "none": Placement(),
    "out": Placement(block_out=True),
    "pre-final": Placement(block_in=True, unembedding_in=True),
}
PAPER_PLACEMENTS = ("pre", "post", "peri", "peri-init")
