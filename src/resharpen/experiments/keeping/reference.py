"""Results that others can hold theirs against: what is left of a run when its weights are taken away.

reference/NAME/
    reference.json          the resolved spec, what was drawn; for each run that it was made of, versions, machine and
                            what made each shard; hashes of the tables, and a checksum over all of this
    models-HASH.parquet     one row per model: what it is, its hyperparameters, its scores, when it diverged
    lengths-HASH.parquet    one per model, kind of weights, selection, metric and length; values in single precision

A reference grows by whole shards, from run to run and from machine to machine: draws are the same everywhere. Tables
go by the start of their hash: new ones are written beside the old, `reference.json` switches from one to the other at
once, and what it does not name any more is removed.
"""

from __future__ import annotations

import io
import re
import shlex
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resharpen import own
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.checks import MADE, REFERENCE_HEADER, check_fields, check_provenance, check_texts
from resharpen.experiments.keeping.header import read_header, write_header
from resharpen.experiments.keeping.reading import Reader
from resharpen.experiments.keeping.store import REFERENCE, Run
from resharpen.experiments.specs.schema import SCORES
from resharpen.experiments.specs.spec import Experiment, Shard, shard_named
from resharpen.experiments.specs.toml import differences, from_stored, search_data, to_data
from resharpen.paths import absolute

if TYPE_CHECKING:
    import polars as pl

HERE = Path(__file__)
PLACES = (HERE.parents[2] / "reference", HERE.parents[4] / "reference")
"""In an installed package, in a checkout."""
KEPT = ("models", "lengths")


