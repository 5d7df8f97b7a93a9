"""The exceptions that the command line turns into a one-line message: bad input, and a machine that fails."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal takes for commands; names in files that others wrote may have them."""


class UserError(ValueError):
    """Bad input, exit code 2. The text says what was wrong and what is allowed."""


class Failed(RuntimeError):
    """The input was right and the machine could not: a full disk, a killed worker. Exit code 1."""


def unknown(what: str, name: str, allowed: Iterable[str]) -> UserError:
    """An error that names the nearest allowed name.

    >>> print(unknown("placement", "pery", ["pre", "peri"]))
    unknown placement 'pery': did you mean 'peri'? (allowed: peri, pre)
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {what} '{name}': {hint}(allowed: {', '.join(names)})")
