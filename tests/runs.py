"""Comparing runs, and changing what their headers say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polars.testing import assert_frame_equal

from resharpen.experiments.keeping.shard import TABLES
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import Observer
from resharpen.experiments.running.training import Asked

STOP_AT_ONCE = Observer(asked=lambda: Asked(stop=True))


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


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a header, run.json or reference.json, as somebody would who knows about its checksum."""
    header = json.loads(path.read_text())
    change(header)
    header.pop("checksum", None)
    checksum = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**header, "checksum": checksum}))
