"""A run directory: what is in it, how it is written, how it is read.

run.json                                the resolved spec, versions, machine, the command that resumes it
README.md                               the same for a person
code/HASH-FILE.py                       copies of the user's own code, to read
shards/SETTING/VARIANT/FIRST-LAST/
    state.safetensors                   an unfinished shard: everything needed to go on, bit for bit
    models, curves, lengths .parquet    a finished shard: its rows of the three tables
    weights.safetensors                 the kept weights, WEIGHTS.SELECTION.NAME [M, ...]
    manifest.json                       written last, with the hashes of the others: now the shard is done
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from resharpen import own
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.machine import provenance
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.toml import differences, from_data, search_data, to_data
from resharpen.experiments.specs.variant import Variant

if TYPE_CHECKING:
    import polars as pl

TABLES = ("models", "curves", "lengths")
FORMAT = 2
"""1 had placements where there are variants now."""


class Damaged(UserError):
    """A file of a finished shard that is missing or not what its manifest says."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of one shard."""

    directory: Path

    @property
    def state(self) -> Path:
        return self.directory / "state.safetensors"

    @property
    def weights(self) -> Path:
        return self.directory / "weights.safetensors"

    @property
    def manifest(self) -> Path:
        return self.directory / "manifest.json"

    def table(self, name: str) -> Path:
        return self.directory / f"{name}.parquet"

    def finish(
        self, tables: Mapping[str, pl.DataFrame], weights: Mapping[str, NDArray], facts: Mapping[str, Any]
    ) -> None:
        """Write the results, then the manifest that makes them count, then drop the state."""
        for name, table in tables.items():
            files.write_atomically(self.table(name), table.write_parquet)
        files.write_arrays(self.weights, weights)
        results = [*(self.table(name) for name in TABLES), self.weights]
        hashes = {path.name: files.sha256(path) for path in results}
        files.write_json(self.manifest, {"format": FORMAT, **facts, "sha256": hashes})
        self.state.unlink(missing_ok=True)

    def is_done(self) -> bool:
        """Whether the shard is finished; `Damaged` if it says so but a file is not what was written."""
        if not self.manifest.exists():
            return False
        try:
            hashes = json.loads(self.manifest.read_text(encoding="utf-8"))["sha256"]
            names = list(hashes.items())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damaged(self.manifest, "is not a manifest") from None
        for name, expected in names:
            path = self.directory / name
            if not path.exists():
                raise self._damaged(path, "is missing")
            if files.sha256(path) != expected:
                raise self._damaged(path, "is damaged (its hash is not that of the manifest)")
        return True

    def seconds(self) -> float:
        """What a finished shard took."""
        return json.loads(self.manifest.read_text(encoding="utf-8"))["seconds"]

    def discard(self) -> None:
        """Forget the results of this shard, so that it is run again."""
        self.manifest.unlink(missing_ok=True)
        for path in self.directory.iterdir():
            path.unlink()

    def _damaged(self, path: Path, what: str) -> Damaged:
        return Damaged(f"{path} {what}: run the same command again to redo this shard and only this one")


@dataclass(frozen=True)
class Run:
    """A run directory that exists.

    The user's own code is executed from the file that it came from, if that is still the same; from the copy in the run
    directory only if the reader trusts it.
    """

    directory: Path
    trust_code: bool = False

    @cached_property
    def _header(self) -> dict[str, Any]:
        path = self.directory / "run.json"
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
            if header["format"] != FORMAT:
                raise UserError(f"{path}: format {header['format']}, this version reads format {FORMAT}")
            return header
        except FileNotFoundError:
            raise UserError(f"{self.directory} is not a run directory: it has no run.json") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise error if isinstance(error, UserError) else UserError(f"{path} is damaged: {error}") from error

    @cached_property
    def experiment(self) -> Experiment:
        for entry in self._header["code"]:
            self._admit(Path(entry["path"]), entry["sha256"])
        return from_data(self._header["spec"])

    def _admit(self, path: Path, sha256: str) -> None:
        copy = code_copy(self.directory, path, sha256)
        for candidate in (path, copy) if self.trust_code else (path,):
            if candidate.is_file() and own.admit(candidate).sha256 == sha256:
                return
        what = "has changed since this run began" if path.is_file() else "is not there any more"
        raise UserError(f"{path} {what}: put it back as it was, or let the copy {copy} be executed with --trust-code")

    @property
    def command(self) -> str:
        """What continues this run."""
        return f"resharpen run {shlex.quote(str(self.directory))}"

    @property
    def provenance(self) -> dict[str, Any]:
        return self._header["provenance"]

    def shards(self) -> list[Shard]:
        return self.experiment.shards(self._header["extents"])

    def files(self, shard: Shard) -> ShardFiles:
        return ShardFiles(self.directory / "shards" / shard.name)

    def done(self) -> list[Shard]:
        """The finished shards, each verified against its hashes."""
        return [shard for shard in self.shards() if self.files(shard).is_done()]

    def table(self, name: str) -> pl.DataFrame:
        """One of `models`, `curves`, `lengths`, over all finished shards."""
        import polars as pl

        if name not in TABLES:
            raise unknown("table", name, TABLES)
        done = self.done()
        if not done:
            raise UserError(f"{self.directory} has no finished shard yet; continue it with: {self.command}")
        # variants may have hyperparameters of their own, models other sizes: columns that not all shards have
        return pl.concat([pl.read_parquet(self.files(shard).table(name)) for shard in done], how="diagonal")

    def weights(self, shard: Shard) -> dict[str, NDArray]:
        """Kept weights of a shard: WEIGHTS.SELECTION.NAME -> [M, ...]."""
        if not self.files(shard).is_done():
            raise UserError(f"shard {shard.name} is not finished; continue it with: {self.command}")
        return files.read_arrays(self.files(shard).weights)


