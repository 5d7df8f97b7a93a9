"""Exceptions that the command line turns into a one-line message."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal interprets; names in files from others may have them."""


class UserError(ValueError):
    """Bad input, exit code 2. The message says what was wrong and what is allowed."""


class Failed(RuntimeError):
    """A failure of the machine, such as a full disk or a killed worker, exit code 1."""


def unknown(what: str, name: str, allowed: Iterable[str]) -> UserError:
    """An error that suggests the nearest allowed name.

    >>> print(unknown("placement", "pery", ["pre", "peri"]))
    unknown placement 'pery': did you mean 'peri'? (allowed: peri, pre)
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {what} '{name}': {hint}(allowed: {', '.join(names)})")
