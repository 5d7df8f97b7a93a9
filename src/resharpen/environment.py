"""Environment variables and limits with which libraries would crash: overridden or refused before the imports."""

from __future__ import annotations

import os
import warnings

from resharpen.errors import Failed, UserError

THREADS = "POLARS_MAX_THREADS"
LEAST_MEMORY = 2 * 2**30
"""Bytes of address space that the libraries need; with less they crash in various ways."""


def settle() -> None:
    """Override settings in our process: figures need no window, and warnings (PYTHONWARNINGS=error) are not errors."""
    os.environ["MPLBACKEND"] = "agg"
    kept = [each for each in warnings.filters if each[0] != "error"]
    warnings.resetwarnings()
    warnings.filters.extend(kept)  # pyright: ignore[reportAttributeAccessIssue]


def check() -> None:
    """UserError or Failed for settings that cannot be overridden."""
    threads = os.environ.get(THREADS, "")
    if threads.isdecimal() and int(threads) == 0:
        raise UserError(f"{THREADS} = {threads}: must be at least 1")
    try:
        import resource
    except ImportError:  # Windows
        return
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < LEAST_MEMORY:
        needed = f"at least {LEAST_MEMORY >> 20:,} MiB are needed"
        raise Failed(f"out of memory: the limit of this process (ulimit -v) is {allowed >> 20:,} MiB, and {needed}")
