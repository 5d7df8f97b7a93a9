"""Kernels are compiled on first use, in seconds, into a private cache that heals itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from resharpen.engines.native import build, compiler

SIZES = {"V": 3, "D": 2, "K": 1, "DV": 2}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    directory = tmp_path / "cache"
    monkeypatch.setenv("RESHARPEN_CACHE", str(directory))
    return directory


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """A kernel of one line, where it is not the code that matters."""
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "minimal.cpp").write_text(
        'constexpr int kVersion = 1;\nextern "C" int sizes() { return RESHARPEN_V + RESHARPEN_K; }\n'
    )
    monkeypatch.setattr(build, "SOURCES", tmp_path / "stub")
    build._sources.cache_clear()
    yield tmp_path / "stub"
    build._sources.cache_clear()


def test_builds_in_seconds_and_then_not_at_all(cache):
    start = time.process_time(), sum(os.times()[2:4])
    path = build.kernel("minimal", {"V": 9, "D": 8, "K": 1, "DV": 8})
    assert time.process_time() - start[0] + sum(os.times()[2:4]) - start[1] < 10, "of processor time"
    built = path.stat().st_mtime_ns
    assert build.kernel("minimal", {"V": 9, "D": 8, "K": 1, "DV": 8}) == path
    assert path.stat().st_mtime_ns == built
    assert cache.stat().st_mode & 0o777 == 0o700
    assert list(cache.iterdir()) == [path]


@pytest.mark.usefixtures("stub")
def test_a_damaged_entry_is_built_again(cache):
    path = build.kernel("minimal", SIZES)
    good = path.read_bytes()
    for damage in (good[: len(good) // 2], good[:-1] + bytes([good[-1] ^ 1])):
        path.write_bytes(damage)
        assert build.kernel("minimal", SIZES).read_bytes()[:4] == b"\x7fELF"
        assert all(f"-{build._digest(entry.read_bytes())}@" in entry.name for entry in cache.iterdir())


@pytest.mark.usefixtures("stub")
def test_flags_sizes_and_instruction_set_make_another_entry(cache):
    paths = {build.kernel("minimal", SIZES), build.kernel("minimal", {**SIZES, "K": 2})}
    paths.add(build.kernel("minimal", SIZES, march="x86-64"))
    assert len(paths) == 3


def test_several_processes_may_start_at_once(cache, stub):
    code = (
        "import ctypes, pathlib; from resharpen.engines.native import build;"
        f"build.SOURCES = pathlib.Path({str(stub)!r});"
        f"print('loaded', ctypes.CDLL(str(build.kernel('minimal', {SIZES}))).sizes())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert out.strip() == "loaded 4", errors
    assert all(entry.suffix == ".so" for entry in cache.iterdir())


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)


def test_instruction_sets_by_the_names_that_a_compiler_has_for_them():
    zig = compiler.Compiler(("python", "-m", "ziglang", "c++"), "clang version 20")
    assert zig.flags("x86-64-v3")[-1] == "-mcpu=x86_64_v3"
    assert compiler.Compiler(("clang++",), "clang version 14").flags("x86-64-v3")[-1] == "-march=x86-64-v3"


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_it_says_so(cache, monkeypatch):
    with pytest.raises(compiler.NoCompiler, match=r"g\+\+.*resharpen\[compiler\]"):
        build.kernel("minimal", SIZES)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(compiler.NoCompiler, match="no-such-compiler"):
        build.kernel("minimal", SIZES)


@pytest.mark.usefixtures("stub")
def test_a_kernel_that_is_there_needs_no_compiler(cache, request):
    path = build.kernel("minimal", SIZES)
    request.getfixturevalue("no_compiler")
    assert build.kernel("minimal", SIZES) == path
    path.write_bytes(b"damaged")
    with pytest.raises(compiler.NoCompiler):
        build.kernel("minimal", SIZES)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'x.h:1: error: kernel refused' >&2; echo more >&2; exit 1", "x.h:1: error: kernel refused"),
        ("exit 1", "no output"),
        ("exit 0", "no output"),
    ],
)
def test_a_compiler_that_fails_is_one_line(cache, monkeypatch, tmp_path, script, said):
    path = tmp_path / "broken++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(compiler.BuildError) as error:
        build.kernel("minimal", SIZES)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert list(cache.iterdir()) == []


def test_a_compiler_that_is_no_program_is_one_line(cache, monkeypatch, tmp_path):
    path = tmp_path / "text++"
    path.write_text("not a program")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(compiler.BuildError, match="does not run"):
        build.kernel("minimal", SIZES)


def test_a_cache_that_is_not_private_or_not_there_is_refused(cache, monkeypatch):
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    with pytest.raises(compiler.BuildError, match="nobody else may have write access"):
        build.kernel("minimal", SIZES)
    monkeypatch.setenv("RESHARPEN_CACHE", "/dev/null/cache")
    with pytest.raises(compiler.BuildError, match="cannot keep kernels"):
        build.kernel("minimal", SIZES)


def test_no_torch_is_imported():
    modules = "minimal, resharpen.engines.native.transformer, resharpen.engines.native.retriever"
    code = f"import sys; import resharpen.engines.native.{modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
