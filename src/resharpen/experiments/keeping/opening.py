"""What can be looked at: a run, or a reference, which is what is kept of one."""

from __future__ import annotations

from pathlib import Path

from resharpen.experiments.keeping.reference import Reference, find_reference, references
from resharpen.experiments.keeping.store import REFERENCE, Run
from resharpen.paths import absolute

RunOrReference = Run | Reference
"""Both have an `experiment`, the tables `models` and `lengths`, and a `command` that trains more."""


def open_run_or_reference(directory: str | Path, trust_code: bool = False) -> RunOrReference:
    """Of a run directory, of the directory of a reference, or of a reference that the package has, by its name."""
    directory = Path(directory)
    if not absolute(directory).exists() and str(directory) in references():
        return find_reference(str(directory))
    found = Reference(directory) if absolute(directory / REFERENCE).exists() else Run(directory, trust_code)
    found.experiment  # noqa: B018  so that a directory that is neither says so here
    return found