def open_run(directory: Path, experiment: Experiment, trust_code: bool = False) -> Run:
    """Create a run, or continue it: with the same spec, or with more models."""
    if not (directory / "run.json").exists():
        return _create(directory, experiment)
    run = Run(directory, trust_code)
    old, new = run.experiment, experiment
    if new.engine == "auto":
        new = replace(new, engine=old.engine, variants=_with_engines_of(old, new))
    grows = new.models > old.models
    stored = {**run._header["spec"], "models": new.models if grows else old.models, "drawn": run._header["drawn"]}
    stored["baseline"] = new.baseline  # how to look at a run is free to change
    changes = differences(stored, {**to_data(new), "drawn": search_data(new)})
    if changes:
        raise UserError(
            f"{directory} holds another run ({'; '.join(changes)}); "
            f"choose another --out, or continue it with: {run.command}"
        )
    if grows or new.baseline != old.baseline:
        _write_header(directory, new, [*run._header["extents"], *([old.models] if grows else [])])
    return Run(directory, trust_code)


def _with_engines_of(old: Experiment, new: Experiment) -> dict[str, Variant]:
    """A run goes on with what it began with, where nothing else is asked for."""
    engines = {name: variant.engine for name, variant in old.variants.items()}
    return {
        name: replace(variant, engine=variant.engine or engines.get(name)) for name, variant in new.variants.items()
    }


def _create(directory: Path, experiment: Experiment) -> Run:
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is not a directory")
    try:
        if directory.exists() and any(directory.iterdir()):
            raise UserError(f"{directory} is not empty and is not a run directory; choose another --out")
        _write_header(directory, experiment, [])
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}") from error
    return Run(directory)


def _write_header(directory: Path, experiment: Experiment, extents: list[int]) -> None:
    command = Run(directory).command
    sources = {own.source(reference) for reference in experiment.references()}
    for source in sources:
        text = source.path.read_bytes()
        copy = code_copy(directory, source.path, source.sha256)
        files.write_atomically(copy, lambda path, text=text: path.write_bytes(text))
    header = {
        "format": FORMAT,
        "command": command,
        "spec": to_data(experiment),
        "drawn": search_data(experiment),
        "extents": extents,
        "code": [{"path": str(source.path), "sha256": source.sha256} for source in sorted(sources, key=str)],
        "provenance": provenance(),
    }
    readme = _README.format(name=experiment.name, command=command, directory=directory)
    files.write_atomically(directory / "README.md", lambda path: path.write_text(readme, encoding="utf-8"))
    files.write_json(directory / "run.json", header)


def code_copy(directory: Path, path: Path, sha256: str) -> Path:
    return directory / "code" / f"{sha256[: own.DIGITS]}-{path.name}"


_README = """# {name}

A run of `resharpen`. To continue it: `{command}`

- `run.json`: the resolved spec, the versions and the machine it was started with
- `shards/`: one directory for each setting, variant and group of draws; a shard with a `manifest.json` is finished.
  `models.parquet`: one row a model; what it is, its hyperparameters, when it diverged.
  `curves.parquet`: one a model, kind of weights and checkpoint; the score, the score on trained lengths, `loss` the
  mean training loss since the checkpoint before.
  `lengths.parquet`: one a model, kind of weights, selection, metric and length; the value on the report set, and the
  `count` of prefixes or sequences behind it.
- `code/`: copies of code of your own that the run used, to read

Look at it: `resharpen status {directory}`, `resharpen figure {directory}`, `resharpen results {directory}`.
In Python: `import resharpen as rs; rs.load("{directory}")`.
"""
