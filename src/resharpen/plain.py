"""Dataclasses from plain data, such as a table of a TOML file, with keys and types checked."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from resharpen.errors import UserError, unknown

T = TypeVar("T")
Data = Mapping[str, Any]

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}


def build(kind: type[T], data: Data, where: str) -> T:
    """The dataclass with the given fields; `where` is the name of the table in error messages."""
    known_fields = {field.name: field for field in fields(kind)}  # pyright: ignore[reportArgumentType]
    known(f"key in {where}", data, known_fields)
    for name, field in known_fields.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{where} needs '{name}'")
    types = get_type_hints(kind)
    return kind(**{name: typed(name, value, types[name]) for name, value in data.items()})


def known(what: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    allowed = list(allowed)
    for name in given:
        if name not in allowed:
            raise unknown(what, str(name), allowed)


def typed(name: str, value: Any, kind: type, words: str | None = None) -> Any:
    """A value, checked to be of the type. An int is accepted as a float; a bool is not a number."""
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{name} = {shown(value)}: must be {words or _WORDS.get(kind, kind)}")
    try:
        return float(value) if kind is float else value
    except OverflowError:
        raise UserError(f"{name} = {shown(value)}: too large") from None


def shown(value: Any) -> str:
    """A value, shortened for an error message.

    >>> shown("x"), shown([0] * 1000)
    ("'x'", '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ...')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits, deeply nested lists
        return "..."
    return text if len(text) <= 200 else f"{text[:39]} ..."
