"""Position encodings, by name: a file each."""

from resharpen.parts.positions.alibi import alibi
from resharpen.parts.positions.nape import nape
from resharpen.parts.positions.nope import nope
from resharpen.parts.positions.rope import rope
from resharpen.parts.positions.sinusoidal import sinusoidal

POSITIONS = {part.name: part for part in (rope, nope, alibi, nape, sinusoidal)}
