"""Norm functions, by name: one file each."""

from resharpen.parts.norms.dyt import dyt
from resharpen.parts.norms.layer import layer
from resharpen.parts.norms.layer_scale import layer_scale
from resharpen.parts.norms.rezero import rezero
from resharpen.parts.norms.rms import rms

NORMS = {part.name: part for part in (rms, layer, dyt, rezero, layer_scale)}
