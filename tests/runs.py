"""Comparing runs."""

from __future__ import annotations

from polars.testing import assert_frame_equal

from resharpen.experiments.keeping.shard import TABLES
from resharpen.experiments.keeping.store import Run


def assert_same_results(a: Run, b: Run) -> None:
    """Every table and every kept weight, bit for bit."""
    for name in TABLES:
        order = [c for c in ("model", "weights", "selection", "step", "length") if c in a.table(name).columns]
        assert_frame_equal(a.table(name).sort(order), b.table(name).sort(order), check_exact=True)
    assert weights_by_model(a) == weights_by_model(b)


def weights_by_model(store: Run) -> dict[tuple[str, str], bytes]:
    return {
        (model, name): array[i].tobytes()
        for shard in store.shards()
        for name, array in store.weights(shard).items()
        for i, model in enumerate(shard.model_ids)
    }
