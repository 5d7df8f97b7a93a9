"""Python objects where FILE.py:NAME could stand: a part, an optimizer or a class from a script or a notebook cell.

A worker has to make it again, and a run has to keep its source. What is defined in a file goes by that file. What is
defined in a cell goes by a file that is written for it: the statement that defines it, what it uses of other cells, and
the imports of both. The file exists as long as this process; the run keeps a copy, like of any code. To continue the
run later, give it the same object again, or trust the copy.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import hashlib
import linecache
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from resharpen import imports, own
from resharpen.errors import UserError

CONSTANTS = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))


def refer(thing: Any) -> str:
    """The reference of an object, of which `own.find` then gives the same; UserError if it cannot be made again."""
    anchor = _anchor(thing)
    name, namespace = _name(thing, anchor), _namespace(anchor)
    filename = _filename(anchor)
    if filename is not None and Path(filename).is_file():
        reference = own.refer(f"{filename}:{name}")
        if not anchor.__module__.startswith(imports.PREFIX):
            own.offer(reference, thing)
        return reference
    text = _Written(namespace).text(name).encode()
    path = _directory() / hashlib.sha256(text).hexdigest() / f"{name}.py"  # a cell that is changed is another file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    return own.refer(f"{path}:{name}")


def _anchor(thing: Any) -> Any:
    """The function or class that says where an object is defined."""
    if isinstance(thing, type):
        return thing
    found = getattr(thing, "function", None) or getattr(thing, "update", None) or thing
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    if not isinstance(found, FunctionType):
        raise UserError(f"{_shown(thing)} is no function or class with a source: write it with def or class")
    return found


def _shown(thing: Any) -> str:
    return f"'{getattr(thing, 'name', None) or getattr(thing, '__name__', None) or type(thing).__name__}'"


def _namespace(anchor: Any) -> dict[str, Any]:
    if isinstance(anchor, FunctionType):
        return anchor.__globals__
    return vars(sys.modules[anchor.__module__]) if anchor.__module__ in sys.modules else {}


def _name(thing: Any, anchor: Any) -> str:
    """The name of an object at the top level of where it is defined."""
    names = [name for name, value in _namespace(anchor).items() if value is thing and name.isidentifier()]
    usual = anchor.__name__
    if names:
        return usual if usual in names else names[0]
    if usual == "<lambda>":
        raise UserError("a lambda cannot be made again in a worker: write a function with def, at the top level")
    if "<locals>" in anchor.__qualname__:
        raise UserError(f"{_shown(thing)} is defined inside a function, where a worker cannot find it: move it to the "
                        "top level")  # fmt: skip
    raise UserError(f"{_shown(thing)} has no name at the top level of {anchor.__module__}: give it one there")


def _filename(anchor: Any) -> str | None:
    """The file or cell of a function, or of a class by its first method."""
    if isinstance(anchor, FunctionType):
        return anchor.__code__.co_filename
    methods = [getattr(x, "fget", None) or getattr(x, "__func__", x) for x in vars(anchor).values()]
    own_code = [
        x.__code__.co_filename for x in methods if isinstance(x, FunctionType) and x.__module__ == anchor.__module__
    ]
    written = [filename for filename in own_code if filename != "<string>"]  # dataclasses write methods, too
    return written[0] if written else getattr(sys.modules.get(anchor.__module__), "__file__", None)


@cache
def _directory() -> Path:
    """For the source of cells, while this process lasts."""
    directory = Path(tempfile.mkdtemp(prefix="resharpen-cells-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory.resolve()


class _Written:
    """The source of a name of a cell and of all that it uses, in an order in which it can be executed."""

    def __init__(self, namespace: dict[str, Any]):
        self._namespace, self._statements, self._seen = namespace, list[str](), set[str]()

    def text(self, name: str) -> str:
        self._add(name, name)
        return "\n".join([*self._statements, ""])

    def _add(self, name: str, of: str) -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        self._statements.append(self._source(name, self._namespace[name], of))

    def _source(self, name: str, value: Any, of: str) -> str:
        if isinstance(value, ModuleType):
            return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
        if type(value) in CONSTANTS:
            return f"{name} = {self._constant(name, value, of)}"
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        there = sys.modules.get(str(module))
        if there is not None and vars(there) is not self._namespace and getattr(there, str(qualname), None) is value:
            return f"from {module} import {qualname} as {name}"
        return self._definition(name, value, of)

    def _constant(self, name: str, value: Any, of: str) -> str:
        try:
            if ast.literal_eval(repr(value)) == value:
                return repr(value)
        except (ValueError, SyntaxError, RecursionError):
            pass
        raise self._lost(name, value, of)

    def _definition(self, name: str, value: Any, of: str) -> str:
        """The statement of a cell that defines a name, after what it uses."""
        try:
            filename = _filename(_anchor(value))
        except UserError:
            raise self._lost(name, value, of) from None
        text = "".join(linecache.getlines(filename or ""))
        node = _defining(text, name)
        if node is None:
            raise UserError(f"the source of '{name}' is not known: define it in a file or in a notebook cell")
        used = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)} - set(vars(builtins)) - {name}
        for other in sorted(used & set(self._namespace)):
            self._add(other, name)
        first = min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", []))])
        return "\n".join(text.splitlines()[first - 1 : node.end_lineno])

    def _lost(self, name: str, value: Any, of: str) -> UserError:
        return UserError(
            f"'{of}' uses '{name}', a {type(value).__name__} that a worker cannot make again: compute it in the "
            "function, or put both into a file"
        )


def _defining(text: str, name: str) -> ast.stmt | None:
    """The last statement at the top level that binds a name."""
    found = None
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        named = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        if named or any(isinstance(x, ast.Name) and x.id == name for x in targets):
            found = node
    return found
