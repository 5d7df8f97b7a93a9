"""A run directory: what is in it, how it is written, how it is read.

run.json                                the resolved spec, versions, machine, the command that resumes it, a checksum
README.md                               the same for a person
code/HASH-FILE.py, HASH-FILE.imports/   copies of the user's own code and of what it imports, to read
shards/SETTING/VARIANT/FIRST-LAST/
    state.safetensors                   an unfinished shard: everything needed to go on, bit for bit
    models, curves, lengths .parquet    a finished shard: its rows of the three tables
    weights.safetensors                 the kept weights, WEIGHTS.SELECTION.NAME [M, ...]
    manifest.json                       written last, with the hashes of the others: now the shard is done
    .lease                              held by the process that trains the shard; gone when it is done
.lock                                   held for a moment by whoever creates or extends the run
.shared                                 while Ray trains it: a word by which its tasks know this directory
"""

from __future__ import annotations

import contextlib
import copy
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resharpen import own
from resharpen.engines.choose import rounding
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping import files, lock
from resharpen.experiments.keeping.checks import check_extents, check_header
from resharpen.experiments.keeping.header import read_header, write_header
from resharpen.experiments.keeping.machine import provenance
from resharpen.experiments.keeping.reading import Reader
from resharpen.experiments.keeping.shard import FORMAT, WEIGHTS_FILE, Damaged, Foreign, ShardFiles
from resharpen.experiments.specs.identity import identities
from resharpen.experiments.specs.schema import SLOTS, TABLES, described
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.toml import differences, from_stored, search_data, to_data
from resharpen.paths import absolute

if TYPE_CHECKING:
    import polars as pl

HEADER, REFERENCE, LOCK, CODE = "run.json", "reference.json", ".lock", "code"


