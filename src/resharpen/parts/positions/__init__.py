"""Position encodings, by name: one file each."""

from resharpen.parts.positions.alibi import alibi
from resharpen.parts.positions.fire import fire
from resharpen.parts.positions.kerple import kerple
from resharpen.parts.positions.learned import learned
from resharpen.parts.positions.learned_offset import learned_offset
from resharpen.parts.positions.nape import nape
from resharpen.parts.positions.nope import nope
from resharpen.parts.positions.randomized import (
    randomized_alibi,
    randomized_learned,
    randomized_rope,
    randomized_sinusoidal,
)
from resharpen.parts.positions.rope import rope
from resharpen.parts.positions.rope_500k import rope_500k
from resharpen.parts.positions.rope_half import rope_half
from resharpen.parts.positions.sinusoidal import sinusoidal
from resharpen.parts.positions.t5 import t5

POSITIONS = {
    part.name: part
    for part in (
        rope,
        rope_half,
        rope_500k,
        nope,
        alibi,
        nape,
        fire,
        t5,
        kerple,
        sinusoidal,
        learned,
        learned_offset,
        randomized_rope,
        randomized_alibi,
        randomized_sinusoidal,
        randomized_learned,
    )
}
