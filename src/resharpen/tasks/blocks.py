"""Jackknife over the report set: every value without each of ten blocks of sequences.

All models of a run are scored on the same sequences, so the sampling errors of variants, draws and lengths are
correlated. Leaving out a block of sequences shows how much a comparison depends on them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from resharpen.metrics import Floats, exact_places, means_without
from resharpen.tasks.task import Measured, Task, defined_places

BLOCKS = 10


def by_length_without(task: Task, measured: Measured, validation: Any) -> dict[str, Floats]:
    """Metric -> its values by length without each block, [M, lengths, blocks]; empty if the set is not a sample, or has
    fewer sequences than blocks."""
    if not getattr(validation, "sampled", False) or validation.sequences < BLOCKS:
        return {}
    resampled = {name: values for name, values in measured.items() if name not in task.not_resampled}
    if type(task).by_length is Task.by_length:
        return _of_means(task, resampled, validation)
    if not hasattr(validation, "without"):
        return {}
    every = {name: lengths for name, (lengths, _, _) in task.by_length(resampled, validation).items()}
    models = len(next(iter(measured.values())))
    found: dict[str, Floats] = {
        name: np.full((models, len(lengths), BLOCKS), np.nan) for name, lengths in every.items()
    }
    block_P = validation.blocks_P(BLOCKS)
    for block, others in enumerate(_without_each(validation)):
        rest = {name: values[:, block_P != block] for name, values in resampled.items()}
        for name, (lengths, values, _) in task.by_length(rest, others).items():
            found[name][:, np.searchsorted(every[name], lengths), block] = values
    return found


@lru_cache(maxsize=2)
def _without_each(validation: Any) -> list[Any]:
    """The set without each block; the same objects every time, so that `defined_places` computes once for each."""
    return [validation.without(block, BLOCKS) for block in range(BLOCKS)]


def _of_means(task: Task, measured: Measured, validation: Any) -> dict[str, Floats]:
    """The same for metrics that `Task.by_length` averages, in one pass."""
    defined, length_P, block_P = (
        defined_places(task, validation, measured),
        validation.length_P,
        validation.blocks_P(BLOCKS),
    )
    found = {
        name: means_without(values, length_P, block_P, BLOCKS, defined.get(name)) for name, values in measured.items()
    }
    for name, of in task.of_sequences(defined).items():
        row_P = np.nonzero(validation.scored_NxL)[0]
        exact_MxP, last_P, seen_P = exact_places(measured[of], row_P, length_P, defined[of])
        found[name] = means_without(exact_MxP, length_P, block_P, BLOCKS, last_P & seen_P)
    return found
