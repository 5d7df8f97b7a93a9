"""Code of the user's own: `FILE.py:NAME` wherever a built-in name could stand.

A file is known by its content. `admit` reads and hashes it, and from then on what it defines goes by a reference that
says which content is meant, wherever the file lies:

    dyt.py:dyt@3f2a9c0b1d4e

So a spec, a table or an id that names the user's code can never mean another version of it. The hash covers what the
file imports from outside the environment (`imports.py`). `find` executes the file, once, and gives what it defines by
that name. A name that comes out of a run or a reference, which others may have written, never leads to a file: `stored`
lets references pass and nothing else.
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
"""Start of the digest -> where a file with that content, and imports with theirs, lies."""
_offered: dict[str, Any] = {}
"""Reference -> the object itself, where it was given: the file that it comes from, a script say, is not executed."""
_files: set[str] = set()
"""Every file of user code that was let in, imported ones included: what tracebacks are cut to."""
_MODULE = re.compile(rf"\b{imports.PREFIX}[0-9a-f]{{{DIGITS}}}\.")
IMPORTS = ".imports"
"""Copies of what FILE.py imports lie in FILE.imports/, beside the copy of FILE.py."""


@dataclass(frozen=True)
class Source:
    """A file of the user's: where it was when a run began, the hash of what it held, and what it imports."""

    path: Path
    sha256: str
    imports: tuple[imports.Imported, ...] = ()

    @property
    def digest(self) -> str:
        return digest_of(self.sha256, {each.module: each.sha256 for each in self.imports})

    @property
    def root(self) -> Path:
        """The directory that its imports start from."""
        copies = self.path.with_suffix(IMPORTS)
        return copies if copies.is_dir() else self.path.parent

    def copies(self) -> dict[Path, Path]:
        """Where a copy of each file belongs, below the directory of copies -> the file itself."""
        name = f"{self.digest[:DIGITS]}-{self.path.name}"
        beside = Path(name).with_suffix(IMPORTS)
        return {Path(name): self.path, **{beside / each.place: each.path for each in self.imports}}

    def __str__(self) -> str:
        places = [str(each.place) if each.beside else str(each.path) for each in self.imports]
        return f"{self.path} ({self.digest[:DIGITS]})" + (f", imports {', '.join(places)}" if places else "")


