"""What the name of a build, which every manifest has, says about results: whether bits can be compared, and whether the
kernel had a fault that is known by now."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


def machine_code(built: str) -> str:
    """What of a kernel's name decides its bits: not SOURCES, of which others may compile to the same CONTENT.

    >>> machine_code("minimal-v9-native-0123456789ab-ba9876543210@cafe-f00d")
    'minimal-v9-native-ba9876543210@cafe-f00d'
    """
    return re.sub(r"-[0-9a-f]{12}(?=-[0-9a-f]{12}@)", "", built)


@dataclass(frozen=True)
class Fault:
    kernel: str
    mended_in: int
    """The first version without it."""
    touches: Callable[[int], bool]
    """Whether models trained on inputs up to this length had it."""
    what: str


FAULTS = (
    Fault(
        "minimal",
        mended_in=2,
        touches=lambda train_length: train_length == 1,
        what="inputs of one token trained W_Q and W_K on rounding noise",
    ),
)


def fault_of(built: str | None, train_length: int) -> str:
    """What was wrong with the kernel that made a shard, from its name; empty if nothing is known.

    >>> fault_of("minimal-v9-native-0123456789ab-ba9876543210@cafe-f00d", 1)
    'inputs of one token trained W_Q and W_K on rounding noise'
    >>> fault_of("minimal.2-v9-native-0123456789ab-ba9876543210@cafe-f00d", 1)
    ''
    """
    name, version = re.match(r"([a-z]*)(?:\.(\d+))?", built or "").groups(default="1")  # pyright: ignore[reportOptionalMemberAccess]
    for fault in FAULTS:
        if name == fault.kernel and int(version) < fault.mended_in and fault.touches(train_length):
            return fault.what
    return ""
