"""Norm functions, by name: a file each."""

from resharpen.parts.norms.rms import rms

NORMS = {part.name: part for part in (rms,)}