def digest_of(sha256: str, modules: Mapping[str, str]) -> str:
    """The hash of a file and of the modules that it imports, by name; of a file without any, its own."""
    lines = [sha256, *(f"{module} {digest}" for module, digest in sorted(modules.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if modules else sha256


def is_own(name: str) -> bool:
    """Whether a name in a spec is one of the user's: `FILE.py:NAME`, or a reference.

    >>> is_own("my/dyt.py:dyt"), is_own("dyt.py:dyt@3f2a9c0b1d4e"), is_own("rms")
    (True, True, False)
    """
    return ".py:" in name


def short(name: str) -> str:
    """The name by itself, for ids and figures.

    >>> short("my/dyt.py:dyt"), short("dyt.py:dyt@3f2a9c0b1d4e"), short("rms")
    ('dyt', 'dyt', 'rms')
    """
    return name.rsplit(":", 1)[-1].split("@")[0]


def is_there(name: str, base: Path | None = None) -> bool:
    """Whether there is a file of `FILE.py:NAME`, relative to `base`."""
    return _path(name, base).is_file()


def _path(name: str, base: Path | None) -> Path:
    try:
        return (base or here()) / Path(name.rpartition(":")[0]).expanduser()
    except RuntimeError:  # ~somebody
        raise UserError(f"'{name}': there is no such user") from None


def refer(name: str, base: Path | None = None) -> str:
    """The reference of `FILE.py:NAME`, the file being relative to `base`; a reference stays as it is."""
    if _REFERENCE.fullmatch(name):
        return name
    path, attribute = _path(name, base), name.rpartition(":")[-1]
    source = admit(path)
    reference = f"{path.name}:{attribute}@{source.digest[:DIGITS]}"
    if not _REFERENCE.fullmatch(reference):
        raise UserError(f"'{name}': own code is FILE.py:NAME, without ':', '@' or '/' in the file's own name")
    return reference


def stored(name: str) -> str:
    """A name in the spec of a run or a reference: a built-in one, or a reference; UserError for a path."""
    if is_own(name) and not _REFERENCE.fullmatch(name):
        raise UserError(f"'{name}' is a path: a stored spec names code by its hash, as FILE.py:NAME@HASH")
    return name


def read(path: Path) -> Source:
    """A file as it is now, with what it imports; it is not let in."""
    path = path.resolve()
    content = _content(path)
    source = Source(path, hashlib.sha256(content).hexdigest())
    try:
        return replace(source, imports=imports.imported(content, source.root))
    except OSError as error:
        raise UserError(f"{error.filename}, which {path} imports: {error.strerror}") from error


def admit(path: Path) -> Source:
    """Let the code of a file in, as it is now, with what it imports."""
    source = read(path)
    _admitted[source.digest[:DIGITS]] = source.path
    _files.update(map(str, (source.path, *(each.path for each in source.imports))))
    return source


def is_admitted(digest: str) -> bool:
    """Whether this very content was let in, and is still there."""
    path = _admitted.get(digest[:DIGITS])
    return path is not None and path.is_file() and read(path).digest == digest


def _content(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise UserError(f"{path} is not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def source(reference: str) -> Source:
    """Where the code of a reference lies."""
    digest = reference.rsplit("@", 1)[-1]
    if digest not in _admitted:
        raise UserError(f"the code of '{reference}' is not at hand: a run says where it is, a reference keeps no code")
    found = admit(_admitted[digest])
    if not found.digest.startswith(digest):
        what = ", or a file that it imports," if found.imports else ""
        raise UserError(f"{found.path}{what} has changed since '{reference}' was read")
    return found


def find(reference: str) -> Any:
    """What the file of a reference defines under its name; the file is executed the first time."""
    name, found = short(reference), source(reference)
    if reference in _offered:
        return _offered[reference]
    module = _module(found)
    if not hasattr(module, name):
        defined = ", ".join(sorted(x for x in vars(module) if not x.startswith("_"))) or "nothing"
        raise UserError(f"{module.__file__} does not define '{name}' (it defines: {defined})")
    return getattr(module, name)


def offer(reference: str, thing: Any) -> None:
    """An object of the user's that `find` gives for its reference."""
    _offered[reference] = thing


def find_in(catalog: Mapping[str, T], kind: type[T], what: str, name: str) -> T:
    """The built-in thing of that name, or the user's own, which has to be of that kind."""
    if not is_own(name):
        return _built_in(catalog, what, name)
    found = find(name)
    if not isinstance(found, kind):
        is_a = f"is a {type(found).__name__.lower()}, not {what}"
        raise UserError(f"'{short(name)}' in {source(name).path} {is_a}: see @rs.{what}")
    return found


def find_class(catalog: Mapping[str, type[T]], base: type[T], what: str, kind: str) -> type[T]:
    """The built-in class of that kind, or the user's own, whose kind is then its reference."""
    if not is_own(kind):
        return _built_in(catalog, what, kind)
    found = find(kind)
    frozen = isinstance(found, type) and is_dataclass(found) and found.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
    if not (frozen and issubclass(found, base)):
        raise UserError(
            f"'{short(kind)}' in {source(kind).path} is not a {what}: "
            f"it has to be a frozen dataclass derived from rs.{base.__name__}"
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
    sys.modules[name] = module  # dataclasses look their module up
    imports.prepare(module, source.root, source.imports)
    _loading.append(source.path)
    try:
        with blamed(f"{source.path} cannot be loaded"):
            # the very bytes that were hashed: the loader might take what Python keeps of an earlier content
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
"""Files that are being executed."""


def refuse_while_loading() -> None:
    """UserError for a script that sets up or starts a run when it is loaded as own code."""
    if _loading:
        raise UserError("it sets up a run when it is loaded: put what it does under `if __name__ == '__main__':`")


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Where user code runs: whatever comes out of it, an exit too, is an OwnCodeError that begins with `what`."""
    try:
        with guarded():
            yield
    except BaseException as error:
        # a syntax error has no frame in the file that it is in
        theirs = raised_by_own(error) or isinstance(error, SyntaxError)
        if isinstance(error, UserError) or not theirs or is_interrupt(error):
            raise
        if isinstance(error, SystemExit):
            what = f"{what}: it ended the process (exit code {error.code or 0})"
        raise OwnCodeError(what, error) from error


class OwnCodeError(UserError):
    """An exception in the user's own code: what was going on, and the traceback, of which the user's frames."""

    def __init__(self, what: str, error: BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        shown = [frame for frame in frames if is_own_file(frame.filename)]
        said = _MODULE.sub("", "".join(traceback.format_exception_only(error)))
        lines = [*traceback.format_list(shown), said if len(said) <= LONGEST_SAID else f"{said[:LONGEST_SAID]}..."]
        super().__init__(f"{what}:\n{''.join(lines).rstrip()}")


LONGEST_SAID = 2000
"""Characters of an exception's own text that are shown."""


def _place(error: BaseException) -> str:
    """File and line of the user's code that an exception came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own_file(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def is_own_file(filename: str) -> bool:
    return filename in _files


def raised_by_own(error: BaseException) -> bool:
    """Whether an exception came out of the user's code."""
    return bool(_place(error))
