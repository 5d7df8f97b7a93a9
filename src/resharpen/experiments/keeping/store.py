"""A run directory: its files, and how they are written and read.

run.json                                the resolved spec, versions, machine, the command that resumes it, a checksum
README.md                               a description for readers
code/HASH-FILE.py, HASH-FILE.imports/   copies of user code and of the modules that it imports
shards/SETTING/VARIANT/FIRST-LAST/
    state.safetensors                   unfinished shard: everything needed to resume with the same bits
    models, curves, lengths .parquet    finished shard: its rows of the three tables
    weights.safetensors                 weights of the selected checkpoints, WEIGHTS.SELECTION.NAME [M, ...]
    final.safetensors                   the last state, if the schedule allows more steps later
    manifest.json                       hashes of the other files, written last: the shard is finished
    .lease                              held by the process that trains the shard; deleted when it is finished
.lock                                   held briefly while the run is created or extended
.shared                                 while Ray trains it: a token by which tasks recognize this directory
"""

from __future__ import annotations

import contextlib
import copy
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen import own
from resharpen.engines.choose import rounding
from resharpen.errors import UserError, suggestion, unknown
from resharpen.experiments.keeping import files, lock, longer, trust
from resharpen.experiments.keeping.checks import check_arrays, check_header, read_header, write_header
from resharpen.experiments.keeping.machine import provenance
from resharpen.experiments.keeping.reading import Reader
from resharpen.experiments.keeping.shard import FORMAT, WEIGHTS_FILE, Damaged, Foreign, ShardFiles
from resharpen.experiments.specs.schema import SLOTS, TABLES, described
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.toml import differences, from_stored, identities, search_data, to_data
from resharpen.lazy import pl
from resharpen.paths import absolute

HEADER, REFERENCE, LOCK, CODE = "run.json", "reference.json", ".lock", "code"


def quoted(path: Path) -> str:
    """A path quoted for the shell, so that it cannot be read as an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


@dataclass(frozen=True)
class Run:
    """An existing run directory.

    User code is executed from its original file if that is unchanged and this account has trained with it. Other files,
    and the copies in a run directory, are executed only with `trust_code`.
    """

    directory: Path
    """As it was given, for messages."""
    trust_code: bool = False
    root: Path = field(init=False, repr=False, compare=False)
    """The absolute path, which does not depend on the working directory."""
    _tables: dict[str, pl.DataFrame] = field(default_factory=dict, init=False, repr=False, compare=False)
    _weights: dict[Any, dict[str, NDArray]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """(setting, variant, models) -> arrays of the types and shapes that weights must have."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", absolute(self.directory))

    @cached_property
    def _header(self) -> dict[str, Any]:
        try:
            return read_header(self.root / HEADER, self._check_header, "start a new run with another --out")
        except FileNotFoundError:
            raise no_run(self.directory) from None

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
        return from_stored(self._header["spec"], self.directory / HEADER)

    def _admit(self, path: Path, sha256: str, imports: Any) -> None:
        """Admit user code: a file that this process has already admitted, because the user named it; else the file in
        the header, if this account has trained with it; else, with `trust_code`, that file or the copy in the run."""
        if own.is_admitted(sha256):
            return
        kept = self.root / CODE / f"{sha256[: own.DIGITS]}-{path.name}"
        if not self.trust_code and not trust.is_known(path, sha256):
            raise UserError(f"this account has not trained with {path}: read {kept}, then execute it with --trust-code")
        for candidate in (path, kept) if self.trust_code else (path,):
            if candidate.is_file() and own.read(candidate).digest == sha256:
                own.admit(candidate)
                return
        what = "has changed since this run started" if path.is_file() else "no longer exists"
        what = f", or a file that it imports, {what}" if imports and path.is_file() else f" {what}"
        remedies = f"restore it, choose another --out for a new run, or execute the copy {kept} with --trust-code"
        raise UserError(f"{path}{what}: {remedies}")

    @property
    def command(self) -> str:
        """The command that continues this run."""
        return f"resharpen run {quoted(self.directory)}"

    def _repr_html_(self) -> str:
        """In a notebook: settings, progress and the command that continues the run."""
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
        """The part of a shard's build that determines rounding; empty if unknown when the run started."""
        return self._header["rounding"].get(engine_of(self.experiment, shard.variant), "")

    def shards(self) -> list[Shard]:
        return self.experiment.shards(self._header["extents"])

    @cached_property
    def _identity(self) -> Callable[[Shard], str]:
        return identities(self.experiment, self._header["drawn"])

    def files(self, shard: Shard) -> ShardFiles:
        return ShardFiles(self.root, shard.name, self._identity(shard))

    def done(self) -> list[Shard]:
        """The finished shards, by their manifests and file sizes; content is checked when it is read. The list is made
        once, so that one command sees the same shards throughout."""
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
        if name not in self._tables:
            self._tables[name] = self._checked(name, done, [self._parsed(name, shard) for shard in done])
        return self._tables[name]

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
        """The tables of several shards as one; `Damaged` names the shard whose table is invalid."""
        # variants may have further hyperparameters, models further sizes: columns that not all shards have
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
        """Whether each shard is finished, or its error. This detects every error that reading the results would."""
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
        """The tables of a finished shard whose files are intact; otherwise as `look_over`."""
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
        data = where.read(WEIGHTS_FILE)
        try:
            kept = files.parse_arrays(data, where.facts, verified=True)
            check_arrays(kept, self._weights_like(shard))
        except (files.TornFile, ValueError) as error:
            raise where.damaged(WEIGHTS_FILE, f"belongs to another shard ({error})") from error
        return kept

    def _weights_like(self, shard: Shard) -> dict[str, NDArray]:
        key = shard.setting.name, shard.variant, shard.count
        if key not in self._weights:
            problem = self.experiment.problem(shard)
            shapes = {name: p.shape for name, p in problem.model.parameters(problem.parts).items()}
            self._weights[key] = {
                f"{slot}.{name}": np.broadcast_to(np.float32(0), (shard.count, *map(int, shape)))
                for slot in SLOTS
                for name, shape in shapes.items()
            }
        return self._weights[key]


