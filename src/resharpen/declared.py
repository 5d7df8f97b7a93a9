"""Checks of the declarations in user code: decorators, signatures, classes."""

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from resharpen.errors import UserError
from resharpen.plain import shown

OPTIONAL = ("logits_of_sets",)
"""Abstract methods that a class need not define."""


def refuse_bare(kind: str, first: Any) -> None:
    """UserError for a decorator without parentheses, which gets the function as its first option."""
    if callable(first):
        raise UserError(f"@rs.{kind} needs parentheses: @rs.{kind}(...) above def {getattr(first, '__name__', 'NAME')}")


def name_of(function: Any, kind: str, arguments: str) -> str:
    """The name of a declared function, which must accept these arguments."""
    expected = f"@rs.{kind} is for a function of ({arguments})"
    if isinstance(function, type) or not callable(function) or not hasattr(function, "__name__"):
        raise UserError(f"{expected}, not {shown(function)}")
    check_arguments(function, arguments, expected)
    return str(function.__name__).replace("_", "-")  # pyright: ignore[reportAttributeAccessIssue]


def check_arguments(function: Callable[..., Any], arguments: str, expected: str) -> None:
    """UserError unless a function can be called with these positional arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some C functions have no signature
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        name = getattr(function, "__name__", "it")
        raise UserError(f"{expected}, and this is {name}{signature}") from None


def check_values(owner: str, what: str, values: Any, kind: type, make: str) -> None:
    """UserError unless all declared values, by name, are of type `kind`."""
    if not isinstance(values, Mapping):
        raise UserError(f"{owner}: {what} = {shown(values)}: must be a dict of {make}")
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(f"{owner}: {what} has the name {shown(name)}: must be a Python identifier")
        if not isinstance(value, kind):
            raise UserError(f"{owner}: {name} = {shown(value)}: must be {make}")


def check_class(found: type, where: str) -> None:
    """UserError for a class that lacks a method of its base, or has one with other arguments."""
    for base in (base for base in found.__mro__[1:] if base.__module__.split(".")[0] == "resharpen"):
        for name, method in vars(base).items():
            function = getattr(method, "fget", method)
            mine = inspect.getattr_static(found, name)
            if name.startswith("_") or not isinstance(function, FunctionType):
                continue
            empty = "NotImplementedError" in function.__code__.co_names or hasattr(function, "__isabstractmethod__")
            if mine is method and empty and name not in OPTIONAL:
                raise UserError(f"{where} does not define {name}({', '.join(inspect.signature(function).parameters)})")
            if mine is not method and isinstance(method, FunctionType) and isinstance(mine, FunctionType):
                taken = inspect.signature(method).parameters.values()
                needed = ", ".join(x.name for x in taken if x.default is x.empty)
                check_arguments(mine, needed, f"{where}: {name} takes ({needed})")
