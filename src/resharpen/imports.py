"""Modules that user code imports from outside the environment: found without executing them, hashed with the code, and
loaded separately for each file.

`import helper` in FILE.py means helper.py or helper/ next to FILE.py, otherwise what Python finds. The standard library
and installed packages belong to the environment, whose versions a run records. All other files, including editable
installs, belong to the user code. Only `import` statements are found, at any depth, not importlib.import_module.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.machinery
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "resharpen_own_"
"""User modules are named by the hash of their code, so that two modules of the same name do not collide."""


@dataclass(frozen=True)
class Imported:
    """A module that user code imports."""

    module: str
    path: Path
    sha256: str
    beside: bool
    """Whether it is in the directory of the file. Such a module is loaded for this file only."""

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def place(self) -> Path:
        """Its path in the directory of copies: a/b.py, or a/b/__init__.py."""
        at = Path(*self.module.split("."))
        return at / "__init__.py" if self.is_package else at.with_name(f"{at.name}{self.path.suffix}")


def imported(content: bytes, root: Path) -> tuple[Imported, ...]:
    """All modules outside the environment that code imports, directly or indirectly, sorted by name."""
    found: dict[str, Imported] = {}
    waiting = [("", True, content)]
    while waiting:
        module, is_package, code = waiting.pop()
        for name in _names(code, module, is_package):
            if name in found or (located := _locate(name, root)) is None:
                continue
            path, beside = located
            read = path.read_bytes()
            found[name] = Imported(name, path, hashlib.sha256(read).hexdigest(), beside)
            if path.suffix == ".py":
                waiting.append((name, found[name].is_package, read))
    return tuple(found[name] for name in sorted(found))


@cache
def _names(code: bytes, module: str, is_package: bool) -> tuple[str, ...]:
    """Every dotted name that may be a module, parents first; "" is the package of the file's directory."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # reported when the file is executed
        return ()
    return tuple(dict.fromkeys(name for node in ast.walk(tree) for name in _of_node(node, module, is_package)))


def _of_node(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    dotted: list[str] = []
    if isinstance(node, ast.Import):
        dotted = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parents = [part for part in module.split(".") if part]
        up = node.level - is_package
        base = parents[: len(parents) - up] if node.level else []
        if node.level and up > len(parents):
            return
        stem = [*base, *(node.module.split(".") if node.module else [])]
        dotted = [".".join([*stem, name]) for name in ["", *(alias.name for alias in node.names)]]
    for name in dotted:
        parts = [part for part in name.split(".") if part]
        yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _locate(name: str, root: Path) -> tuple[Path, bool] | None:
    """The file of a module outside the environment, and whether it is below `root`."""
    top, *rest = name.split(".")
    if top in sys.stdlib_module_names or top == "resharpen":
        return None
    if is_beside(top, root):
        file = _below(root, [top, *rest])
        return (file, True) if file else None
    where = _outside(top)
    if where is None:
        return None
    file = Path(where) if not rest else _below(Path(where).parent, rest) if where.endswith("__init__.py") else None
    return (file, False) if file else None


def is_beside(top: str, root: Path) -> bool:
    """Whether a top-level name refers to something in the file's directory: a module, a package, or a directory that
    Python would import as a namespace package because nothing else has the name."""
    if (root / f"{top}.py").is_file() or (root / top / "__init__.py").is_file():
        return True
    return (root / top).is_dir() and not _is_known(top)


def _below(directory: Path, parts: Sequence[str]) -> Path | None:
    at = directory.joinpath(*parts)
    return next((file for file in (at / "__init__.py", at.with_name(f"{at.name}.py")) if file.is_file()), None)


_installed: set[str] = set()
"""Top-level names found in the environment, which is assumed not to change during a process."""


def _origin(top: str) -> str | None:
    try:
        return getattr(importlib.util.find_spec(top), "origin", None)
    except (ImportError, ValueError, AttributeError):
        return None


def _is_known(top: str) -> bool:
    return top in _installed or _origin(top) is not None


def _outside(top: str) -> str | None:
    """The file of a top-level module that Python finds outside the environment."""
    if top in _installed or (origin := _origin(top)) is None or not Path(origin).is_file():
        return None
    at = Path(origin).resolve()
    if any(at.is_relative_to(directory) for directory in _environment()):
        _installed.add(top)
        return None
    return str(at)


@cache
def _environment() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({Path(path).resolve() for path in (*paths, *site.getsitepackages(), site.getusersitepackages())})


# ---- loading ---------------------------------------------------------------------------------------------------------


def prepare(module: ModuleType, root: Path, modules: Sequence[Imported]) -> None:
    """Let a module that is not executed yet import modules from its own directory."""
    beside = {each.module: each for each in modules if each.beside}
    if not beside:
        return
    module.__path__ = [str(root)]
    module.__package__ = module.__name__
    _finder.known[module.__name__] = _Beside(root, beside, _builtins(module.__name__, root, beside))
    vars(module)["__builtins__"] = _finder.known[module.__name__].builtins
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _builtins(own: str, root: Path, beside: Mapping[str, Imported]) -> dict[str, Any]:
    """Python's builtins with an `__import__` that looks in the file's directory first."""
    tops = {name.split(".")[0] for name in beside}

    def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or name.split(".")[0] not in tops:
            return builtins.__import__(name, globals, locals, fromlist, level)
        found = builtins.__import__(f"{own}.{name}", globals, locals, fromlist, 0)
        return found if fromlist else sys.modules[f"{own}.{name.split('.')[0]}"]

    return {**vars(builtins), "__import__": import_}


@dataclass(frozen=True)
class _Beside:
    root: Path
    modules: Mapping[str, Imported]
    builtins: dict[str, Any]


class _Finder:
    """Finds `resharpen_own_HASH.NAME`, and loads the content that was hashed."""

    def __init__(self) -> None:
        self.known: dict[str, _Beside] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        own, _, name = fullname.partition(".")
        beside = self.known.get(own)
        if beside is None or not name:
            return None
        if (module := beside.modules.get(name)) is None:
            if not any(other.startswith(f"{name}.") for other in beside.modules):
                return None
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)  # a directory without __init__.py
            spec.submodule_search_locations = [str(beside.root.joinpath(*name.split(".")))]
            return spec
        return importlib.util.spec_from_file_location(
            fullname,
            module.path,
            loader=_Loader(module, beside.builtins),  # pyright: ignore[reportArgumentType]
            submodule_search_locations=[str(module.path.parent)] if module.is_package else None,
        )


@dataclass(frozen=True)
class _Loader:
    module: Imported
    builtins: dict[str, Any]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        code = self.module.path.read_bytes()
        if hashlib.sha256(code).hexdigest() != self.module.sha256:
            raise ImportError(f"{self.module.path} has changed while it was read")
        vars(module)["__builtins__"] = self.builtins
        exec(compile(code, self.module.path, "exec", dont_inherit=True), vars(module))


_finder = _Finder()
