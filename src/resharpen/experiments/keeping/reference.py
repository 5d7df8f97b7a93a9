"""Results that others can hold theirs against: what is left of a run when its weights are taken away.

reference/NAME/
    reference.json      the resolved spec, what was drawn, versions and machine, the command, what made each shard
    models.parquet      one row a model: what it is, its hyperparameters, its scores, when it diverged
    lengths.parquet     one a model, kind of weights, selection, metric and length; values in single precision
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resharpen.errors import UserError
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.specs.spec import Experiment
from resharpen.experiments.specs.toml import from_data, search_data, to_data

if TYPE_CHECKING:
    import polars as pl

HERE = Path(__file__)
PLACES = (HERE.parents[2] / "reference", HERE.parents[4] / "reference")
"""In an installed package, in a checkout."""


@dataclass(frozen=True)
class Reference:
    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def header(self) -> dict[str, Any]:
        path = self.directory / "reference.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{self.directory} is not a reference: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}") from error

    @cached_property
    def experiment(self) -> Experiment:
        return from_data(self.header["spec"])

    def table(self, name: str) -> pl.DataFrame:
        """`models` or `lengths`."""
        import polars as pl

        path = self.directory / f"{name}.parquet"
        data = path.read_bytes() if path.is_file() else b""
        if files.sha256(data) != self.header["sha256"].get(path.name):
            raise UserError(f"{path} is missing or damaged: its hash is not the one in reference.json")
        return pl.read_parquet(io.BytesIO(data))


def find_reference(name: str) -> Reference:
    """The reference of a run of that name."""
    there = sorted({path.parent.name for place in PLACES for path in place.glob("*/reference.json")})
    if name not in there:
        raise UserError(
            f"there is no reference for '{name}' (there is: {', '.join(there) or 'none'}); name one yourself"
        )
    return Reference(next(place / name for place in PLACES if (place / name / "reference.json").exists()))


def write_reference(run: Run, scores: pl.DataFrame, directory: Path) -> Reference:
    """Keep what is finished of a run; `scores` has one row a model and kind of weights."""
    import polars as pl

    wide = scores.select("model", "weights", "score", "score_new").pivot("weights", index="model")
    tables = {
        "models": run.table("models").join(wide, on="model", how="left", maintain_order="left"),
        "lengths": run.table("lengths").with_columns(pl.col("value").cast(pl.Float32)),
    }
    hashes = {}
    for name, table in tables.items():
        packed = io.BytesIO()
        table.write_parquet(packed, compression="zstd", compression_level=19)
        files.write_bytes(directory / f"{name}.parquet", packed.getvalue())
        hashes[f"{name}.parquet"] = files.sha256(packed.getvalue())
    header = {
        "spec": to_data(run.experiment),
        "drawn": search_data(run.experiment),
        "command": run.command,
        "provenance": run.provenance,
        "built": {shard.name: run.files(shard).told("built") for shard in run.done()},
        "sha256": hashes,
    }
    files.write_json(directory / "reference.json", header)
    return Reference(directory)
