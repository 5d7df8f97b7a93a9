"""The files of one shard: written by the process that holds its lease, read by anyone, never through links.

Every file names its owner: the shard's name and its identity, a hash of everything that can change its results. A file
that names another owner, or whose hash is not the one in the manifest, is not used.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from resharpen.errors import UserError
from resharpen.experiments.keeping import files, lock
from resharpen.experiments.keeping.checks import check_fields
from resharpen.experiments.specs.schema import TABLES
from resharpen.lazy import pl

WEIGHTS_FILE = "weights.safetensors"
RESULTS = (*(f"{name}.parquet" for name in TABLES), WEIGHTS_FILE)
STATE, MANIFEST, LEASE = "state.safetensors", "manifest.json", ".lease"
FINAL = "final.safetensors"
FORMAT = 4
"""1 had placements instead of variants; 2 did not name the owner in every file; 3 had no checksum in run.json."""
_MANIFEST = {
    int: ["format"],
    str: ["shard", "identity"],
    dict: ["bytes", "sha256"],
    str | None: ["engine", "built"],
    int | float | None: ["seconds"],
}


class Damaged(UserError):
    """A file of a finished shard is missing or was changed: the shard can be trained again."""


class Foreign(UserError):
    """A finished shard is intact but does not match run.json: only the user can tell which of the two is wrong."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of the shard of that name in a run directory."""

    run: Path
    name: str
    identity: str

    @property
    def directory(self) -> Path:
        return self.run / "shards" / self.name

    @property
    def state(self) -> Path:
        return self.directory / STATE

    @property
    def facts(self) -> dict[str, str]:
        return {"shard": self.name, "identity": self.identity}

    @contextlib.contextmanager
    def lease(self) -> Iterator[bool]:
        """Try to lock this shard for writing, until the process ends at the latest; yields whether it was free."""
        self._refuse_links()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {self.directory}: {error.strerror}") from error
        with lock.if_free(self.directory / LEASE) as held:
            if held:
                files.remove_temporary(self.directory)
            yield held

    def is_leased(self) -> bool:
        return lock.is_held(self.directory / LEASE)

    def save(self, arrays: Mapping[str, NDArray], name: str = STATE) -> None:
        """Write the state, or the last one, FINAL, which is kept for more steps later."""
        files.write_arrays(self.directory / name, arrays, self.facts)

    def saved(self, name: str = STATE) -> dict[str, NDArray] | None:
        """The state, if there is one; `TornFile` if it is damaged or belongs to another shard."""
        path = self.directory / name
        return files.read_arrays(path, self.facts) if path.exists() else None

    def finish(
        self, tables: Mapping[str, pl.DataFrame], weights: Mapping[str, NDArray], facts: Mapping[str, Any]
    ) -> None:
        """Write the results, then the manifest, which makes the shard finished; then delete state and lease."""
        for name, table in tables.items():
            files.write_bytes(self.directory / f"{name}.parquet", files.parquet(table))
        files.write_arrays(self.directory / WEIGHTS_FILE, weights, self.facts)
        written = {name: (self.directory / name).read_bytes() for name in RESULTS}
        hashes = {name: files.sha256(data) for name, data in written.items()}
        sizes = {name: len(data) for name, data in written.items()}
        manifest = {"format": FORMAT, **self.facts, **facts, "bytes": sizes, "sha256": hashes}
        files.write_json(self.directory / MANIFEST, manifest)
        self.tidy()

    def tidy(self) -> None:
        """Delete state and lease of a finished shard. A process that has just opened the lease finds the manifest."""
        for name in (STATE, LEASE):
            with contextlib.suppress(OSError):  # an open file stays on Windows
                (self.directory / name).unlink(missing_ok=True)

    def is_done(self) -> bool:
        """Whether the shard is finished; `Damaged` if it has a manifest but a file is missing or of another size."""
        manifest = self._manifest()
        if manifest is None:
            return False
        for name in RESULTS:
            try:
                size = os.stat(self._path(name)).st_size
            except OSError as error:
                raise self._lost(name, error) from error
            if size != manifest["bytes"][name]:
                raise self.damaged(name, "is damaged (its size differs from the manifest)")
        return True

    def read(self, name: str) -> bytes:
        """One of the results, checked against its hash in the manifest."""
        manifest = self._manifest()
        try:
            data = Path(self._path(name)).read_bytes()
        except OSError as error:
            raise self._lost(name, error) from error
        if manifest is None or files.sha256(data) != manifest["sha256"][name]:
            raise self.damaged(name, "is damaged (its hash differs from the manifest)")
        return data

    def told(self, name: str) -> Any:
        """`engine`, `built` or `seconds` of a finished shard; None if not recorded."""
        return (self._manifest() or {}).get(name)

    def discard(self) -> None:
        """Delete the results of this shard, so that it is trained again; files that are not ours stay."""
        self._refuse_links()
        for name in (MANIFEST, STATE, FINAL, *RESULTS):
            path = self.directory / name
            if path.is_dir() and not path.is_symlink():
                raise UserError(f"{path} is a directory where a file should be: remove it")
            path.unlink(missing_ok=True)

    def reopen(self) -> None:
        """Delete the manifest and results of this shard, so that it is unfinished; its state stays."""
        for name in (MANIFEST, FINAL, *RESULTS):
            (self.directory / name).unlink(missing_ok=True)

    def damaged(self, name: str, what: str) -> Damaged:
        return Damaged(f"{self.directory / name} {what}: run the same command again to train only this shard again")

    def _lost(self, name: str, error: OSError) -> Exception:
        """`Damaged` for a file that is gone, `Failed` for an error that may be temporary."""
        if not isinstance(error, files.LOST):
            return files.unreadable(self.directory / name, error)
        missing = isinstance(error, FileNotFoundError)
        return self.damaged(name, "is missing" if missing else f"cannot be read ({error.strerror})")

    def _manifest(self) -> dict[str, Any] | None:
        """The manifest, checked; None if there is none."""
        path = self._path(MANIFEST)
        try:
            status = os.stat(path)
            manifest = _read_manifest(path, status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._lost(MANIFEST, error) from error
        except (ValueError, RecursionError):
            raise self.damaged(MANIFEST, "is not a manifest") from None
        for name, value in {"format": FORMAT, **self.facts}.items():
            if manifest.get(name) != value:
                what = f"belongs to another shard ({name} is {manifest.get(name)!r}, not {value!r})"
                raise Foreign(
                    f"{self.directory / MANIFEST} {what}: restore the matching run.json or shard, or "
                    f"train it again with: resharpen run {shlex.quote(str(self.run))} --discard. Nothing was deleted"
                )
        return manifest

    def _path(self, name: str) -> str:
        """A path as text: ten times as fast as pathlib, which matters for ten thousand shards."""
        return f"{self.run}/shards/{self.name}/{name}"

    def _refuse_links(self) -> None:
        for path in (self.directory, *self.directory.parents):
            if path == self.run:
                return
            if path.is_symlink():
                raise UserError(f"{path} is a symbolic link: runs are not written through links")


@lru_cache(maxsize=2**17)
def _read_manifest(path: str, inode: int, size: int, modified: int) -> dict[str, Any]:
    """Read a manifest, cached as long as the file is unchanged; ValueError if it is not a manifest."""
    manifest = json.loads(Path(path).read_bytes())
    check_fields(manifest, _MANIFEST)
    for key, kind in (("sha256", str), ("bytes", int)):
        values = manifest[key]
        if set(values) != set(RESULTS) or not all(isinstance(value, kind) for value in values.values()):
            raise ValueError(f"{key} is not that of a manifest")
    return manifest
