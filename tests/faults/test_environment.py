"""Environments that upset libraries: what a command does does not depend on them, or one line says what is wrong."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from resharpen.cli import main

SPEC = 'models = 1\nsteps = 2\nbatch = 4\ncheckpoints = 1\nvariants = ["VARIANT"]\n'
SPEC += "task = { v = 3, train_lengths = [1, 2] }\n"
RC = "text.usetex: True\nfont.size: 30\naxes.facecolor: red\nsavefig.dpi: 20\nsvg.fonttype: none\n"
HOMELESS = "import pwd\ndef getpwuid(uid): raise KeyError(uid)\npwd.getpwuid = getpwuid\n"


def command(*args: object, limit: str = "", **environment: str | None) -> subprocess.CompletedProcess[str]:
    """A command in another environment; None takes a variable away."""
    changed = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    line = ["bash", "-c", f'{limit} exec "$@"', "-", sys.executable, "-m", "resharpen", *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, env=changed, check=False)


def test_figures_do_not_depend_on_the_users_settings(finished, tmp_path):
    (tmp_path / "matplotlibrc").write_text(RC)
    main(["figure", str(finished.directory), "--out", str(tmp_path / "here")])
    settings = {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc"), "MPLBACKEND": "foo"}
    done = command("figure", finished.directory, "--out", tmp_path / "there", **settings)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here/figure.png").read_bytes() == (tmp_path / "there/figure.png").read_bytes()


def test_a_warning_is_no_failure(tmp_path):
    """In the driver and in workers."""
    (tmp_path / "spec.toml").write_text(SPEC.replace("VARIANT", "pre+entmax"))
    done = command("run", tmp_path / "spec.toml", "--out", tmp_path / "r", "--workers", 2, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("resharpen: variant 'pre+entmax' runs on the torch engine")
    assert done.stderr.count("\n") == 1


def test_an_account_without_a_home(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC.replace("VARIANT", "pre"))
    (tmp_path / "sitecustomize.py").write_text(HOMELESS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    names = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "RESHARPEN_CACHE", "MPLCONFIGDIR")
    args = ("run", tmp_path / "spec.toml", "--out", tmp_path / "r", "--workers", 1)
    done = command(*args, **dict.fromkeys(names), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "there is no home directory to keep kernels in; set RESHARPEN_CACHE" in done.stderr
    assert not (Path.cwd() / "~").exists()


def test_settings_that_are_refused(finished, tmp_path):
    before = sorted(path.name for path in finished.directory.rglob("*"))
    done = command("run", finished.directory, "--workers", 1, POLARS_MAX_THREADS="0")
    assert (done.returncode, done.stderr) == (2, "resharpen: POLARS_MAX_THREADS = 0: must be at least 1\n")
    done = command("figure", finished.directory, limit="ulimit -v 400000;")
    assert done.returncode == 1
    assert done.stderr.startswith("resharpen: out of memory: the limit of this process (ulimit -v) is 390 MiB")
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in finished.directory.rglob("*")) == before


def test_usr1_outside_training_changes_nothing(finished):
    line = [sys.executable, "-m", "resharpen", "figure", str(finished.directory)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            ignored = next(x for x in status.read_text().splitlines() if x.startswith("SigIgn")).split()[1]
            if int(ignored, 16) >> (signal.SIGUSR1 - 1) & 1:
                break
            time.sleep(0.002)
        while process.poll() is None:  # while it imports, computes, draws
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.02)
        said, error = process.communicate()
    assert (process.returncode, error) == (0, "")
    assert "Figure: " in said
