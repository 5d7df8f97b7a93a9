"""User code: `FILE.py:NAME` wherever a built-in name is allowed.

Files are identified by content. `admit` reads and hashes a file. From then on its objects are named by a reference that
contains the hash and does not depend on the path:

    dyt.py:dyt@3f2a9c0b1d4e

So a spec, a table or an id that names user code can never refer to another version of it. The hash includes the modules
that the file imports from outside the environment (`imports.py`). `find` executes the file, once, and returns the
object of that name. Names in a run or a reference, which others may have written, never lead to a file: `stored`
accepts references only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import stat
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from resharpen import imports
from resharpen.declared import check_class
from resharpen.errors import UserError, unknown
from resharpen.guard import guarded, is_interrupt
from resharpen.paths import here

T = TypeVar("T")

DIGITS = 12
_REFERENCE = re.compile(rf"(?P<file>[^:/@]+\.py):(?P<name>\w+)@(?P<digest>[0-9a-f]{{{DIGITS}}})")
_admitted: dict[str, Path] = {}
"""Start of the digest -> the source with that content, including its imports."""
_offered: dict[str, Any] = {}
"""Reference -> an object that was passed from Python. Its file, for example a script, is not executed."""
_files: set[str] = set()
"""All admitted files of user code, including imported ones. Tracebacks show only frames in these files."""
_MODULE = re.compile(rf"\b{imports.PREFIX}[0-9a-f]{{{DIGITS}}}\.")
IMPORTS = ".imports"
"""Copies of the modules that FILE.py imports are in FILE.imports/, next to the copy of FILE.py."""


@dataclass(frozen=True)
class Source:
    """A file of user code: its path and content hash when the run started, and the modules that it imports."""

    path: Path
    sha256: str
    imports: tuple[imports.Imported, ...] = ()

    @property
    def digest(self) -> str:
        return digest_of(self.sha256, {each.module: each.sha256 for each in self.imports})

    @property
    def root(self) -> Path:
        """The directory in which its imports are looked up."""
        copies = self.path.with_suffix(IMPORTS)
        return copies if copies.is_dir() else self.path.parent

    def copies(self) -> dict[Path, Path]:
        """Path of each copy, relative to the directory of copies -> the original file."""
        name = f"{self.digest[:DIGITS]}-{self.path.name}"
        beside = Path(name).with_suffix(IMPORTS)
        return {Path(name): self.path, **{beside / each.place: each.path for each in self.imports}}

    def __str__(self) -> str:
        places = [str(each.place) if each.beside else str(each.path) for each in self.imports]
        return f"{self.path} ({self.digest[:DIGITS]})" + (f", imports {', '.join(places)}" if places else "")


def digest_of(sha256: str, modules: Mapping[str, str]) -> str:
    """The hash of a file together with the modules that it imports; without imports, the hash of the file."""
    lines = [sha256, *(f"{module} {digest}" for module, digest in sorted(modules.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if modules else sha256


def is_own(name: str) -> bool:
    """Whether a name in a spec refers to user code: `FILE.py:NAME`, or a reference.

    >>> is_own("my/dyt.py:dyt"), is_own("dyt.py:dyt@3f2a9c0b1d4e"), is_own("rms")
    (True, True, False)
    """
    return ".py:" in name


def short(name: str) -> str:
    """The name without file and hash, for ids and figures.

    >>> short("my/dyt.py:dyt"), short("dyt.py:dyt@3f2a9c0b1d4e"), short("rms")
    ('dyt', 'dyt', 'rms')
    """
    return name.rsplit(":", 1)[-1].split("@")[0]


def is_there(name: str, base: Path | None = None) -> bool:
    """Whether the file of `FILE.py:NAME` exists, relative to `base`."""
    return _path(name, base).is_file()


def _path(name: str, base: Path | None) -> Path:
    try:
        return (base or here()) / Path(name.rpartition(":")[0]).expanduser()
    except RuntimeError:  # ~somebody
        raise UserError(f"'{name}': there is no such user") from None


def refer(name: str, base: Path | None = None) -> str:
    """The reference of `FILE.py:NAME`, with the file relative to `base`; a reference is returned unchanged."""
    if _REFERENCE.fullmatch(name):
        return name
    path, attribute = _path(name, base), name.rpartition(":")[-1]
    source = admit(path)
    reference = f"{path.name}:{attribute}@{source.digest[:DIGITS]}"
    if not _REFERENCE.fullmatch(reference):
        raise UserError(f"'{name}': write user code as FILE.py:NAME; the name of the file must not contain ':' or '@'")
    return reference


def stored(name: str) -> str:
    """A name in the spec of a run or a reference: a built-in name or a reference; UserError for a path."""
    if is_own(name) and not _REFERENCE.fullmatch(name):
        raise UserError(f"'{name}' is a path: a stored spec names code by its hash, as FILE.py:NAME@HASH")
    return name


def read(path: Path) -> Source:
    """Read and hash a file and its imports, without admitting it."""
    path = path.resolve()
    content = _content(path)
    source = Source(path, hashlib.sha256(content).hexdigest())
    try:
        return replace(source, imports=imports.imported(content, source.root))
    except OSError as error:
        raise UserError(f"{error.filename}, which {path} imports: {error.strerror}") from error


def admit(path: Path) -> Source:
    """Admit a file with its current content, and the modules that it imports."""
    source = read(path)
    _admitted[source.digest[:DIGITS]] = source.path
    _files.update(map(str, (source.path, *(each.path for each in source.imports))))
    return source


def is_admitted(digest: str) -> bool:
    """Whether this content was admitted and the files are unchanged."""
    path = _admitted.get(digest[:DIGITS])
    return path is not None and path.is_file() and read(path).digest == digest


def _content(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block
            raise UserError(f"{path} is not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def source(reference: str) -> Source:
    """The source of a reference."""
    digest = reference.rsplit("@", 1)[-1]
    if digest not in _admitted:
        raise UserError(f"the code of '{reference}' is not available: a reference stores no code, a run does")
    found = admit(_admitted[digest])
    if not found.digest.startswith(digest):
        what = ", or a file that it imports," if found.imports else ""
        raise UserError(f"{found.path}{what} has changed since '{reference}' was read")
    return found


def find(reference: str) -> Any:
    """The object that a reference names. Its file is executed on first use."""
    name, found = short(reference), source(reference)
    if reference in _offered:
        return _offered[reference]
    module = _module(found)
    if not hasattr(module, name):
        defined = ", ".join(sorted(x for x in vars(module) if not x.startswith("_"))) or "nothing"
        raise UserError(f"{module.__file__} does not define '{name}' (it defines: {defined})")
    return getattr(module, name)


def offer(reference: str, thing: Any) -> None:
    """Register an object from Python, which `find` then returns for its reference."""
    _offered[reference] = thing


def find_in(catalog: Mapping[str, T], kind: type[T], what: str, name: str) -> T:
    """The built-in object of that name, or the user's, which must be an instance of `kind`."""
    if not is_own(name):
        return _built_in(catalog, what, name)
    found = find(name)
    if not isinstance(found, kind):
        is_a = f"is a {type(found).__name__.lower()}, not {what}"
        raise UserError(f"'{short(name)}' in {source(name).path} {is_a}: see @rs.{what}")
    return found


