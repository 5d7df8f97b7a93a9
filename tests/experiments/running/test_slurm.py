"""Parts of a run, and the script of a job array: its text, a stand-in for SLURM, and the jobs themselves."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from runs import assert_same_results

from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.keeping.shard import STATE
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import Observer, run
from resharpen.experiments.running.slurm import script
from resharpen.experiments.specs.toml import read_toml

pytestmark = pytest.mark.xdist_group("slurm")  # one whole run to compare with
TOML = """
models = 16
steps = 150_000
batch = 64
checkpoints = 10
engine = "native"
variants = ["pre", "peri"]

[task]
v = 4
train_lengths = [1, 2]
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What has to come out, whoever is killed: four shards of a second or so."""
    there = tmp_path_factory.mktemp("whole")
    (there / "spec.toml").write_text(TOML)
    return run(read_toml(there / "spec.toml"), there / "run", workers=1)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TOML file in a directory whose name is a trial for any shell."""
    here = tmp_path / 'it\'s $HOME; a "test"'
    here.mkdir()
    monkeypatch.chdir(here)
    path = Path("spec.toml")
    path.write_text(TOML)
    return path


def stand_in(directory: Path, name: str, lines: str) -> None:
    """A program of that name, in the shell."""
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_parts_are_the_whole_and_each_has_of_every_setting(tiny, tmp_path):
    spec = replace(tiny, models=64)
    seen = []
    for i in (1, 2, 3):
        run(spec, tmp_path / "parts", workers=1, job=(i, 3), observer=Observer(plan=seen.append))
    names = [[shard.name for shard in plan.todo] for plan in seen]
    assert sorted(chain(*names)) == sorted(shard.name for shard in spec.shards())
    assert [len(job) for job in names] == [6, 5, 5]
    for job in names:
        assert {name.split("/")[0] for name in job} == {"sct-v4-s1", "sct-v4-s2"}
    assert_same_results(run(spec, tmp_path / "whole", workers=1), Run(tmp_path / "parts"))


