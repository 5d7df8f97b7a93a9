"""Compilers that are missing or broken, caches that are full or not writable: one line, and torch takes over."""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import pytest
from helpers import make_ensemble, make_problem

from resharpen.cli import main
from resharpen.engines.choose import make_engine, why_not_native
from resharpen.engines.native import build, compiler, minimal

TOML = """
models = 1
steps = 3
batch = 4
checkpoints = 1
variants = ["pre"]
task = { v = 3, train_lengths = [1] }
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RESHARPEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-O0"))
    minimal.kernel.cache_clear()
    yield tmp_path / "cache"
    minimal.kernel.cache_clear()


def script(tmp_path, text: str, mode: int = 0o755):
    path = tmp_path / "broken++"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


BROKEN = {
    "missing": None,
    "fails": "#!/bin/sh\necho 'x.cpp:1: error: refused' >&2; exit 1\n",
    "says nothing": "#!/bin/sh\nexit 3\n",
    "makes nothing": "#!/bin/sh\nexit 0\n",
    "is no program": "\x00\x01\x02",
    "is killed": "#!/bin/sh\nkill -9 $$\n",
    "speaks no UTF-8": "#!/bin/sh\nprintf '\\377\\376' >&2; exit 1\n",
}


def test_words_that_are_no_command(cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "g++ '")
    main(["doctor"])
    said = capsys.readouterr().out
    assert "CXX = g++ ': no closing quotation" in said
    (tmp_path / "spec.toml").write_text(TOML)
    with pytest.raises(SystemExit, match="2"):
        main(["run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "run"), "--engine", "native"])
    assert "CXX = g++ ': no closing quotation" in capsys.readouterr().err


def test_what_killed_builds_left_is_removed(cache, tmp_path, monkeypatch):
    """A compiler that waits, its process killed; the next build removes it once no compiler can still be at work."""
    monkeypatch.setenv("CXX", script(tmp_path, "#!/bin/sh\ncase $1 in --version) echo x;; *) exec sleep 60;; esac\n"))
    code = "from resharpen.engines.native.build import why_not_here; why_not_here('native')"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not (left := list(cache.glob("build-*"))) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    monkeypatch.setenv("CXX", script(tmp_path, BROKEN["says nothing"]))
    build._why_not.cache_clear()
    assert build.why_not_here("native")
    assert list(cache.glob("build-*")) == left
    then = time.time() - 3 * compiler.SECONDS
    os.utime(left[0], (then, then))
    build._why_not.cache_clear()
    assert build.why_not_here("native")
    assert not list(cache.glob("build-*"))


@pytest.mark.parametrize("how", BROKEN)
def test_torch_takes_over_from_a_broken_compiler(how, cache, tmp_path, monkeypatch, capsys):
    text = BROKEN[how]
    monkeypatch.setenv("CXX", "no-such-compiler" if text is None else script(tmp_path, text))
    (tmp_path / "spec.toml").write_text(TOML)
    out, spec = str(tmp_path / "run"), str(tmp_path / "spec.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as outside of tests
        main(["run", spec, "--out", out, "--dry-run"])
    said = capsys.readouterr()
    assert said.err.startswith("resharpen: variant 'pre' runs on the torch engine")
    assert said.err.count("\n") == 1
    assert "(torch)" in said.out
    with pytest.raises(SystemExit, match="2"):
        main(["run", spec, "--out", out, "--engine", "native"])
    assert capsys.readouterr().err.startswith("resharpen: the native engine cannot run variant 'pre': ")
    assert not os.path.exists(out)


def test_a_kernel_that_was_built_is_found_without_its_compiler(cache, tmp_path, monkeypatch, capsys):
    (tmp_path / "spec.toml").write_text(TOML)
    out = str(tmp_path / "run")
    main(["run", str(tmp_path / "spec.toml"), "--out", out, "--workers", "1"])
    shutil.rmtree(tmp_path / "run" / "shards")
    for gone in ("no-such-compiler", script(tmp_path, BROKEN["fails"])):
        monkeypatch.setenv("CXX", gone)
        minimal.kernel.cache_clear()
        main(["run", out, "--workers", "1"])
        assert "(native engine)" in capsys.readouterr().out
        shutil.rmtree(tmp_path / "run" / "shards")


@pytest.mark.parametrize("what", ["a file", "below a file", "others may write"])
def test_a_cache_that_cannot_be_used_is_one_line(what, cache, tmp_path, monkeypatch):
    if what == "others may write":
        cache.mkdir(mode=0o777)
        cache.chmod(0o777)
    else:
        cache.write_text("")
        monkeypatch.setenv("RESHARPEN_CACHE", str(cache if what == "a file" else cache / "below"))
    problem = make_problem("pre", v=3, s=1)
    reason = why_not_native(problem)
    assert str(cache) in reason
    assert "\n" not in reason
    with pytest.raises(compiler.BuildError, match="cache"):
        make_engine("native", problem, make_ensemble(problem))
