"""Open runs and references, which commands and analysis read in the same way."""

from __future__ import annotations

from pathlib import Path

from resharpen.experiments.keeping.reference import Reference, find_reference, references
from resharpen.experiments.keeping.store import REFERENCE, Run, no_run
from resharpen.paths import absolute

RunOrReference = Run | Reference
"""Both have an `experiment`, the tables `models` and `lengths`, and the `command` that trains more models."""


def open_run_or_reference(directory: str | Path, trust_code: bool = False) -> RunOrReference:
    """A run directory, the directory of a reference, or the name of a reference in the package."""
    directory = Path(directory)
    if not absolute(directory).exists() and str(directory) in references():
        return find_reference(str(directory))
    if not absolute(directory).exists():
        raise no_run(directory, references())
    found = Reference(directory) if absolute(directory / REFERENCE).exists() else Run(directory, trust_code)
    found.experiment  # noqa: B018  raises here for any other directory
    return found