def find_class(catalog: Mapping[str, type[T]], base: type[T], what: str, kind: str) -> type[T]:
    """The built-in class of that kind, or the user's, whose `kind` is set to its reference."""
    if not is_own(kind):
        return _built_in(catalog, what, kind)
    found = find(kind)
    frozen = isinstance(found, type) and is_dataclass(found) and found.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
    if not (frozen and issubclass(found, base)):
        raise UserError(
            f"'{short(kind)}' in {source(kind).path} is not a {what}: "
            f"it must be a frozen dataclass derived from rs.{base.__name__}"
        )
    check_class(found, f"'{short(kind)}' in {source(kind).path}")
    found.kind = kind  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _built_in(catalog: Mapping[str, T], what: str, name: str) -> T:
    if name not in catalog:
        raise unknown(what, name, catalog)
    return catalog[name]


@cache
def _module(source: Source) -> ModuleType:
    if source.path in _loading:
        refuse_while_loading()
    name = f"{imports.PREFIX}{source.digest[:DIGITS]}"
    spec = importlib.util.spec_from_file_location(name, source.path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    code = source.path.read_bytes()
    if hashlib.sha256(code).hexdigest() != source.sha256:
        raise UserError(f"{source.path} has changed while it was read")
    sys.modules[name] = module  # dataclasses look up their module
    imports.prepare(module, source.root, source.imports)
    _loading.append(source.path)
    try:
        with blamed(f"{source.path} cannot be loaded"):
            # compile the bytes that were hashed: a loader might use bytecode cached from an earlier version
            exec(compile(code, source.path, "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        for loaded in [loaded for loaded in sys.modules if loaded == name or loaded.startswith(f"{name}.")]:
            del sys.modules[loaded]
        if isinstance(error, UserError) and not isinstance(error, OwnCodeError):
            raise UserError(f"{_place(error) or source.path}: {error}") from error
        raise
    finally:
        _loading.pop()
    return module


_loading: list[Path] = []
"""Files that are currently being executed."""


def refuse_while_loading() -> None:
    """UserError for a script that defines or starts a run while it is loaded as user code."""
    if _loading:
        raise UserError("it defines or starts a run when it is loaded: put that under `if __name__ == '__main__':`")


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn any exception of user code, including SystemExit, into an OwnCodeError that begins with `what`."""
    try:
        with guarded():
            yield
    except BaseException as error:
        # a syntax error has no frame in its file
        theirs = raised_by_own(error) or isinstance(error, SyntaxError)
        if isinstance(error, UserError) or not theirs or is_interrupt(error):
            raise
        if isinstance(error, SystemExit):
            what = f"{what}: it ended the process (exit code {error.code or 0})"
        raise OwnCodeError(what, error) from error


class OwnCodeError(UserError):
    """An exception in user code: what was being done, and the traceback with the user's frames only."""

    def __init__(self, what: str, error: BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        shown = [frame for frame in frames if is_own_file(frame.filename)]
        said = _MODULE.sub("", "".join(traceback.format_exception_only(error)))
        lines = [*traceback.format_list(shown), said if len(said) <= LONGEST_SAID else f"{said[:LONGEST_SAID]}..."]
        super().__init__(f"{what}:\n{''.join(lines).rstrip()}")


LONGEST_SAID = 2000
"""Characters of an exception's message that are shown."""


def _place(error: BaseException) -> str:
    """File and line of the user code that raised an exception."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own_file(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def is_own_file(filename: str) -> bool:
    return filename in _files


def raised_by_own(error: BaseException) -> bool:
    """Whether an exception was raised in user code."""
    return bool(_place(error))
