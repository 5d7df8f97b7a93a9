"""Compile every kernel with warnings as errors, for every instruction set that has code of its own.

Users' builds are silent instead: a warning that only a newer compiler knows is no reason not to run.
"""

from __future__ import annotations

import platform
import subprocess
import sys

from resharpen.engines.native.build import SOURCES
from resharpen.engines.native.compiler import find_compiler

SIZES = {
    "minimal": {"V": 5, "D": 6, "K": 2, "DV": 4},
    "retriever": {"H": 16, "C": 10},
    "transformer": {"LAYERS": 1, "D": 36, "HEADS": 1, "MLP": 50, "V": 6},
}
INSTRUCTION_SETS = ("x86-64", "x86-64-v3", "x86-64-v4") if platform.machine() == "x86_64" else ("native",)


def main() -> int:
    compiler = find_compiler()
    strict = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    jobs = [
        subprocess.Popen(
            [
                *compiler.command,
                *(flag for flag in compiler.flags(march) if flag != "-w"),
                *strict,
                *(f"-DRESHARPEN_{name}={n}" for name, n in SIZES[kernel].items()),
                str(SOURCES / f"{kernel}.cpp"),
            ]
        )
        for march in INSTRUCTION_SETS
        for kernel in SIZES
    ]
    return max(job.wait() for job in jobs)


if __name__ == "__main__":
    sys.exit(main())
