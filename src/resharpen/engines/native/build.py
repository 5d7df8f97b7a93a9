"""Kernels are compiled on first use, for exactly the sizes asked for, and kept in the user's cache directory.

A kernel's file is named after three hashes: of what went into it (sources, sizes, flags, processor), of the compiler,
and of its own content. So a changed source is a new kernel, a damaged file is noticed and built again, two processes
that build at once each rename a complete file into place, and what a compiler built is found when it is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from resharpen.errors import Failed

SOURCES = Path(__file__).parent / "kernels"
FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-w"),
    # No -ffast-math: NaN and infinity are how a diverged model is found.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    # A copy of a few vectors is to stay in registers, not to become a call of memcpy.
    "-fno-tree-loop-distribute-patterns",
)
COMPILERS = ("g++", "clang++", "c++")


class NoCompiler(Failed):
    """There is no C++ compiler on this machine, or none that works."""


class BuildError(Failed):
    """The compiler refused a kernel, or there is no place for what it makes."""


def kernel(name: str, sizes: Mapping[str, int], march: str = "native") -> Path:
    """The shared library of `kernels/<name>.cpp` with the given compile-time sizes, built if it is not there yet."""
    flags = [*FLAGS, f"-march={march}", *(f"-DRESHARPEN_{size}={n}" for size, n in sizes.items())]
    label = "-".join([name, *(f"{size.lower()}{n}" for size, n in sizes.items()), march])
    inputs = f"{label}-{_digest(_ingredients(flags))[:16]}"
    directory = cache_directory()
    try:
        compiler = find_compiler()
        built_by = f"{inputs}-{_digest(f'{compiler} {_compiler_version(compiler)}'.encode())[:8]}"
        found = _cached(directory, f"{built_by}-*.so")
        return found or _build([compiler, *flags], SOURCES / f"{name}.cpp", directory, built_by)
    except Failed:
        if found := _cached(directory, f"{inputs}-*.so"):
            return found
        raise


def why_not_here() -> str:
    """Why no kernel can be built on this machine; empty if one can, as far as a small try shows."""
    try:
        return _why_not(find_compiler(), cache_directory())
    except Failed as error:
        return str(error)


@cache
def _why_not(compiler: str, directory: Path) -> str:
    """A compiler that worked here leaves a mark, so that it is tried once."""
    try:
        inputs = _ingredients([compiler, _compiler_version(compiler), *FLAGS])
        mark = directory / f"works-{_digest(inputs)[:16]}"
        with _scratch(directory) as scratch:
            if not mark.exists():
                _compile([compiler, *FLAGS, "-march=native"], SOURCES / "training.h", Path(scratch) / "try.so", "-xc++")
                mark.touch()
    except Failed as error:
        return str(error)
    return ""


def _cached(directory: Path, pattern: str) -> Path | None:
    """The newest whole kernel of that name; what is damaged goes."""
    with _telling(directory):
        for path in sorted(directory.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True):
            if path.stem.endswith(f"-{_digest(path.read_bytes())[:16]}"):
                return path
            path.unlink(missing_ok=True)
    return None


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
    with _telling(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise BuildError(f"{path}: kernels are loaded from here, so only you may be able to write to it")
    return path


@contextlib.contextmanager
def _telling(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot keep kernels in {directory}: {error.strerror}") from error


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[str]:
    with _telling(directory), tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
        yield scratch


def _build(command: list[str], source: Path, directory: Path, inputs: str) -> Path:
    with _scratch(directory) as scratch:
        library = Path(scratch) / "kernel.so"
        _compile(command, source, library)
        path = directory / f"{inputs}-{_digest(library.read_bytes())[:16]}.so"
        library.replace(path)
    return path


def _compile(command: list[str], source: Path, library: Path, *options: str) -> None:
    try:
        result = subprocess.run(
            [*command, *options, str(source), "-o", str(library)], capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise NoCompiler(f"the C++ compiler {command[0]} cannot be run: {error.strerror}") from error
    if result.returncode != 0 or not library.exists():
        lines = result.stderr.splitlines() or ["it said nothing"]
        said = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise BuildError(f"the C++ compiler {command[0]} failed on {source.name}: {said.strip()[:300]}")


def _ingredients(flags: list[str]) -> bytes:
    sources = [path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.suffix in (".h", ".cpp")]
    return b"\0".join([*sources, "\0".join(flags).encode(), _cpu().encode()])


@cache
def _compiler_version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace").stdout
    except OSError as error:
        raise NoCompiler(f"the C++ compiler {compiler} cannot be run: {error.strerror}") from error


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