def _not_its_table(where: ShardFiles, name: str, error: ValueError) -> Damaged:
    return where.damaged(f"{name}.parquet", f"is not the table of this shard ({error})")


def no_run(directory: Path, further: Iterable[str] = ()) -> UserError:
    """An error that suggests a run in the same directory or in runs/, or one of the further names."""
    places = dict.fromkeys((directory.parent, Path("runs")))
    found = [(place, path.parent.name) for place in places for path in sorted(absolute(place).glob(f"*/{HEADER}"))]
    runs = {name: str(place / name) for place, name in found}
    hint = suggestion(directory.name, runs | {name: name for name in further})
    return UserError(f"{directory} is not a run directory: it has no {HEADER}{hint and f'; {hint.strip()}'}")


@contextlib.contextmanager
def locked(run: Run) -> Iterator[None]:
    """Hold the lock under which a run is created or extended, creating its directory. Training needs only the lease of
    a shard, so several processes may work on one run."""
    _refuse_other_directory(run)
    try:
        run.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {run.directory}: {error.strerror}") from error
    with lock.waiting(run.root / LOCK):
        _refuse_other_directory(run)
        files.remove_temporary(run.root)
        yield


def open_run(new_run: Run, experiment: Experiment) -> None:
    """Create a run, or continue one: with the same spec, with more models, or with more steps if the result has the
    bits of a run of that length. The caller holds its lock and has not read it yet."""
    if not (new_run.root / HEADER).exists():
        _write_header(new_run, experiment, [])
        return
    run = copy.copy(new_run)  # the header may be written here, and `new_run` must read the new one
    old, new = run.experiment, experiment
    if new.engine == "auto":
        # by default a run continues with the engines that it started with
        begun = {name: variant.engine for name, variant in old.variants.items()}
        asked = {name: variant.engine or begun.get(name) for name, variant in new.variants.items()}
        new = new.with_engines(asked, old.engine)
    before = run._header.get("checkpoints_before") or []
    if new.checkpoints in before:  # a spec from before the run was extended to more steps and checkpoints
        new = new._with(checkpoints=old.checkpoints)
    grows, goes_on = new.models > old.models, new.steps > old.steps
    stored = {**run._header["spec"], "models": new.models if grows else old.models, "drawn": run._header["drawn"]}
    stored |= {"baseline": new.baseline, "steps": max(new.steps, old.steps)}  # the baseline changes no result
    changes = differences(stored, {**to_data(new), "drawn": search_data(new)})
    if changes:
        raise UserError(
            f"{run.directory} holds another run ({'; '.join(changes)}); "
            f"choose another --out, or continue it with: {run.command}"
        )
    check_rounding(run)
    if goes_on:
        _train_on(run, longer.longer(old, new))
    elif grows or new.baseline != old.baseline:
        _write_header(run, new, [*run._header["extents"], *([old.models] if grows else [])], _begun(run))
    else:
        _write_beside(run, old)


