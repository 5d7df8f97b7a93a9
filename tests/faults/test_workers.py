"""Workers end with their driver, whenever it dies, and what they leave is gone on with."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")

TOML = """
models = 32
steps = 200000000
batch = 8
checkpoints = 2000
variants = ["pre", "peri"]
engine = "native"

[task]
v = 4
train_lengths = [1, 2]
"""


@pytest.fixture
def command(tmp_path) -> list[str]:
    (tmp_path / "long.toml").write_text(TOML)
    out = str(tmp_path / "run")
    return [sys.executable, "-m", "resharpen", "run", str(tmp_path / "long.toml"), "--out", out, "--workers", "2"]


def children(pid: int) -> list[int]:
    try:
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def workers_of(process) -> list[int]:
    """Waits until both workers are there, as early as can be seen."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        found = [pid for pid in children(process.pid) if b"spawn_main" in command_line(pid)]
        if len(found) == 2:
            return found
        time.sleep(0.002)
    raise AssertionError("no workers")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(ended, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not ended() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ended()


@pytest.mark.parametrize("moment", [0.0, 0.3, "working"])
def test_workers_end_with_a_driver_that_is_killed(command, tmp_path, moment):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with process:
        workers = workers_of(process)
        if moment == "working":
            next(line for line in process.stdout if "so far:" in line)
        else:
            time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_running, workers)))


def test_workers_end_though_nobody_reads_what_they_say(command):
    """The driver is stopped, its pipe fills up, then it is killed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with process:
        workers = workers_of(process)
        next(line for line in process.stdout if "so far:" in line)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_running, workers)))


def test_a_killed_worker_is_reported_and_nothing_is_left_running(command, tmp_path):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        workers = workers_of(process)
        next(line for line in process.stdout if "so far:" in line)
        os.kill(workers[0], signal.SIGKILL)
        _, error = process.communicate(timeout=20)  # the dead one holds nothing that the others wait for
    assert process.returncode == 1
    assert re.search(r"a worker ended with exit code -9 at sct-v4-s\d/\w+/\d{5}-\d{5}; finished work is kept\. ", error)
    assert f"Continue with: resharpen run {tmp_path / 'run'}" in error
    assert error.count("\n") == 1
    wait_until(lambda: not any(map(is_running, workers)))


HOLDS = """
import os, re
import resharpen as rs

calls = []

@rs.norm()
def holds(x, p):
    calls.append(1)
    if len(calls) > 300:
        open(f"{__file__}.{os.getpid()}", "w").close()
        re.match(r"(a+)+$", "a" * 60 + "b")
    return x / (1 + x * x)
"""


def test_workers_end_with_a_driver_that_is_killed_while_user_code_stays_in_c(tmp_path):
    """No thread of Python runs there that could notice."""
    (tmp_path / "holds.py").write_text(HOLDS)
    text = TOML.replace('["pre", "peri"]', '["pre+holds.py:holds"]').replace("native", "torch")
    # few steps: nothing is compiled for them, which would take minutes
    (tmp_path / "long.toml").write_text(text.replace("steps = 200000000", "steps = 2000"))
    command = [sys.executable, "-m", "resharpen", "run", str(tmp_path / "long.toml"), "--out", str(tmp_path / "run")]
    with subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            workers = workers_of(process)
            wait_until(lambda: all((tmp_path / f"holds.py.{pid}").exists() for pid in workers))
        finally:
            process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_running, workers)), 10)