def quoted(path: Path) -> str:
    """A path as a shell and `resharpen` take it."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


@dataclass(frozen=True)
class Run:
    """A run directory that exists.

    The user's own code is executed from the file that it came from, if that is still the same and lies in no run;
    from a run directory only if the reader trusts it.
    """

    directory: Path
    """As it was given, for messages."""
    trust_code: bool = False
    root: Path = field(init=False, repr=False, compare=False)
    """Where it is, wherever the working directory goes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", absolute(self.directory))

    @cached_property
    def _header(self) -> dict[str, Any]:
        try:
            return read_header(self.root / HEADER, self._check_header, "start a new run with another --out")
        except FileNotFoundError:
            raise UserError(f"{self.directory} is not a run directory: it has no {HEADER}") from None

    def _check_header(self, header: Any) -> None:
        if isinstance(header, dict) and header.get("format") != FORMAT:
            raise UserError(
                f"{self.directory / HEADER}: format {header.get('format')!r}, this version reads format {FORMAT}"
            )
        check_header(header)

    @cached_property
    def experiment(self) -> Experiment:
        for entry in self._header["code"]:
            self._admit(Path(entry["path"]), entry["sha256"], entry.get("imports"))
        try:
            experiment = from_stored(self._header["spec"])
            check_extents(self._header["extents"], experiment.models)
        except own.OwnCodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.directory / HEADER} is damaged: {error}") from error
        return experiment

    def _admit(self, path: Path, sha256: str, imports: Any) -> None:
        """Let code in that this process has let in already, because its user named the file; else the file that the
        header names, if whoever wrote the header cannot have brought it along; else what the reader trusts."""
        if own.is_admitted(sha256):
            return
        kept, brought = code_copy(self.root, path, sha256), _may_be_brought_along(path)
        for candidate in (path, kept) if self.trust_code else () if brought else (path,):
            if candidate.is_file() and (source := own.read(candidate)).digest == sha256:
                if not self.trust_code and (strange := [x for x in source.imports if _may_be_brought_along(x.path)]):
                    path, brought = strange[0].path, True
                    break
                own.admit(candidate)
                return
        if brought and not self.trust_code:
            raise UserError(f"{path} lies in a run directory or behind a link: it is executed with --trust-code only")
        what = "has changed since this run began" if path.is_file() else "is not there any more"
        what = f", or a file that it imports, {what}" if imports and path.is_file() else f" {what}"
        raise UserError(f"{path}{what}: put it back as it was, or let the copy {kept} be executed with --trust-code")

    @property
    def command(self) -> str:
        """What continues this run."""
        return f"resharpen run {quoted(self.directory)}"

    def _repr_html_(self) -> str:
        """In a notebook: what it is, how far it is, what continues it."""
        experiment, shards = self.experiment, self.shards()
        rows = {
            "run": str(self.directory),
            "settings": ", ".join(setting.name for setting in experiment.settings),
            "variants": ", ".join(experiment.variants),
            "models": f"{experiment.models:,} of each, {experiment.steps:,} steps",
            "shards": f"{len(self.done()):,} of {len(shards):,} finished",
            "continue with": self.command,
        }
        cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"

    @property
    def provenance(self) -> dict[str, Any]:
        return self._header["provenance"]

    def rounding(self, shard: Shard) -> str:
        """How the numbers of a shard are to be rounded; empty where the run could not tell when it began."""
        return self._header["rounding"].get(engine_of(self.experiment, shard.variant), "")

    def shards(self) -> list[Shard]:
        return self.experiment.shards(self._header["extents"])

    @cached_property
    def _identity(self) -> Callable[[Shard], str]:
        return identities(self.experiment, self._header["drawn"])

    def files(self, shard: Shard) -> ShardFiles:
        return ShardFiles(self.root, shard.name, self._identity(shard))

    def done(self) -> list[Shard]:
        """The finished shards, by their manifests and the lengths of their files; who reads one checks the rest. They
        are looked for once: a command sees the same ones however many others finish meanwhile."""
        return self._done

    @cached_property
    def _done(self) -> list[Shard]:
        return [shard for shard in self.shards() if self.files(shard).is_done()]

    def table(self, name: str) -> pl.DataFrame:
        """One of `models`, `curves`, `lengths`, over all finished shards."""
        if name not in TABLES:
            raise unknown("table", name, TABLES)
        done = self.done()
        if not done:
            raise UserError(f"{self.directory} has no finished shard yet; continue it with: {self.command}")
        if name not in self._read:
            self._read[name] = self._checked(name, done, [self._parsed(name, shard) for shard in done])
        return self._read[name]

    @cached_property
    def _read(self) -> dict[str, pl.DataFrame]:
        """Tables by name: one command asks for them many times."""
        return {}

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.experiment)

    def _parsed(self, name: str, shard: Shard) -> pl.DataFrame:
        where = self.files(shard)
        data = where.read(f"{name}.parquet")
        try:
            return self._reader.parse(name, data, [shard])
        except ValueError as error:
            raise _not_its_table(where, name, error) from error

    def _checked(self, name: str, shards: Sequence[Shard], pieces: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """The tables of several shards as one; `Damaged` says which of them makes no sense."""
        import polars as pl

        # variants may have hyperparameters of their own, models other sizes: columns that not all shards have
        table = pl.concat(pieces, how="diagonal_relaxed")
        try:
            self._reader.check(name, table, shards)
        except ValueError as error:
            if len(shards) > 1:
                for shard, piece in zip(shards, pieces, strict=True):
                    self._checked(name, [shard], [piece])
            raise _not_its_table(self.files(shards[0]), name, error) from error
        return table

    def look_over(self, shards: Sequence[Shard]) -> list[bool | Damaged | Foreign]:
        """Whether each shard is finished, or what is wrong with it: all that reading its results would find."""
        found: list[Any] = [self._whole(shard) for shard in shards]
        whole = [i for i, pieces in enumerate(found) if isinstance(pieces, dict)]
        try:
            for name in TABLES if whole else ():
                self._checked(name, [shards[i] for i in whole], [found[i][name] for i in whole])
        except Damaged as error:
            if len(shards) == 1:
                return [error]
            return [self.look_over([shard])[0] for shard in shards]
        return [True if isinstance(what, dict) else what for what in found]

    def _whole(self, shard: Shard) -> dict[str, pl.DataFrame] | bool | Damaged | Foreign:
        """The tables of a finished shard whose files are all there and have the right hash; else as `look_over`."""
        try:
            if not self.files(shard).is_done():
                return False
            self.weights(shard)
            return {name: self._parsed(name, shard) for name in TABLES}
        except (Damaged, Foreign) as error:
            return error

    def weights(self, shard: Shard) -> dict[str, NDArray]:
        """Kept weights of a shard: WEIGHTS.SELECTION.NAME -> [M, ...]."""
        where = self.files(shard)
        if not where.is_done():
            raise UserError(f"shard {shard.name} is not finished; continue it with: {self.command}")
        try:
            kept = files.parse_arrays(where.read(WEIGHTS_FILE), where.facts)
        except files.TornFile as error:
            raise where.damaged(WEIGHTS_FILE, str(error)) from error
        shapes = {f"{slot}.{name}": shape for slot in SLOTS for name, shape in self._shapes(shard).items()}
        if strange := set(shapes) ^ set(kept):
            raise where.damaged(WEIGHTS_FILE, f"has other weights than its model ({min(strange)})")
        for name, array in kept.items():
            if array.dtype != np.float32 or array.shape != (shard.count, *shapes[name]):
                raise where.damaged(WEIGHTS_FILE, f"has weights of another model ({name} {list(array.shape)})")
        return kept

    def _shapes(self, shard: Shard) -> dict[str, tuple[int, ...]]:
        key = shard.setting.name, shard.variant
        if key not in self._known_shapes:
            problem = self.experiment.problem(shard)
            parameters = problem.model.parameters(problem.parts)
            self._known_shapes[key] = {name: tuple(map(int, p.shape)) for name, p in parameters.items()}
        return self._known_shapes[key]

    @cached_property
    def _known_shapes(self) -> dict[tuple[str, str], dict[str, tuple[int, ...]]]:
        return {}


def _not_its_table(where: ShardFiles, name: str, error: ValueError) -> Damaged:
    return where.damaged(f"{name}.parquet", f"is not this shard's table ({error})")


def _may_be_brought_along(path: Path) -> bool:
    """Whether a file can have come with a run or a reference: it lies in one, or its path leads through a link, such as
    /proc/self/cwd. A run records where the file really was."""
    return str(path) != os.path.realpath(path) or any(
        os.path.exists(parent / name) for parent in path.parents for name in (HEADER, REFERENCE)
    )


@contextlib.contextmanager
def locked(run: Run) -> Iterator[None]:
    """The right to create, extend or look over a run: taken before anything of it is read or written, for a moment.

    Training needs no more than the lease of a shard, so several processes may work on one run.
    """
    _refuse_foreign(run)
    try:
        run.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {run.directory}: {error.strerror}") from error
    with lock.waiting(run.root / LOCK):
        _refuse_foreign(run)
        files.remove_temporary(run.root)
        yield


def open_run(new_run: Run, experiment: Experiment) -> None:
    """Create a run of which nothing was read yet, or continue it: with the same spec, or with more models. For who
    holds its lock."""
    if not (new_run.root / HEADER).exists():
        _write_header(new_run, experiment, [])
        return
    run = copy.copy(new_run)  # what is read here is read again from the header that is written
    old, new = run.experiment, experiment
    if new.engine == "auto":
        # a run goes on with what it began with, where nothing else is asked for
        begun = {name: variant.engine for name, variant in old.variants.items()}
        asked = {name: variant.engine or begun.get(name) for name, variant in new.variants.items()}
        new = new.with_engines(asked, old.engine)
    grows = new.models > old.models
    stored = {**run._header["spec"], "models": new.models if grows else old.models, "drawn": run._header["drawn"]}
    stored["baseline"] = new.baseline  # how to look at a run is free to change
    changes = differences(stored, {**to_data(new), "drawn": search_data(new)})
    if changes:
        raise UserError(
            f"{run.directory} holds another run ({'; '.join(changes)}); "
            f"choose another --out, or continue it with: {run.command}"
        )
    check_rounding(run)
    if grows or new.baseline != old.baseline:
        begun = {name: run._header[name] for name in ("code", "rounding", "provenance")}
        _write_header(run, new, [*run._header["extents"], *([old.models] if grows else [])], begun)
    else:
        _write_beside(run, old)


def engine_of(experiment: Experiment, variant: str) -> str:
    return str(experiment.variants[variant].engine or experiment.engine)


def roundings(experiment: Experiment) -> dict[str, str]:
    """Engine -> how its numbers are rounded here."""
    engines = {engine_of(experiment, name) for name in experiment.variants}
    return {engine: rounding(engine, experiment.march, experiment.device) for engine in sorted(engines)}


def check_rounding(run: Run) -> None:
    """UserError on a machine whose numbers come out differently: one run, one kind of bits."""
    for engine, here in roundings(run.experiment).items():
        there = run._header["rounding"].get(engine)
        if here and there and here != there:
            raise UserError(
                f"{run.experiment.name} was begun with another processor or compiler, whose last bits differ "
                f"({engine}: {there} there, {here} here); continue it there"
                + (
                    ", or start one that can move: --march x86-64-v3, say, with the same compiler"
                    * (engine == "native")
                )
            )


def _refuse_foreign(run: Run) -> None:
    """UserError for a directory that is neither a run nor empty but for what a start that was stopped leaves."""
    directory = run.root
    try:
        if directory.exists() and not directory.is_dir():
            raise UserError(f"{run.directory} is not a directory")
        if not directory.exists() or (directory / HEADER).exists():
            return
        there = [path.name for path in directory.iterdir()]
    except OSError as error:
        raise UserError(f"cannot write to {run.directory}: {error.strerror}") from error
    if any(name != LOCK and not files.TEMPORARY.fullmatch(name) for name in there):
        raise UserError(f"{run.directory} is not empty and is not a run directory; choose another --out")


def _write_header(
    run: Run, experiment: Experiment, extents: Sequence[int], begun: Mapping[str, Any] | None = None
) -> None:
    """The header makes it a run; what belongs beside it is written again whenever it is missing. A run that has begun
    keeps what is said of where and with what."""
    sources = {own.source(reference) for reference in experiment.references()}
    header = {
        "format": FORMAT,
        "command": run.command,
        "spec": to_data(experiment),
        "drawn": search_data(experiment),
        "extents": extents,
        "code": [_code_entry(source) for source in sorted(sources, key=str)],
        "rounding": roundings(experiment),
        "provenance": provenance(),
    }
    write_header(run.root / HEADER, {**header, **(begun or {})})
    _write_beside(run, experiment)


def _write_beside(run: Run, experiment: Experiment) -> None:
    if (run.root / CODE).is_symlink():
        raise UserError(f"{run.directory / CODE} is a symbolic link: a run is not written through links")
    for source in {own.source(reference) for reference in experiment.references()}:
        for place, path in source.copies().items():
            if not (kept := run.root / CODE / place).exists():
                files.write_bytes(kept, path.read_bytes())
    if not (run.root / "README.md").exists():
        readme = _README.format(
            name=experiment.name,
            command=run.command,
            tables=described(),
            quoted=quoted(run.directory),
            python=repr(str(run.directory)),
        )
        files.write_text(run.root / "README.md", readme)


def code_lines(experiment: Experiment) -> list[str]:
    """The user's own code in an experiment, a line per file: where it is, its hash, and what it imports."""
    return sorted({str(own.source(reference)) for reference in experiment.references()})


def _code_entry(source: own.Source) -> dict[str, Any]:
    """What the header says of a file of the user's; its hash covers what it imports."""
    entry: dict[str, Any] = {"path": str(source.path), "sha256": source.digest}
    modules = [{"module": x.module, "path": str(x.path), "sha256": x.sha256} for x in source.imports]
    return {**entry, "imports": modules} if modules else entry


def code_copy(directory: Path, path: Path, sha256: str) -> Path:
    return directory / CODE / f"{sha256[: own.DIGITS]}-{path.name}"


_README = """# {name}

A run of `resharpen`. To continue it: `{command}`

- `run.json`: the resolved spec, the versions and the machine it was started with; not to be edited
- `shards/`: one directory for each setting, variant and group of draws; a shard with a `manifest.json` is finished
{tables}
- `code/`: copies of code of your own that the run used, to read

Look at it: `resharpen status {quoted}`, `resharpen figure {quoted}`, `resharpen results {quoted}`.
In Python: `import resharpen as rs; rs.load({python})`.
"""