def test_parts_share_the_draws_that_a_run_has_grown_by(tiny, tmp_path):
    run(tiny, tmp_path / "r", workers=1)
    seen = []
    for i in (1, 2):
        run(replace(tiny, models=32), tmp_path / "r", workers=1, job=(i, 2), observer=Observer(plan=seen.append))
    assert [len(plan.todo) for plan in seen] == [2, 2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "fig1", "--job", "0/4"], "job '0/4': must be I/N, from 1/N to N/N"),
        (["run", "fig1", "--job", "5/4"], "job '5/4': must be I/N"),
        (["run", "fig1", "--job", "3"], "job '3': must be I/N"),
        (["run", "fig1", "--job", "-1/4"], "job '-1/4': must be I/N"),
        (["submit", "fig1"], "choose a scheduler: --slurm"),
        (["submit", "fig1", "--slurm", "--jobs", "0"], "jobs = 0: must be at least 1"),
        (["submit", "fig1", "--slurm", "--hours", "0.01"], "hours = 0.01: must be at least 0.1"),
        (["submit", "fig1", "--slurm", "--hours", "nan"], "hours = nan: must be at least 0.1"),
        (["submit", "fig9", "--slurm"], "unknown figure or task 'fig9'"),
        (["submit", "fig1", "--slurm"], "there is no sbatch on this machine"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_written(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_script(spec, capsys):
    main(["submit", str(spec), "--slurm", "--jobs", "3", "--hours", "1.5", "--out", "a b", "--seed", "7", "--dry-run"])
    text = capsys.readouterr().out
    assert set(re.findall(r"#SBATCH --(\S+)", text)) == {
        "job-name=spec",
        "array=1-3",
        "ntasks=1",
        "cpus-per-task=1",
        "mem=2G",
        "time=01:30:00",
        "signal=B:USR1@120",
        "requeue",
        "open-mode=append",
    }
    assert "run spec.toml --out 'a b' --seed 7 --workers 1 --job \"$SLURM_ARRAY_TASK_ID/3\" &" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert not Path("a b").exists()
    main(["submit", str(spec), "--slurm", "--out=-x", "--dry-run"])
    assert "run spec.toml --out=-x --workers 1 --job" in capsys.readouterr().out  # `--out -x` would be refused
    main(["submit", str(spec), "--slurm", "--jobs", "1000", "--dry-run"])
    assert "#SBATCH --array=1-4\n" in capsys.readouterr().out  # there are no more shards


def test_names_and_hours_cannot_break_a_directive():
    text = script(["run", "x"], "a\n#SBATCH --uid=0 $(rm)", 2, 100.25)
    assert "#SBATCH --job-name=a__SBATCH_--uid_0___rm_\n" in text
    assert "#SBATCH --time=100:15:00\n" in text
    with pytest.raises(UserError, match="less than 10,000"):
        script(["run", "x"], "x", 2, float("inf"))


def test_sbatch_gets_the_script(spec, tmp_path, monkeypatch, capsys):
    stand_in(tmp_path / "bin", "sbatch", f'cat > "{tmp_path}/script"; echo "$@" > "{tmp_path}/args"; echo "4711;main"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    main(["submit", str(spec), "--slurm", "--jobs", "2"])
    assert "Submitted as job 4711, an array of 2" in capsys.readouterr().out
    submitted = (tmp_path / "script").read_text()
    main(["submit", str(spec), "--slurm", "--jobs", "2", "--dry-run"])
    assert capsys.readouterr().out == submitted
    assert (tmp_path / "args").read_text() == "--parsable\n"


def test_sbatch_may_refuse(spec, tmp_path, monkeypatch, capsys):
    stand_in(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid account' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with pytest.raises(SystemExit) as ended:
        main(["submit", str(spec), "--slurm"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "resharpen: sbatch refused the job: sbatch: error: invalid account\n"


def wait_for(what, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert process.poll() is None, "ended before"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_parts_at_once_one_killed_and_started_again(whole, spec):
    """Both start on a directory that is not there yet."""
    program = "from resharpen.experiments.running import training; training.SAVE_EVERY = 0.1; "
    program += "training.CHUNK_SECONDS = 0.05; from resharpen.cli import main; main()"

    def job(i: int) -> subprocess.Popen:
        command = ["run", "spec.toml", "--out", "parts", "--workers", "1", "--job", f"{i}/2"]
        return subprocess.Popen([sys.executable, "-c", program, *command], stdout=subprocess.DEVNULL)

    first, second = job(1), job(2)
    mine = [shard.name for shard in sorted(whole.shards(), key=lambda shard: shard.name)[0::2]]
    wait_for(lambda: any((Path("parts/shards") / name / STATE).exists() for name in mine), first)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert len(Run(Path("parts")).done()) < 4
    again = job(1)
    assert (again.wait(120), second.wait(120)) == (0, 0)
    assert_same_results(whole, Run(Path("parts")))


def test_jobs_are_queued_again_before_their_time_is_over(whole, spec, tmp_path, capsys):
    """The script itself, as SLURM would run it: told that the time is nearly over, then run again to the end."""
    main(["submit", str(spec), "--slurm", "--jobs", "1", "--out", "array", "--dry-run"])
    text = capsys.readouterr().out
    stand_in(tmp_path / "bin", "scontrol", f'echo "$@" >> "{tmp_path}/requeued"')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    names = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "1", "PATH": path}

    def job() -> subprocess.Popen:
        return subprocess.Popen(["bash", "-c", text], env=os.environ | names, cwd="/", stdout=subprocess.DEVNULL)

    first = job()
    wait_for(lambda: list(Path("array").rglob(".lease")), first)
    first.send_signal(signal.SIGUSR1)
    assert first.wait(120) == 143
    assert (tmp_path / "requeued").read_text() == "requeue 4711_1\n"
    assert len(list(Path("array").rglob(STATE))) == 1
    assert job().wait(120) == 0
    assert (tmp_path / "requeued").read_text() == "requeue 4711_1\n"
    assert_same_results(whole, Run(Path("array")))
