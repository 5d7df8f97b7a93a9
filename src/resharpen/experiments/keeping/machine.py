"""The machine and the versions of libraries."""

from __future__ import annotations

import datetime
import math
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from resharpen.engines.native.build import cpuinfo

LIBRARIES = ("resharpen", "torch", "numpy", "scipy", "polars", "safetensors", "matplotlib")


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES} | {"python": platform.python_version()}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> float:
    """Bytes of memory of this machine; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def cpu() -> str:
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Vector instruction sets that the kernels can use, in ascending order."""
    fields = cpuinfo()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return [name for name in ("asimd", "avx", "avx2", "fma", "bmi2", "avx512f", "avx512vl") if name in flags]


def git_revision() -> str | None:
    """The git revision of this package if it is a checkout; `+` marks uncommitted changes."""

    def git(*args: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # an installed copy may lie inside another checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def provenance() -> dict[str, Any]:
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_revision(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "cores": cores(),
    }
