"""Signals mean the same at every moment, and output may go nowhere: no traceback, a code that says what happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resharpen.experiments.keeping.shard import LEASE
from resharpen.experiments.keeping.store import Run

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
LONG = """
models = 32
steps = 200000000
batch = 8
checkpoints = 2000
variants = ["pre", "peri"]
engine = "native"
task = { v = 4, train_lengths = [1, 2] }
"""


def start(*args: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "resharpen", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_until_it_handles_signals(process: subprocess.Popen) -> None:
    """Before that it is Python that starts; TERM is handled by nobody but us."""
    while process.poll() is None:
        caught = next(
            line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("SigCgt")
        )
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def wait_for_files(directory: Path, name: str, number: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while len(list(directory.rglob(name))) < number and time.monotonic() < deadline:
        time.sleep(0.05)


def assert_ended_by(process: subprocess.Popen, number: int) -> None:
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number, error
    assert "Traceback" not in error
    assert "Exception" not in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seed", range(2))
def test_a_signal_while_it_imports_or_computes(number, seed, finished):
    rng = random.Random(f"{seed} {number}")
    commands = [["theory", "--v", "8"], ["list"], ["results", str(finished.directory)], ["run", "fig1", "--dry-run"]]
    process = start(*commands[seed * 2 + (number == signal.SIGTERM)])
    wait_until_it_handles_signals(process)
    time.sleep(rng.uniform(0, 0.15))
    process.send_signal(number)
    assert_ended_by(process, number)


def test_signals_in_training(tmp_path):
    """TERM to the whole group, as a batch system sends it: USR1 saves and goes on, TERM saves and ends."""
    (tmp_path / "long.toml").write_text(LONG)
    out = tmp_path / "it's"
    process = start("run", str(tmp_path / "long.toml"), "--out", str(out), "--workers", "2", start_new_session=True)
    with process:
        next(line for line in process.stdout if "so far:" in line)
        assert not list(out.rglob("state.safetensors"))  # the first would be saved after ten seconds
        wait_for_files(out, LEASE, 2, seconds=60)  # on a busy machine the second worker starts seconds later
        deadline = time.monotonic() + 8
        # a request made before a worker has built its models finds nothing to save, so it is repeated
        while len(list(out.rglob("state.safetensors"))) < 2 and time.monotonic() < deadline:
            os.killpg(process.pid, signal.SIGUSR1)
            wait_for_files(out, "state.safetensors", 2, seconds=1)
        assert len(list(out.rglob("state.safetensors"))) == 2
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        said, error = process.communicate(timeout=60)
    assert process.returncode == 143, error
    assert error == "stopping after the current chunk; press Ctrl-C again to end immediately\n"
    assert f"resharpen run '{tmp_path}/it'\"'\"'s'" in said.replace("\n", "")
    assert len(Run(out).done()) == 0


def test_ctrl_c_while_workers_start(tmp_path):
    (tmp_path / "long.toml").write_text(LONG)
    args = ["run", str(tmp_path / "long.toml"), "--out", str(tmp_path / "run"), "--workers", "2"]
    process = start(*args, start_new_session=True)
    while process.poll() is None and not (tmp_path / "run" / "run.json").exists():
        time.sleep(0.002)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    assert_ended_by(process, signal.SIGINT)


def run_to(finished, command: str, **environment: str) -> subprocess.CompletedProcess:
    """A shell line in which RUN is a finished run and `resharpen` is this one."""
    line = command.replace("RUN", str(finished.directory)).replace("resharpen", f"{sys.executable} -m resharpen")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("command", "codes", "environment"),
    [
        ("resharpen results RUN --csv | head -1", (0, 141), {}),
        ("resharpen --help | true", (0, 141), {}),
        ("resharpen status RUN >&-", (0,), {}),
        ("resharpen status nowhere 2>&-", (2,), {}),
        ("resharpen results RUN --csv > /dev/full", (1,), {}),
        ("resharpen results RUN", (0,), {"PYTHONIOENCODING": "ascii", "LANG": "C"}),
        ("resharpen status 'nowhere-\u2713'", (2,), {"PYTHONIOENCODING": "ascii", "LANG": "C"}),
    ],
)
def test_output_that_goes_nowhere(finished, command, codes, environment):
    done = run_to(finished, command, **environment)
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_no_markup_is_left_in_what_is_printed():
    """The console takes text as it is; a style that is written into a text would be shown."""
    import resharpen

    sources = [path for path in Path(resharpen.__file__).parent.rglob("*.py") if "[/]" in path.read_text()]
    assert sources == []
