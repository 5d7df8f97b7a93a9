"""Kernels are compiled on first use, for exactly the sizes asked for, and kept in the user's cache directory.

A kernel's file is named after two hashes: of everything that went into it (sources, sizes, flags, compiler, processor)
and of its own content. So a changed source is a new kernel, a damaged file is noticed and built again, and two
processes that build at once each rename a complete file into place.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "kernels"
FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-w"),
    # No -ffast-math: NaN and infinity are how a diverged model is found.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    # A copy of a few vectors is to stay in registers, not to become a call of memcpy.
    "-fno-tree-loop-distribute-patterns",
)
COMPILERS = ("g++", "clang++", "c++")


class NoCompiler(RuntimeError):
    """There is no C++ compiler on this machine."""


class BuildError(RuntimeError):
    """The compiler refused a kernel."""


def kernel(name: str, sizes: Mapping[str, int], march: str = "native") -> Path:
    """The shared library of `kernels/<name>.cpp` with the given compile-time sizes, built if it is not there yet."""
    command = [find_compiler(), *FLAGS, f"-march={march}", *(f"-DRESHARPEN_{size}={n}" for size, n in sizes.items())]
    label = "-".join([name, *(f"{size.lower()}{n}" for size, n in sizes.items()), march])
    inputs = f"{label}-{_digest(_ingredients(command))[:16]}"
    directory = cache_directory()
    for path in directory.glob(f"{inputs}-*.so"):
        if path.stem.endswith(f"-{_digest(path.read_bytes())[:16]}"):
            return path
        path.unlink(missing_ok=True)
    return _build(command, SOURCES / f"{name}.cpp", directory, inputs)


def find_compiler() -> str:
    """The C++ compiler in the environment's CXX, or the first of the usual ones."""
    asked = os.environ.get("CXX")
    candidates = (asked,) if asked else COMPILERS
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    raise NoCompiler(
        f"no C++ compiler found (looked for {', '.join(candidates)}); install g++ or clang, or set CXX to one"
    )


def cache_directory() -> Path:
    """RESHARPEN_CACHE, or `resharpen` in the user's cache directory; what is loaded from it runs, so it is private."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("RESHARPEN_CACHE") or Path(base) / "resharpen")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        status = path.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path}: kernels are loaded from here, so only you may be able to write to it")
    return path


def _build(command: list[str], source: Path, directory: Path, inputs: str) -> Path:
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
        library = Path(scratch) / "kernel.so"
        result = subprocess.run(
            [*command, str(source), "-o", str(library)], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise BuildError(f"{' '.join(command)} {source.name} failed:\n{result.stderr[-4000:]}")
        path = directory / f"{inputs}-{_digest(library.read_bytes())[:16]}.so"
        library.replace(path)
    return path


def _ingredients(command: list[str]) -> bytes:
    sources = [path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.suffix in (".h", ".cpp")]
    return b"\0".join([*sources, "\0".join(command).encode(), _compiler_version(command[0]).encode(), _cpu().encode()])


@cache
def _compiler_version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


@cache
def _cpu() -> str:
    """What -march=native depends on: the processor's model and features."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return f"{platform.machine()} {platform.processor()}"
    lines = info.read_text().split("\n\n")[0].splitlines()
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines if line.split(":")[0].strip() in wanted)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
