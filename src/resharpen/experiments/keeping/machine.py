"""What machine and what versions this is."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = ("resharpen", "torch", "numpy", "scipy", "polars", "safetensors", "matplotlib")


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES} | {"python": platform.python_version()}


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu() -> str:
    fields = _cpuinfo()
    return fields.get("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """The vector instruction sets that matter here, in ascending order."""
    fields = _cpuinfo()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return [name for name in ("asimd", "avx", "avx2", "fma", "bmi2", "avx512f", "avx512vl") if name in flags]


def git_revision() -> str | None:
    """The revision of the source that runs, where it is a checkout; `+` marks uncommitted changes."""
    here = Path(__file__).parent
    try:
        git = ["git", "-C", str(here)]
        # An installed copy may lie inside somebody else's checkout: ask whether this very file is tracked.
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=5, check=True)
        revision = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return revision.stdout.strip() + ("+" if changed.stdout.strip() else "")


def provenance() -> dict[str, Any]:
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_revision(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "cores": cores(),
    }


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
