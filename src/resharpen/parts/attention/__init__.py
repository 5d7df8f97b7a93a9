"""Attention functions, from logits to weights, by name: one file each."""

from resharpen.parts.attention.adaptive_temperature import adaptive_temperature
from resharpen.parts.attention.asentmax import asentmax
from resharpen.parts.attention.differential import differential
from resharpen.parts.attention.entmax import entmax
from resharpen.parts.attention.forgetting import forgetting
from resharpen.parts.attention.gated import gated
from resharpen.parts.attention.gated_retention import gated_retention
from resharpen.parts.attention.log_n import log_n
from resharpen.parts.attention.retention import retention
from resharpen.parts.attention.sigmoid import sigmoid
from resharpen.parts.attention.sink import sink
from resharpen.parts.attention.softmax import softmax
from resharpen.parts.attention.ssmax import ssmax
from resharpen.parts.attention.stick_breaking import stick_breaking
from resharpen.parts.attention.top_k import top_k
from resharpen.parts.attention.window import window

ATTENTIONS = {
    part.name: part
    for part in (
        softmax,
        log_n,
        ssmax,
        entmax,
        asentmax,
        stick_breaking,
        gated,
        window,
        sink,
        forgetting,
        sigmoid,
        top_k,
        differential,
        retention,
        gated_retention,
        adaptive_temperature,
    )
}
