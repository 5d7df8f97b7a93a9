"""Code of the user's own: `FILE.py:NAME` wherever a built-in name could stand.

A file is known by its content. `admit` reads and hashes it, and from then on what it defines goes by a reference that
says which content is meant, wherever the file lies:

    dyt.py:dyt@3f2a9c0b1d4e

So a spec, a table or an id that names the user's code can never mean another version of it. `find` executes the file,
once, and gives what it defines under that name. A name that comes out of a run or a reference, which others may have
written, never leads to a file: `stored` lets references pass and nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from resharpen.errors import UserError, unknown
from resharpen.paths import here

T = TypeVar("T")

DIGITS = 12
_REFERENCE = re.compile(rf"(?P<file>[^:/@]+\.py):(?P<name>\w+)@(?P<digest>[0-9a-f]{{{DIGITS}}})")
_admitted: dict[str, Path] = {}
"""Start of the hash -> where a file with that content lies."""


@dataclass(frozen=True)
class Source:
    """A file of the user's: where it was when a run began, and the hash of what it held."""

    path: Path
    sha256: str


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
    return (base or here()) / Path(name.rpartition(":")[0]).expanduser()


def refer(name: str, base: Path | None = None) -> str:
    """The reference of `FILE.py:NAME`, the file being relative to `base`; a reference stays as it is."""
    if _REFERENCE.fullmatch(name):
        return name
    path, attribute = _path(name, base), name.rpartition(":")[-1]
    source = admit(path)
    reference = f"{path.name}:{attribute}@{source.sha256[:DIGITS]}"
    if not _REFERENCE.fullmatch(reference):
        raise UserError(f"'{name}': own code is FILE.py:NAME, without ':', '@' or '/' in the file's own name")
    return reference


def stored(name: str) -> str:
    """A name in the spec of a run or a reference: a built-in one, or a reference; UserError for a path."""
    if is_own(name) and not _REFERENCE.fullmatch(name):
        raise UserError(f"'{name}' is a path: a stored spec names code by its hash, as FILE.py:NAME@HASH")
    return name


def admit(path: Path) -> Source:
    """Let the code of a file in, as it is now."""
    digest = sha256_of(path)
    _admitted[digest[:DIGITS]] = path.resolve()
    return Source(path.resolve(), digest)


def is_admitted(sha256: str) -> bool:
    """Whether this very content was let in, and is still there."""
    path = _admitted.get(sha256[:DIGITS])
    return path is not None and path.is_file() and sha256_of(path) == sha256


def sha256_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def source(reference: str) -> Source:
    """Where the code of a reference lies."""
    digest = reference.rsplit("@", 1)[-1]
    if digest not in _admitted:
        raise UserError(f"the code of '{reference}' is not at hand: a run says where it is, a reference keeps no code")
    found = admit(_admitted[digest])
    if not found.sha256.startswith(digest):
        raise UserError(f"{found.path} has changed since '{reference}' was read")
    return found


def find(reference: str) -> Any:
    """What the file of a reference defines under its name; the file is executed the first time."""
    name = short(reference)
    module = _module(source(reference))
    if not hasattr(module, name):
        defined = ", ".join(sorted(x for x in vars(module) if not x.startswith("_"))) or "nothing"
        raise UserError(f"{module.__file__} does not define '{name}' (it defines: {defined})")
    return getattr(module, name)


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
    found.kind = kind  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _built_in(catalog: Mapping[str, T], what: str, name: str) -> T:
    if name not in catalog:
        raise unknown(what, name, catalog)
    return catalog[name]


@cache
def _module(source: Source) -> ModuleType:
    name = f"resharpen_own_{source.sha256[:DIGITS]}"
    spec = importlib.util.spec_from_file_location(name, source.path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    code = source.path.read_bytes()
    if hashlib.sha256(code).hexdigest() != source.sha256:
        raise UserError(f"{source.path} has changed while it was read")
    sys.modules[name] = module  # dataclasses look their module up
    try:
        # the very bytes that were hashed: the loader might take what Python keeps of an earlier content
        exec(compile(code, source.path, "exec", dont_inherit=True), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise OwnCodeError(f"{source.path} cannot be read", error) from error
    return module


class OwnCodeError(UserError):
    """An exception in the user's own code: what was going on, and the traceback from the user's first frame on."""

    def __init__(self, what: str, error: BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        own = [i for i, frame in enumerate(frames) if is_own_file(frame.filename)]
        shown = frames[own[0] :] if own else []
        ours = os.path.dirname(__file__)
        shown = [frame for frame in shown if not frame.filename.startswith(ours) and "/torch/" not in frame.filename]
        lines = [*traceback.format_list(shown), *traceback.format_exception_only(error)]
        super().__init__(f"{what}:\n{''.join(lines).rstrip()}")


def is_own_file(filename: str) -> bool:
    return Path(filename) in _admitted.values()


def raised_by_own(error: BaseException) -> bool:
    """Whether an exception came out of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(is_own_file(frame.filename) for frame in frames)
