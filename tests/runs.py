"""Comparing runs, and changing what their headers say."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from resharpen.cli import main
from resharpen.experiments.keeping.shard import ShardFiles
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import Observer
from resharpen.experiments.running.training import Asked
from resharpen.experiments.specs.schema import TABLES

STOP_AT_ONCE = Observer(asked=lambda: Asked(stop=True))


def assert_same_results(a: Run, b: Run) -> None:
    """Every table and every kept weight, bit for bit."""
    for name in TABLES:
        order = [
            c
            for c in ("model", "weights", "selection", "test", "metric", "step", "length")
            if c in a.table(name).columns
        ]
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


def parquet(table: pl.DataFrame) -> bytes:
    data = io.BytesIO()
    table.write_parquet(data)
    return data.getvalue()


def rehash(where: ShardFiles, name: str, data: bytes) -> None:
    """Put other content into a finished shard, with a manifest that says so."""
    (where.directory / name).write_bytes(data)
    manifest = json.loads((where.directory / "manifest.json").read_text())
    manifest["sha256"][name], manifest["bytes"][name] = hashlib.sha256(data).hexdigest(), len(data)
    (where.directory / "manifest.json").write_text(json.dumps(manifest))


Change = Callable[[pl.DataFrame], pl.DataFrame]


def doctor(run: Run, table: str, change: Change, shards: slice = slice(None)) -> None:
    """Change a table of a run, with hashes made to fit."""
    for shard in run.shards()[shards]:
        where = run.files(shard)
        rehash(where, f"{table}.parquet", parquet(change(pl.read_parquet(where.directory / f"{table}.parquet"))))


def doctor_reference(directory: Path, table: str, change: Change) -> None:
    """Change a table of a reference, with its hash and the checksum of the header made to fit."""
    (path,) = directory.glob(f"{table}-*.parquet")
    data = parquet(change(pl.read_parquet(path)))
    path.unlink()
    digest = hashlib.sha256(data).hexdigest()
    path.with_name(f"{table}-{digest[:8]}.parquet").write_bytes(data)
    forge(directory / "reference.json", lambda header: header["sha256"].update({f"{table}.parquet": digest}))


def refused(capsys: Any, *args: str) -> str:
    """What a command says in one line when it refuses, with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main([*args])
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.count("\n") == 1
    return said