def _begun(run: Run) -> dict[str, Any]:
    """Fields of a header that stay when it is written again."""
    kept = ("code", "rounding", "provenance", "checkpoints_before")
    return {name: run._header[name] for name in kept if name in run._header}


def _train_on(run: Run, new: Experiment) -> None:
    """More steps. States go first, then the header, then what was found at the former end: a kill in between costs
    training again, and no result is taken for another."""
    states = longer.states(run, new)
    begun = _begun(run)
    before = [*begun.get("checkpoints_before", []), run.experiment.checkpoints]
    identity = identities(new, run._header["drawn"])
    shards = {shard.name: ShardFiles(run.root, shard.name, identity(shard)) for shard in run.shards()}
    for name, arrays in states.items():
        shards[name].save(arrays)
    _write_header(run, new, run._header["extents"], {**begun, "checkpoints_before": before})
    for name in states:
        shards[name].reopen()


def engine_of(experiment: Experiment, variant: str) -> str:
    return str(experiment.variants[variant].engine or experiment.engine)


def roundings(experiment: Experiment) -> dict[str, str]:
    """Engine -> the part of this machine's build that determines rounding."""
    engines = {engine_of(experiment, name) for name in experiment.variants}
    return {engine: rounding(engine, experiment.march, experiment.device) for engine in sorted(engines)}


def check_rounding(run: Run) -> None:
    """UserError on a machine whose results would differ in the last bits: all shards of a run have the same build."""
    for engine, here in roundings(run.experiment).items():
        there = run._header["rounding"].get(engine)
        if here and there and here != there:
            portable = ", or start a portable run: --march x86-64-v3, with the same compiler"
            raise UserError(
                f"{run.experiment.name} was started with another processor or compiler, whose results differ in the "
                f"last bits ({engine}: {there} there, {here} here); continue it there" + portable * (engine == "native")
            )


def _refuse_other_directory(run: Run) -> None:
    """UserError for a directory that is not a run, unless it contains only files of an interrupted start."""
    try:
        there = [path.name for path in run.root.iterdir()] if run.root.exists() else []
    except NotADirectoryError:
        raise UserError(f"{run.directory} is not a directory") from None
    except OSError as error:
        raise UserError(f"cannot write to {run.directory}: {error.strerror}") from error
    if HEADER not in there and any(name != LOCK and not files.TEMPORARY.fullmatch(name) for name in there):
        raise UserError(f"{run.directory} is not empty and is not a run directory; choose another --out")


def _write_header(
    run: Run, experiment: Experiment, extents: Sequence[int], begun: Mapping[str, Any] | None = None
) -> None:
    """Write run.json, the README and copies of code; `begun` are fields that an existing run keeps."""
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
    """Write copies of user code and the README where they are missing."""
    if (run.root / CODE).is_symlink():
        raise UserError(f"{run.directory / CODE} is a symbolic link: runs are not written through links")
    for source in {own.source(reference) for reference in experiment.references()}:
        if not run.trust_code:
            trust.remember(source.path, source.digest)
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
    """The user code of an experiment, one line per file: path, hash and imports."""
    return sorted({str(own.source(reference)) for reference in experiment.references()})


def _code_entry(source: own.Source) -> dict[str, Any]:
    """The header's entry of a file of user code; its hash includes the modules that it imports."""
    entry: dict[str, Any] = {"path": str(source.path), "sha256": source.digest}
    modules = [{"module": x.module, "path": str(x.path), "sha256": x.sha256} for x in source.imports]
    return {**entry, "imports": modules} if modules else entry


_README = """# {name}

A run of `resharpen`. To continue it: `{command}`

- `run.json`: the resolved spec, versions and machine; do not edit it
- `shards/`: one directory per setting, variant and group of draws; a shard with a `manifest.json` is finished
{tables}
- `code/`: copies of the user code of this run

Look at it: `resharpen status {quoted}`, `resharpen figure {quoted}`, `resharpen results {quoted}`.
In Python: `import resharpen as rs; rs.load({python})`.
"""
