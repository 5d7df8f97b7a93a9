"""Kernels are compiled on first use, for exactly the sizes needed, and cached in the user's cache directory.

    NAME.VERSION-SIZES-MARCH-SOURCES-CONTENT@PROCESSOR-COMPILER.so

SOURCES is a hash of all sources, CONTENT of the file itself. What follows the @ determines rounding: the processor, if
march = native, and the compiler with its flags. So a changed source gives a new kernel, a damaged file is detected and
rebuilt, and processes that build at the same time each rename a complete file into place. Without a compiler, a cached
kernel that any compiler built for this processor is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from resharpen.engines.native.compiler import SECONDS, BuildError, Compiler, call, find_compiler
from resharpen.errors import Failed

SOURCES = Path(__file__).parent / "kernels"
SUFFIX = ".dll" if platform.system() == "Windows" else ".so"
SCRATCH = "build-"
DIGITS = 12
VERSION = re.compile(r"constexpr int kVersion = (\d+);")
VECTOR = re.compile(r"(sse|ssse|avx|fma|f16c|bmi|abm|popcnt|amx|asimd|sve|fp)")


def kernel(name: str, sizes: Mapping[str, int], march: str = "native") -> Path:
    """The shared library of `kernels/<name>.cpp` for the given compile-time sizes, built if it is not cached."""
    label = "-".join([f"{name}.{version(name)}", *(f"{size.lower()}{n}" for size, n in sizes.items()), march])
    what, directory = f"{label}-{_sources()}", cache_directory()
    try:
        compiler = find_compiler()
        if found := _kept(directory, what, how := rounding(march, compiler)):
            return found
        defines = tuple(f"-DRESHARPEN_{size}={n}" for size, n in sizes.items())
        command = (*compiler.command, *compiler.flags(march), *defines)
        return _build(command, SOURCES / f"{name}.cpp", directory, what, how)
    except Failed:
        if found := _kept(directory, what, f"{_processor(march)}-*"):
            return found
        raise


def version(name: str) -> int:
    """Version of a kernel, from its source."""
    found = VERSION.search((SOURCES / f"{name}.cpp").read_text(encoding="utf-8"))
    if found is None:
        raise BuildError(f"{name}.cpp has no kVersion")
    return int(found[1])


def rounding(march: str, compiler: Compiler) -> str:
    """What determines rounding of kernels: the PROCESSOR-COMPILER of their file names."""
    return f"{_processor(march)}-{_digest(f'{compiler.flags(march)} {compiler}'.encode())}"


def why_not_here(march: str) -> str:
    """Why no kernel can be built on this machine; empty if a small trial compiles."""
    try:
        return _why_not(find_compiler(), cache_directory(), march)
    except Failed as error:
        return str(error)


@cache
def _why_not(compiler: Compiler, directory: Path, march: str) -> str:
    """A successful trial leaves a mark in the cache, so that it is done once."""
    mark = directory / f"works@{rounding(march, compiler)}"
    try:
        with _scratch(directory) as scratch:
            if not mark.exists():
                _compile((*compiler.command, *compiler.flags(march), "-xc++"), SOURCES / "training.h", scratch)
                mark.touch()
    except Failed as error:
        return str(error)
    return ""


def _kept(directory: Path, what: str, how: str) -> Path | None:
    """An undamaged kernel in the cache; damaged ones are removed."""
    with _telling(directory):
        for path in sorted(directory.glob(f"{what}-*@{how}{SUFFIX}")):
            if path.name.startswith(f"{what}-{_digest(path.read_bytes())}@"):
                return path
            path.unlink(missing_ok=True)
    return None


def cache_directory() -> Path:
    """RESHARPEN_CACHE, or `resharpen` in the user's cache directory; private, because code is loaded from it."""
    from platformdirs import user_cache_path

    try:
        path = Path(os.environ.get("RESHARPEN_CACHE") or user_cache_path("resharpen", appauthor=False))
    except RuntimeError as error:  # an account without a home directory
        raise BuildError("there is no home directory to keep kernels in; set RESHARPEN_CACHE") from error
    with _telling(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise BuildError(f"{path}: kernels are loaded from here, so nobody else may have write access to it")
    return path


@contextlib.contextmanager
def _telling(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot keep kernels in {directory}: {error.strerror}; set RESHARPEN_CACHE") from error


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """A directory to compile in. What killed processes left is removed once it is older than a compiler may take."""
    with _telling(directory):
        for left in directory.glob(f"{SCRATCH}*"):
            with contextlib.suppress(OSError):  # another process removes it
                if time.time() - left.stat().st_mtime > 2 * SECONDS:
                    shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=directory, prefix=SCRATCH) as scratch:
            yield Path(scratch)


def _build(command: tuple[str, ...], source: Path, directory: Path, what: str, how: str) -> Path:
    with _scratch(directory) as scratch:
        library = _compile(command, source, scratch)
        path = directory / f"{what}-{_digest(library.read_bytes())}@{how}{SUFFIX}"
        library.replace(path)
    return path


def _compile(command: tuple[str, ...], source: Path, directory: Path) -> Path:
    library = directory / f"kernel{SUFFIX}"
    result = call((*command, str(source), "-o", str(library)))
    if result.returncode != 0 or not library.is_file():
        lines = result.stderr.strip().splitlines() or ["no output"]
        said = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise BuildError(f"the compiler cannot build a kernel ({command[0]} ... {source.name}): {said.strip()[:300]}")
    return library


@cache
def _sources() -> str:
    paths = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp"))
    return _digest(b"\0".join(path.read_bytes() for path in paths))


def _processor(march: str) -> str:
    return _digest(_cpu().encode() if march == "native" else b"")


@cache
def _cpu() -> str:
    """Model and features of the processor, which -march=native depends on."""
    if not (fields := cpuinfo()):
        return f"{platform.machine()} {platform.processor()}"
    # only features that compilers use; the others depend on the version of the kernel
    features = (fields.get("flags") or fields.get("Features") or "").split()
    kept = [fields.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name", "CPU part")]
    return " ".join([*kept, *sorted(name for name in features if VECTOR.match(name))])


def cpuinfo() -> dict[str, str]:
    """What Linux says of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
