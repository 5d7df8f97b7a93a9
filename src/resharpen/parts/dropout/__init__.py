"""Dropout functions, by name: one file each."""

from resharpen.parts.dropout.dropout import dropout
from resharpen.parts.dropout.no_dropout import no_dropout

DROPOUTS = {part.name: part for part in (no_dropout, dropout)}
