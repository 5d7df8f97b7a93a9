"""Exceptions that the command line turns into a one-line message."""

import difflib
import errno
import re
from collections.abc import Iterable, Mapping

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would interpret; files from others may contain them."""


MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Codes of an OSError that mean a failure of the machine, such as a full disk. Others, such as a missing directory, are
invalid input."""


class UserError(ValueError):
    """Invalid input, exit code 2. The message says what was wrong and what is allowed."""


class Failed(RuntimeError):
    """A failure of the machine, such as a full disk or a killed worker, exit code 1."""


def unknown(what: str, name: str, allowed: Iterable[str]) -> UserError:
    """An error that suggests the most similar allowed name.

    >>> print(unknown("placement", "pery", ["pre", "peri"]))
    unknown placement 'pery': did you mean 'peri'? (allowed: peri, pre)
    """
    names = sorted(allowed)
    return UserError(f"unknown {what} '{name}': {suggestion(name, names)}(allowed: {', '.join(names)})")


def suggestion(name: str, allowed: Mapping[str, str] | Iterable[str]) -> str:
    """`did you mean 'NAME'? `: the most similar name, or else up to three that begin with it; empty if there is none.
    A mapping gives the text to show for a name.

    >>> suggestion("fig1", ["fig1-laptop", "fig1-overnight", "fig2-overnight"])
    "did you mean 'fig1-laptop' or 'fig1-overnight'? "
    """
    shown = allowed if isinstance(allowed, Mapping) else {other: other for other in allowed}
    near = difflib.get_close_matches(name, shown, n=1) or [other for other in shown if name and other.startswith(name)]
    return f"did you mean {' or '.join(repr(shown[other]) for other in near[:3])}? " if near else ""
