"""References: stored results of a run, without its weights, to compare other runs with.

reference/NAME/
    reference.json          the resolved spec and search; versions, machine and builds of each run that contributed;
                            hashes of the tables, and a checksum
    models-HASH.parquet     one row per model: setting, variant, draw, hyperparameters, scores, step of divergence
    lengths-HASH.parquet    one row per model, weights, selection, metric and length; values in float32

A reference grows by whole shards, which may come from several runs and machines: draws are the same everywhere. Tables
are named by their hash: new ones are written beside the old, `reference.json` is replaced atomically, and files that it
no longer names are deleted. `tools/make_reference.py` writes references.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from resharpen.errors import UserError, suggestion, unknown
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.checks import SHA256, check_fields, check_provenance, read_header
from resharpen.experiments.keeping.reading import Reader
from resharpen.experiments.keeping.store import REFERENCE
from resharpen.experiments.specs.schema import SCORES
from resharpen.experiments.specs.spec import Experiment, Shard, shard_named
from resharpen.experiments.specs.toml import from_stored
from resharpen.lazy import pl
from resharpen.paths import absolute

HERE = Path(__file__)
PLACES = (HERE.parents[2] / "reference", HERE.parents[4] / "reference")
"""In an installed package, in a checkout."""
KEPT = ("models", "lengths")


@dataclass(frozen=True)
class Reference:
    """A directory with a reference. Nothing in it is executed: user code that its spec names must be admitted first, by
    a run or by the user."""

    directory: Path
    """As it was given, for messages."""
    root: Path = field(init=False, repr=False, compare=False)
    """The absolute path, which does not depend on the working directory."""
    _tables: dict[str, pl.DataFrame] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By hash."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", absolute(self.directory))

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def header(self) -> dict[str, Any]:
        try:
            return read_header(self.root / REFERENCE, _check_header, "create the reference again")
        except FileNotFoundError as error:
            raise UserError(f"{self.directory} is not a reference: {error.strerror}") from error

    @cached_property
    def experiment(self) -> Experiment:
        return from_stored(self.header["spec"], self.directory / REFERENCE)

    @property
    def command(self) -> str:
        """The command that trained the shards added last."""
        return self.header["made"][-1]["command"]

    @property
    def built(self) -> dict[str, str | None]:
        """Shard name -> build that trained it."""
        return {name: built for made in self.header["made"] for name, built in made["built"].items()}

    def shards(self) -> list[Shard]:
        """All shards of its spec, whether stored or not."""
        return self.experiment.shards()

    @cached_property
    def kept(self) -> list[Shard]:
        """The shards that it contains."""
        names = [name for made in self.header["made"] for name in made["built"]]
        try:
            shards = [shard_named(self.experiment, name) for name in names]
            models = [model for shard in shards for model in shard.model_ids]
            if not models or len(set(models)) < len(models):
                raise ValueError("it contains a model twice" if models else "it contains no shard")
        except ValueError as error:
            raise UserError(f"{self.directory / REFERENCE} is damaged: {error}") from error
        return shards

    def table(self, name: str) -> pl.DataFrame:
        """`models` or `lengths`, with values in float64."""
        if name not in KEPT:
            raise unknown(f"{self.directory} is a reference; table", name, KEPT)
        expected = self.header["sha256"][f"{name}.parquet"]
        path = self.root / table_file(name, expected)
        if expected not in self._tables:
            data = path.read_bytes() if path.is_file() else b""
            if files.sha256(data) != expected:
                raise UserError(f"{path} is missing or damaged: its hash is not the one in {REFERENCE}")
            reader = Reader(self.experiment, SCORES)
            try:
                table = reader.parse(name, data, self.kept)
                reader.check(name, table, self.kept)
            except ValueError as error:
                raise UserError(f"{path} is not the table of a reference: {error}") from error
            self._tables[expected] = table
        return self._tables[expected]


def references() -> dict[str, Path]:
    """Name -> directory of every reference in the package."""
    return {path.parent.name: path.parent for place in PLACES for path in sorted(place.glob(f"*/{REFERENCE}"))}


def find_reference(name: str) -> Reference:
    """The reference of a run of that name."""
    if name not in (there := references()):
        known = ", ".join(there) or "none"
        hint = suggestion(name, [*there])
        raise UserError(f"there is no reference for '{name}': {hint}(available: {known}); choose one with --reference")
    return Reference(there[name])


def table_file(name: str, sha256: str) -> str:
    """The file of a table; the name is derived from the hash, never read from the header."""
    return f"{name}-{sha256[:8]}.parquet"


def _check_header(header: Any) -> None:
    """ValueError for a reference.json that this package did not write; the spec is checked when it is parsed."""
    check_fields(header, {dict: ["spec", "drawn", "sha256"], list: ["made"]})
    hashes = [header["sha256"].get(f"{name}.parquet") for name in KEPT]
    if not all(isinstance(x, str) and re.fullmatch(SHA256, x) for x in hashes):
        raise ValueError("'sha256' has no hash for each table")
    if not header["made"]:
        raise ValueError("'made' is empty")
    for made in header["made"]:
        check_fields(made, {str: ["command"], dict: ["provenance", "built"]}, "made")
        check_fields(made["built"], {str | None: made["built"]}, "made.built")
        check_provenance(made["provenance"])
        words = shlex.split(made["command"])
        if words[:2] != ["resharpen", "run"] or shlex.join(words) != made["command"]:  # users are told to run it
            raise ValueError("'made' has a command that is not a `resharpen run`")
