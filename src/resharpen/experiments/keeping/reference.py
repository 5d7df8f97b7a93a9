"""Results that others can hold theirs against: what is left of a run when its weights are taken away.

reference/NAME/
    reference.json      the resolved spec, what was drawn; for each run that it was made of, versions, machine and what
                        made each shard
    models.parquet      one row a model: what it is, its hyperparameters, its scores, when it diverged
    lengths.parquet     one a model, kind of weights, selection, metric and length; values in single precision

A reference grows by whole shards, from run to run and from machine to machine: draws are the same everywhere.
"""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.toml import differences, from_data, search_data, to_data

if TYPE_CHECKING:
    import polars as pl

HERE = Path(__file__)
PLACES = (HERE.parents[2] / "reference", HERE.parents[4] / "reference")
"""In an installed package, in a checkout."""
REFERENCE = "reference.json"
KEPT = ("models", "lengths")


@dataclass(frozen=True)
class Reference:
    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def header(self) -> dict[str, Any]:
        path = self.directory / REFERENCE
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
            if not {"spec", "drawn", "made", "sha256"} <= set(header) or not header["made"]:
                raise ValueError("something is missing")
            return header
        except OSError as error:
            raise UserError(f"{self.directory} is not a reference: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error

    @cached_property
    def experiment(self) -> Experiment:
        return from_data(self.header["spec"])

    @property
    def command(self) -> str:
        """What trained the last of it."""
        return self.header["made"][-1]["command"]

    @property
    def built(self) -> dict[str, str | None]:
        """What made each shard."""
        return {name: built for made in self.header["made"] for name, built in made["built"].items()}

    def shards(self) -> list[Shard]:
        """All that there is to its spec, kept or not."""
        return self.experiment.shards()

    def table(self, name: str) -> pl.DataFrame:
        """`models` or `lengths`, which has its values in double precision again."""
        import polars as pl

        if name not in KEPT:
            raise unknown(f"{self.directory} is a reference; table", name, KEPT)
        path = self.directory / f"{name}.parquet"
        expected = self.header["sha256"].get(path.name)
        if expected not in self._read:
            data = path.read_bytes() if path.is_file() else b""
            if files.sha256(data) != expected:
                raise UserError(f"{path} is missing or damaged: its hash is not the one in {REFERENCE}")
            self._read[expected] = pl.read_parquet(io.BytesIO(data)).cast({pl.Float32: pl.Float64})
        return self._read[expected]

    @cached_property
    def _read(self) -> dict[str, pl.DataFrame]:
        """Tables by their hash: one command asks for them many times."""
        return {}


def references() -> dict[str, Path]:
    """Name -> directory of every reference that the package has."""
    return {path.parent.name: path.parent for place in PLACES for path in sorted(place.glob(f"*/{REFERENCE}"))}


def find_reference(name: str) -> Reference:
    """The reference of a run of that name."""
    if name not in (there := references()):
        raise UserError(
            f"there is no reference for '{name}' (there is: {', '.join(there) or 'none'}); name one yourself"
        )
    return Reference(there[name])


def write_reference(run: Run, scores: pl.DataFrame, directory: Path) -> Reference:
    """Keep what is finished of a run; `scores` has one row a model and kind of weights.

    A reference of the same spec in that directory grows: what it has stays as it is, and shards of models that it does
    not have are added. A shard of which it has only some models is not, with a warning: who made what is told by shard.
    """
    import polars as pl

    wide = scores.select("model", "weights", "score", "score_new").pivot("weights", index="model")
    tables = {
        "models": run.table("models").join(wide, on="model", how="left", maintain_order="left"),
        "lengths": run.table("lengths"),
    }
    shards, made, experiment = run.done(), [], run.experiment
    if (directory / REFERENCE).exists():
        old = Reference(directory)
        experiment, made = _same_spec(old.experiment, experiment), old.header["made"]
        there = set(old.table("models")["model"])
        if torn := [shard.name for shard in shards if 0 < len(there.intersection(shard.model_ids)) < shard.count]:
            warnings.warn(
                f"{directory} has only some models of {', '.join(torn)}: the others are not kept", stacklevel=2
            )
        shards = [shard for shard in shards if there.isdisjoint(shard.model_ids)]
        new = [model for shard in shards for model in shard.model_ids]
        tables = {
            name: pl.concat([old.table(name), table.filter(pl.col("model").is_in(new))], how="diagonal")
            for name, table in tables.items()
        }
    if shards:
        built = {shard.name: run.files(shard).told("built") for shard in shards}
        made = [*made, {"command": run.command, "provenance": run.provenance, "built": built}]
    hashes = {}
    for name, table in tables.items():
        packed = io.BytesIO()
        single = table.with_columns(pl.col("value").cast(pl.Float32)) if name == "lengths" else table
        single.write_parquet(packed, compression="zstd", compression_level=19)
        files.write_bytes(directory / f"{name}.parquet", packed.getvalue())
        hashes[f"{name}.parquet"] = files.sha256(packed.getvalue())
    header = {"spec": to_data(experiment), "drawn": search_data(experiment), "made": made, "sha256": hashes}
    files.write_json(directory / REFERENCE, header)
    return Reference(directory)


def _same_spec(old: Experiment, new: Experiment) -> Experiment:
    """The one with more models of two that are else the same; how to look at them does not count."""
    a, b = ({**to_data(x), "drawn": search_data(x), "models": None, "baseline": None} for x in (old, new))
    if changes := differences(a, b):
        raise UserError(f"the reference {old.name} is of another spec ({'; '.join(changes)})")
    return max(old, new, key=lambda x: x.models)
