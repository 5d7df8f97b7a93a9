"""From attention logits to attention weights, by name: a file each."""

from resharpen.parts.attention.adaptive_temperature import adaptive_temperature
from resharpen.parts.attention.log_n import log_n
from resharpen.parts.attention.softmax import softmax

ATTENTIONS = {part.name: part for part in (softmax, log_n, adaptive_temperature)}
