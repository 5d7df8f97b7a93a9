"""What the build name in a manifest says about results: whether bits are comparable, and known faults of kernels."""

from __future__ import annotations

import re


def machine_code(built: str) -> str:
    """The part of a kernel's name that determines its bits. The hash of the sources is left out: different sources may
    compile to the same code.

    >>> machine_code("minimal-v9-native-0123456789ab-ba9876543210@cafe-f00d")
    'minimal-v9-native-ba9876543210@cafe-f00d'
    """
    return re.sub(r"-[0-9a-f]{12}(?=-[0-9a-f]{12}@)", "", built)


def fault_of(built: str | None, train_length: int) -> str:
    """The known fault that a kernel had when it trained on inputs up to this length; empty if none is known.

    >>> fault_of("minimal-v9-native-0123456789ab-ba9876543210@cafe-f00d", 1)
    'inputs of one token trained W_Q and W_K on rounding noise'
    >>> fault_of("minimal.2-v9-native-0123456789ab-ba9876543210@cafe-f00d", 1)
    ''
    """
    minimal = re.match(r"minimal(?:\.(\d+))?(?![a-z])", built or "")
    if minimal and int(minimal[1] or 1) < 2 and train_length == 1:
        return "inputs of one token trained W_Q and W_K on rounding noise"
    return ""