@dataclass(frozen=True)
class Reference:
    """A directory of kept results. Nothing in it is executed: where its spec names code of the user's own, it can be
    read only once a run, or the user, has let in code of that hash."""

    directory: Path
    """As it was given, for messages."""
    root: Path = field(init=False, repr=False, compare=False)
    """Where it is, wherever the working directory goes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", absolute(self.directory))

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def header(self) -> dict[str, Any]:
        try:
            return read_header(self.root / REFERENCE, _check_header, "make the reference again")
        except FileNotFoundError as error:
            raise UserError(f"{self.directory} is not a reference: {error.strerror}") from error

    @cached_property
    def experiment(self) -> Experiment:
        spec = self.header["spec"]
        try:
            return from_stored(spec)
        except own.OwnCodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.directory / REFERENCE} cannot be read: {error}") from error

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

    @cached_property
    def kept(self) -> list[Shard]:
        """What it has, by the names in its header."""
        names = [name for made in self.header["made"] for name in made["built"]]
        try:
            shards = [shard_named(self.experiment, name) for name in names]
            models = [model for shard in shards for model in shard.model_ids]
            if not models or len(set(models)) < len(models):
                raise ValueError("it keeps a model twice" if models else "it keeps no shard")
        except ValueError as error:
            raise UserError(f"{self.directory / REFERENCE} is damaged: {error}") from error
        return shards

    def table(self, name: str) -> pl.DataFrame:
        """`models` or `lengths`, which has its values in double precision again."""
        if name not in KEPT:
            raise unknown(f"{self.directory} is a reference; table", name, KEPT)
        expected = self.header["sha256"][f"{name}.parquet"]
        path = self.root / _file(name, expected)
        if expected not in self._read:
            data = path.read_bytes() if path.is_file() else b""
            if files.sha256(data) != expected:
                raise UserError(f"{path} is missing or damaged: its hash is not the one in {REFERENCE}")
            reader = Reader(self.experiment, SCORES)
            try:
                table = reader.parse(name, data, self.kept)
                reader.check(name, table, self.kept)
            except ValueError as error:
                raise UserError(f"{path} is not the table of a reference: {error}") from error
            self._read[expected] = table
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


def write_reference(run: Run, scores: pl.DataFrame, directory: Path, again: Collection[str] = ()) -> Reference:
    """Keep what is finished of a run; `scores` has one row per model and kind of weights.

    A reference of the same spec in that directory grows: what it has stays as it is, and shards of models that it does
    not have are added. A shard of which it has only some models is not, with a warning: who made what is told by shard.
    Finished shards of the settings in `again` replace what the reference has of them.
    """
    import polars as pl

    wide = scores.select("model", "weights", "score", "score_new").pivot("weights", index="model")
    tables = {
        "models": run.table("models").join(wide, on="model", how="left", maintain_order="left"),
        "lengths": run.table("lengths"),
    }
    shards, made, experiment = run.done(), [], run.experiment
    reference, old = Reference(directory), Reference(directory)
    if (reference.root / REFERENCE).exists():
        experiment = _same_spec(old.experiment, experiment)
        replaced = {shard.name for shard in shards if shard.setting.name in again}
        made = [made | {"built": _without(made["built"], replaced)} for made in old.header["made"]]
        gone = [model for shard in shards if shard.name in replaced for model in shard.model_ids]
        kept = {name: old.table(name).filter(~pl.col("model").is_in(gone)) for name in KEPT}
        there = set(kept["models"]["model"])
        if torn := [shard.name for shard in shards if 0 < len(there.intersection(shard.model_ids)) < shard.count]:
            warnings.warn(
                f"{directory} has only some models of {', '.join(torn)}: the others are not kept", stacklevel=2
            )
        shards = [shard for shard in shards if there.isdisjoint(shard.model_ids)]
        new = [model for shard in shards for model in shard.model_ids]
        tables = {
            name: pl.concat([kept[name], table.filter(pl.col("model").is_in(new))], how="diagonal")
            for name, table in tables.items()
        }
    if shards:
        built = {shard.name: run.files(shard).told("built") for shard in shards}
        made = [
            *(x for x in made if x["built"]),
            {"command": run.command, "provenance": run.provenance, "built": built},
        ]
    hashes = {}
    for name, table in tables.items():
        packed = io.BytesIO()
        single = table.with_columns(pl.col("value").cast(pl.Float32)) if name == "lengths" else table
        single.write_parquet(packed, compression="zstd", compression_level=19)
        sha256 = hashes[f"{name}.parquet"] = files.sha256(packed.getvalue())
        files.write_bytes(reference.root / _file(name, sha256), packed.getvalue(), lasting=True)
    header = {"spec": to_data(experiment), "drawn": search_data(experiment), "made": made, "sha256": hashes}
    write_header(reference.root / REFERENCE, header)
    current = {_file(name, hashes[f"{name}.parquet"]) for name in KEPT}
    for path in reference.root.glob("*-*.parquet"):
        if path.name not in current:
            path.unlink()
    files.remove_temporary(reference.root)
    return reference


def _without(built: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: made for name, made in built.items() if name not in names}


def _file(name: str, sha256: str) -> str:
    """The file of a table; its name comes from the hash, never from the header."""
    return f"{name}-{sha256[:8]}.parquet"


def _check_header(header: Any) -> None:
    """ValueError for a reference.json that was not written by us; the spec in it is checked by who reads it."""
    check_fields(header, REFERENCE_HEADER)
    hashes = [header["sha256"].get(f"{name}.parquet") for name in KEPT]
    if not all(isinstance(x, str) and re.fullmatch("[0-9a-f]{64}", x) for x in hashes):
        raise ValueError("'sha256' has no hash for each table")
    if not header["made"]:
        raise ValueError("'made' is empty")
    for made in header["made"]:
        check_fields(made, MADE, "made")
        check_texts(made["built"], "made.built", may_be_null=True)
        check_provenance(made["provenance"])
        _check_command(made["command"])


def _check_command(command: str) -> None:
    """Readers are told to run it: it is a `resharpen run`, and holds nothing that a shell would take for more."""
    words = shlex.split(command)
    if words[:2] != ["resharpen", "run"] or shlex.join(words) != command:
        raise ValueError("'made' has a command that is not a `resharpen run`")


def _same_spec(old: Experiment, new: Experiment) -> Experiment:
    """The one with more models of two that are else the same; how to look at them does not count."""
    a, b = ({**to_data(x), "drawn": search_data(x), "models": None, "baseline": None} for x in (old, new))
    if changes := differences(a, b):
        raise UserError(f"the reference {old.name} is of another spec ({'; '.join(changes)})")
    return max(old, new, key=lambda x: x.models)
