"""Kernels are compiled on first use, for exactly the sizes asked for, and kept in the user's cache directory.

    NAME-SIZES-MARCH-SOURCES-CONTENT@PROCESSOR-COMPILER.so

SOURCES is a hash of all that was compiled, CONTENT of the file itself; behind the @ stands what decides how numbers are
rounded: the processor, where the instruction set is its own, and the compiler with its flags. So a changed source is a
new kernel, a damaged file is noticed and built again, and two processes that build at once each rename a complete file
into place. Where there is no compiler a kernel that another one built for this processor will do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import stat
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from resharpen.engines.native.compiler import BuildError, NoCompiler, call, find_compiler

SOURCES = Path(__file__).parent / "kernels"
SUFFIX = ".dll" if platform.system() == "Windows" else ".so"
DIGITS = 12


def kernel(name: str, sizes: Mapping[str, int], march: str = "native") -> Path:
    """The shared library of `kernels/<name>.cpp` with the given compile-time sizes, built if it is not there yet."""
    label = "-".join([name, *(f"{size.lower()}{n}" for size, n in sizes.items()), march])
    what, processor = f"{label}-{_sources()}", _digest(_cpu().encode() if march == "native" else b"")
    directory = cache_directory()
    try:
        compiler = find_compiler()
    except NoCompiler:
        if found := _kept(directory, what, f"{processor}-*"):
            return found
        raise
    command = (*compiler.command, *compiler.flags(march))
    how = f"{processor}-{_digest(f'{command} {compiler.version}'.encode())}"
    defines = tuple(f"-DRESHARPEN_{size}={n}" for size, n in sizes.items())
    return _kept(directory, what, how) or _build((*command, *defines), name, directory, what, how)


def _kept(directory: Path, what: str, how: str) -> Path | None:
    """A kernel in the cache that is what it was when it was built."""
    for path in sorted(directory.glob(f"{what}-*@{how}{SUFFIX}")):
        if path.name.startswith(f"{what}-{_digest(path.read_bytes())}@"):
            return path
        path.unlink(missing_ok=True)
    return None


def cache_directory() -> Path:
    """RESHARPEN_CACHE, or `resharpen` in the user's cache directory; what is loaded from it runs, so it is private."""
    from platformdirs import user_cache_path

    path = Path(os.environ.get("RESHARPEN_CACHE") or user_cache_path("resharpen", appauthor=False))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"cannot keep kernels in {path}: {error.strerror}; set RESHARPEN_CACHE to a directory of yours"
        ) from error
    if hasattr(os, "getuid"):
        status = path.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BuildError(f"{path}: kernels are loaded from here, so only you may be able to write to it")
    return path


def _build(command: tuple[str, ...], name: str, directory: Path, what: str, how: str) -> Path:
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
            library = Path(scratch) / f"kernel{SUFFIX}"
            result = call((*command, str(SOURCES / f"{name}.cpp"), "-o", str(library)))
            if result.returncode != 0 or not library.is_file():
                lines = [line for line in result.stderr.splitlines() if line.strip()]
                said = next((line for line in lines if "error" in line), lines[0] if lines else "it said nothing")
                raise BuildError(f"the compiler cannot build a kernel ({shlex.join(command)} {name}.cpp): {said}")
            path = directory / f"{what}-{_digest(library.read_bytes())}@{how}{SUFFIX}"
            library.replace(path)
            return path
    except OSError as error:
        raise BuildError(f"cannot keep kernels in {directory}: {error.strerror}; set RESHARPEN_CACHE") from error


@cache
def _sources() -> str:
    paths = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp"))
    return _digest(b"\0".join(path.read_bytes() for path in paths))


@cache
def _cpu() -> str:
    """What -march=native depends on: the processor's model and features."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in lines if line.split(":")[0].strip() in wanted)
    return f"{platform.machine()} {platform.processor()}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
