"""The C++ compiler of this machine: g++, clang++, or zig, which `pip install resharpen[compiler]` installs."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from resharpen.errors import Failed

USUAL = ("g++", "clang++", "c++")
ZIG = "ziglang"
"""The Python package."""
FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-w"),
    # No -ffast-math: NaN and infinity are how a diverged model is found.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
GCC_FLAGS = ("-fno-tree-loop-distribute-patterns",)
"""Otherwise copies of a few vectors become calls of memcpy."""
SECONDS = 1800
"""Timeout of a compiler; the first build with zig takes minutes on a busy machine."""


class NoCompiler(Failed):
    """There is no C++ compiler on this machine."""


class BuildError(Failed):
    """A kernel cannot be compiled or cached."""


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str
    """Output of --version."""

    def flags(self, march: str) -> tuple[str, ...]:
        """Flags for this compiler; `march` is the name of an instruction set, or native for that of this machine."""
        known = FLAGS if "clang" in self.version else (*FLAGS, *GCC_FLAGS)
        if ZIG in self.command:  # zig reads x86-64-v3 as x86 minus features 64 and v3
            return *known, f"-mcpu={march.replace('-', '_')}"
        arm = platform.machine() in ("arm64", "aarch64")
        return *known, f"-mcpu={march}" if arm and march == "native" else f"-march={march}"

    def __str__(self) -> str:
        return self.version.partition("\n")[0] or shlex.join(self.command)


def find_compiler() -> Compiler:
    """The compiler in the environment variable CXX, or the first that is installed, or zig from pip."""
    asked = os.environ.get("CXX")
    for name in (asked,) if asked else USUAL:
        try:
            words = shlex.split(name)
        except ValueError as error:
            raise NoCompiler(f"CXX = {name}: {str(error).lower()}") from error
        if words and (found := shutil.which(words[0])):
            return _known((found, *words[1:]))
    if not asked and importlib.util.find_spec(ZIG):
        return _known((sys.executable, "-m", ZIG, "c++"))
    looked_for = f"CXX = {asked}" if asked else ", ".join(USUAL)
    raise NoCompiler(
        f"no C++ compiler found (looked for {looked_for}); install g++ or clang, or pip install 'resharpen[compiler]'"
    )


@cache
def _known(command: tuple[str, ...]) -> Compiler:
    return Compiler(command, call((*command, "--version")).stdout)


def call(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a compiler; BuildError if it does not start or does not end in time."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the compiler {shlex.join(command[:1])} has not ended after {SECONDS} seconds") from error
    except OSError as error:
        raise BuildError(f"the compiler {shlex.join(command[:1])} does not run: {error}") from error
