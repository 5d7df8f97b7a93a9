"""User code that ends the process, at import or while it trains: reported, with a few frames, and never a success."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from resharpen import own
from resharpen.cli import main

CODE = """
import ctypes, os, sys, torch
import resharpen as rs

AT = {at!r}
calls = []

def end():
    {how}

if AT == "import":
    end()

@rs.norm()
def mine(x, p):
    calls.append(1)
    if AT == "call" and len(calls) > 300:
        end()
    return x / (1 + x * x)
"""
HOW = {
    "sys.exit(0)": "sys.exit(0)",
    "sys.exit(7)": "sys.exit(7)",
    "os._exit": "os._exit(0)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "BaseException": "raise BaseException('no')",
    "GeneratorExit": "raise GeneratorExit",
    "StopIteration": "raise StopIteration",
    "swallowed text": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
}


def command(tmp_path: Path, how: str, at: str, workers: int = 1) -> list[str]:
    """What trains with code that ends itself."""
    (tmp_path / "own.py").write_text(CODE.format(at=at, how=how))
    text = 'models = 1\nsteps = 500\nbatch = 4\nvariants = ["pre+own.py:mine"]\nengine = "torch"\n'
    (tmp_path / "spec.toml").write_text(f"{text}task = {{ v = 4, train_lengths = [1, 2] }}\n")
    return ["run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "r"), "--workers", str(workers)]


def refused(capsys, *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*args])
    assert ended.value.code == 2
    return capsys.readouterr().err


def in_a_process(*args: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "resharpen", *args]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


WHILE = "variant 'pre+mine' failed in your own code during training; this run keeps the code that it started with"


@pytest.mark.parametrize("how", HOW)
def test_code_that_ends_the_process_when_it_is_loaded(tmp_path, capsys, how):
    said = refused(capsys, *command(tmp_path, HOW[how], "import"))
    assert f"{tmp_path / 'own.py'} cannot be loaded" in said
    assert f'File "{tmp_path / "own.py"}", line' in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("how", HOW)
def test_code_that_ends_the_process_while_it_trains(tmp_path, capsys, how):
    said = refused(capsys, *command(tmp_path, HOW[how], "call"))
    assert f"{WHILE}: correct the file and choose another --out" in said
    assert f'File "{tmp_path / "own.py"}", line' in said
    assert said.count("File ") == 2
    assert "resharpen_own_" not in said


def test_code_that_failed_in_training_is_corrected_elsewhere(tmp_path, capsys):
    """Its run keeps the code that failed: it is refused there, and trains in another directory."""
    args = command(tmp_path, "1 / 0", "call")
    assert "correct the file and choose another --out" in refused(capsys, *args)
    command(tmp_path, "pass", "call")
    for again in (args, ["run", str(tmp_path / "r")]):
        said = refused(capsys, *again)
        assert "own.py has changed since this run started: restore it, choose another --out for a new run, or" in said
    main([*args[:3], str(tmp_path / "corrected"), *args[4:]])
    assert len(list((tmp_path / "corrected").rglob("manifest.json"))) == 2


@pytest.mark.parametrize(
    ("how", "at", "workers"), [("os._exit(0)", "import", 1), ("os._exit(0)", "call", 1), ("sys.exit(0)", "call", 2)]
)
def test_a_process_that_user_code_would_end(tmp_path, how, at, workers):
    done = in_a_process(*command(tmp_path, how, at, workers))
    assert done.returncode == 2, done
    assert "it ended the process (exit code 0):" in done.stderr
    assert "cannot be loaded" in done.stderr if at == "import" else WHILE in done.stderr


def test_a_worker_that_ends_in_c_is_a_failure(tmp_path):
    """With exit code 0, which says that all is well."""
    done = in_a_process(*command(tmp_path, "ctypes.CDLL(None)._exit(0)", "call", 2))
    assert done.returncode == 1, done
    assert re.search(
        r"a worker ended with exit code 0 at sct-v4-s\d/pre\+mine/00000-00000; finished work is", done.stderr
    )


def test_an_interrupt_while_user_code_runs_is_an_interrupt(tmp_path, monkeypatch):
    """Of somebody who presses Ctrl-C in a script; the code did not raise it."""
    how = "import signal; signal.raise_signal(signal.SIGINT); len('')"
    path = tmp_path / "own.py"
    path.write_text(CODE.format(at="import", how=how))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have begun this with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            own.find(own.refer(f"{path}:mine"))
    finally:
        signal.signal(signal.SIGINT, before)


CHANGES = """
import os, random, signal, sys, warnings
import numpy as np
import torch
import resharpen as rs

def change():
    torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64); torch.manual_seed(1)
    np.random.seed(1); random.seed(1); np.seterr(all="raise"); warnings.simplefilter("ignore")
    os.chdir("/"); sys.path.insert(0, "/nowhere"); sys.stdout = None
    signal.signal(signal.SIGINT, signal.SIG_IGN)

change()

@rs.norm()
def mine(x, p):
    return x / (1 + x * x)
"""


def test_what_code_changes_when_it_is_loaded_is_put_back(tmp_path):
    path = tmp_path / "changes.py"
    path.write_text(CHANGES)

    def state():
        numbers = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
        of_torch = torch.is_grad_enabled(), torch.get_default_dtype()
        rest = np.geterr(), list(warnings.filters), os.getcwd(), list(sys.path), sys.stdout, signal.getsignal(2)
        return numbers, of_torch, rest

    before = state()
    assert own.find(own.refer(f"{path}:mine")).name == "mine"
    assert state() == before


def test_warnings_of_ours_are_heard_though_code_silences_all(tmp_path, capsys):
    path = tmp_path / "changes.py"
    path.write_text(CHANGES)
    text = 'models = 1\nsteps = 2\nbatch = 4\nvariants = ["pre+changes.py:mine"]\n'
    (tmp_path / "spec.toml").write_text(f"{text}task = {{ v = 4, train_lengths = [1] }}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        main(["run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "r"), "--workers", "1"])
    assert "variant 'pre+mine' runs on the torch engine" in capsys.readouterr().err
