"""kill -9 at random moments, of the driver and of workers, through the command line; then the same bits as without."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from runs import assert_same_results

from resharpen.cli import main
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running import training

pytestmark = [
    pytest.mark.xdist_group("kills"),  # one whole run to compare with
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for workers in /proc"),
]

TOML = """
models = 4
steps = {steps}
batch = 16
checkpoints = 6
variants = ["pre", "peri"]
engine = "native"
task = {{ v = 4, train_lengths = [1, 2] }}
"""
# Workers import the script that began the run: they save as often as it does. Drawing is not what is tried here.
SCRIPT = """
import sys
from resharpen.experiments.running import training
training.SAVE_EVERY, training.CHUNK_SECONDS = 0.0, 0.01
if __name__ == "__main__":
    from resharpen import cli, commands
    import resharpen.commands.training
    commands.training.save_figures = lambda *_: None
    cli.main(sys.argv[1:])
"""
PER_SECOND = 100_000
"""Steps, about, of a shard: so long that most kills fall into training."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    place = tmp_path_factory.mktemp("kills")
    (place / "spec.toml").write_text(TOML.format(steps=PER_SECOND // 2))
    (place / "script.py").write_text(SCRIPT)
    subprocess.run(command(place, place / "whole", 1), check=True, stdout=subprocess.DEVNULL)
    return Run(place / "whole")


def command(place: Path, out: Path, workers: int) -> list[str]:
    spec = str(place / "spec.toml")
    return [sys.executable, str(place / "script.py"), "run", spec, "--out", str(out), "--workers", str(workers)]


def workers_of(pid: int) -> list[int]:
    try:
        found = [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [x for x in found if b"spawn_main" in Path(f"/proc/{x}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def trial(whole: Run, out: Path, seed: int) -> Counter:
    """A run that is killed one to three times; what was killed, and how many starts found work to go on with."""
    rng, seen = random.Random(seed), Counter()
    kills, workers = rng.choice([1, 2, 2, 3]), rng.choice([1, 2])
    while True:
        process = subprocess.Popen(
            command(whole.directory.parent, out, workers), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        with process:
            seen["resumed"] += any(out.rglob("state.safetensors"))
            if seen["kills"] < kills and (struck := strike(process, rng, out)):
                seen.update(["kills", struck])
            _, error = process.communicate(timeout=300)
        # a worker that was only just starting when its driver was killed is told so by Python, before any code of ours
        assert process.returncode == -signal.SIGKILL or "Traceback" not in error, error
        if process.returncode == 0:
            break
        assert process.returncode in (-signal.SIGKILL, 1), error  # 1: a worker was killed, which the driver says
    done = Run(out)
    assert_same_results(whole, done)
    assert not [path for path in out.rglob("*") if path.suffix == ".tmp" or path.name == "state.safetensors"]
    return seen


def strike(process, rng: random.Random, out: Path) -> str:
    """Kill the driver or one of its workers, at some moment of its start or of its work; what, if it was in time."""
    if rng.random() < 0.8:  # most of them at work, the others while it starts
        while process.poll() is None and not any(out.rglob("state.safetensors")):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.6))
    else:
        time.sleep(rng.uniform(0, 2.0))
    victim = rng.choice([process.pid, *workers_of(process.pid)])
    if process.poll() is not None:
        return ""
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return "driver" if victim == process.pid else "worker"


@pytest.mark.parametrize("seed", range(3))
def test_killed_and_gone_on_with(whole, tmp_path, seed):
    trial(whole, tmp_path / "run", seed)


@pytest.mark.slow
def test_killed_fifty_times_over(whole, tmp_path):
    total = Counter()
    for seed in range(3, 53):
        total += trial(whole, tmp_path / str(seed), seed)
        print(seed, dict(total), flush=True)
    assert total["kills"] >= 50
    assert total["resumed"] >= 25


def test_the_clock_may_jump(tmp_path, monkeypatch, capsys):
    """Back, forth, and not at all: when states are saved depends on it, results do not."""
    (tmp_path / "spec.toml").write_text(TOML.format(steps=2000))
    monkeypatch.setattr("resharpen.commands.training.save_figures", lambda *_: None)
    runs = []
    defaults = training.Trainer.__init__.__defaults__
    for i, clock in enumerate([time.monotonic, iter(range(10**6, -(10**6), -1000)).__next__]):
        monkeypatch.setattr(training.Trainer.__init__, "__defaults__", (*defaults[:-1], clock))
        main(["run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / str(i)), "--workers", "1"])
        runs.append(Run(tmp_path / str(i)))
    assert_same_results(*runs)
