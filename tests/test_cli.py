"""The command line as a user meets it."""

import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import polars as pl
import pytest

from resharpen.cli import COMMANDS, Command, main
from resharpen.commands.training import RunFigure, Submit, Training, _options
from resharpen.engines.native import compiler
from resharpen.experiments.running.runner import load, with_engine

TINY = """
models = 16
steps = 12
batch = 8
checkpoints = 3
variants = ["pre", "mine"]
engine = "torch"

[task]
v = 4
train_lengths = [1, 2]

[variant.mine]
placement = { block_out = true }

[hyperparameters]
peak_learning_rate = 1e-3
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def fails(capsys, *args: str) -> str:
    """The one line on standard error of a command that must exit with 2."""
    with pytest.raises(SystemExit) as exit_:
        main(list(args))
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("resharpen: ")
    return error


def test_a_user_s_own_spec_from_file_to_figure(toml, tmp_path, capsys):
    out = tmp_path / "run"
    main(["run", str(toml), "--out", str(out), "--workers", "1"])
    said = capsys.readouterr().out
    assert "4 of 4 shards to train" in said
    assert f"Next: resharpen compare {out}, resharpen report {out} --open" in said
    result = said.partition("Result\n")[2].splitlines()[0]  # the verdict is what a run ends with
    assert re.match(
        r"  mine against pre on new lengths, mean of settings: median .* TVD; .* wins \d+% of 32 pairs", result
    )
    for name in ("figure.png", "figure.svg", "run.json", "README.md"):
        assert (out / name).stat().st_size > 0
    store = load(out)
    assert set(store.table("models")["variant"]) == {"pre", "mine"}
    assert set(store.table("models")["peak_learning_rate"]) == {1e-3}

    main(["run", str(toml), "--out", str(out), "--workers", "1"])
    assert "all 4 shards are finished" in capsys.readouterr().out
    main(["run", str(out), "--models", "20", "--workers", "1"])  # a run directory is a target too, and grows
    assert "4 of 8 shards to train, 4 done" in capsys.readouterr().out
    assert load(out).table("models").height == 2 * 2 * 20

    main(["status", str(out)])
    assert "8 of 8 finished" in capsys.readouterr().out
    main(["claims", str(out)])
    assert "undecided at this scale" in capsys.readouterr().out
    main(["results", str(out)])
    assert "s = 2    mine" in capsys.readouterr().out
    main(["figure", str(out), "--selection", "last", "--out", str(tmp_path / "pictures")])
    assert (tmp_path / "pictures" / "figure-last.svg").exists()


def test_results_are_tidy(toml, tmp_path, capsys):
    out = tmp_path / "run"
    main(["run", str(toml), "--out", str(out), "--workers", "1"])
    capsys.readouterr()
    main(["results", str(out), "--csv"])
    csv = pl.read_csv(capsys.readouterr().out.encode())
    main(["results", str(out), "--parquet", str(tmp_path / "all.parquet")])
    parquet = pl.read_parquet(tmp_path / "all.parquet")
    assert csv.height == parquet.height
    assert csv.filter(metric="tvd").height == 2 * 2 * 16 * 2 * 3 * 3
    wanted = {"model", "weights", "selection", "length", "value", "count", "variant", "placement", "norm", "attention"}
    assert wanted | {"positions", "optimizer", "ema_lag", "rms_epsilon"} <= set(csv.columns)
    assert set(csv.filter(variant="mine")["placement"]) == {"block_out"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "fig9"], "unknown figure or task 'fig9': did you mean"),
        (["run", "fig1", "--variants", "pre,perri"], "unknown variant 'perri': did you mean 'peri'"),
        (["run", "fig1", "--variants", "pre+post"], "has two parts of one kind (placement)"),
        (["run", "fig2", "--variants", "peri-init"], "a retriever has no placement 'peri-init'"),
        (["run", "fig1", "--variants", "pre+mine.py:mine"], "mine.py: No such file"),
        (["run", "fig1", "--models", "0"], "models = 0: must be at least 1"),
        (["run", "fig1", "--models", "-3"], "models = -3: must be at least 1"),
        (["run", "fig1", "--steps", "0"], "steps = 0: must be at least 1"),
        (["run", "fig1", "--workers", "0"], "workers = 0: must be at least 1"),
        (["reprot", "runs/demo"], "unknown command 'reprot': did you mean 'report'?"),
        (["--versoin"], "unknown option '--versoin': did you mean '--version'?"),
        (["run", "fig1", "--modles", "3"], "unknown option of `resharpen run` '--modles': did you mean '--models'?"),
        (
            ["run", "fig1", "--scale", "smok"],
            "unknown scale 'smok': did you mean 'smoke'? (allowed: laptop, overnight,",
        ),
        (["run", "fig1", "--scale=smok"], "unknown scale 'smok'"),
        (["run", "fig1", "--launcher", "rya"], "unknown launcher 'rya': did you mean 'ray'? (allowed: local, ray)"),
        (["run", "fig1", "--models", "x"], "--models x: must be a whole number"),
        (["compare", "fig1-laptop", "--margin", "x"], "--margin x: must be a number"),
        (["run"], "TARGET is missing: A figure of `resharpen list`"),
        (["run", "fig1", "twice"], "Unrecognized options: twice (see: resharpen run --help)"),
        (["theory", "--v"], "Missing value for argument '--v'"),
        (["report", "fig1"], "fig1 is not a run directory: it has no run.json; did you mean 'fig1-laptop' or 'fig1-ov"),
        (["verify", "--quick", "--reference", "fig1-laptip"], "did you mean 'fig1-laptop'?"),
        (["run", "fig1", "--seed", "-1"], "seed = -1: must be at least 0"),
        (["run", "nowhere.toml"], "No such file"),
        (["run", "nowhere.toml", "--scale", "smoke"], "--scale needs the name of a figure"),
        (["status", "nowhere"], "is not a run directory"),
        (["figure", "nowhere"], "is not a run directory"),
        (["figure", "fig1-laptop", "--out", "mine.png"], "must be a directory"),
        (["results", "nowhere"], "is not a run directory"),
        (["claims", "nowhere"], "is not a run directory"),
        (["inspect", "nowhere"], "is not a run directory"),
        (["theory", "--v", "3"], "v = 3"),
        (["theory", "--v", "12"], "v = 12"),
    ],
)
def test_bad_input_is_one_line(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *args)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("v = 4", "v = 1", "v = 1: the set needs at least 2 tokens"),
        ("[1, 2]", "[4]", "training length 4: for sct-v4 1..3"),
        ("block_out", "blok_out", "did you mean 'block_out'"),
        ("steps", "stepps", "did you mean 'steps'"),
    ],
)
def test_a_bad_file_is_one_line(toml, tmp_path, capsys, old, new, message):
    toml.write_text(TINY.replace(old, new))
    error = fails(capsys, "run", str(toml), "--out", str(tmp_path / "run"))
    assert message in error
    assert str(toml) in error
    assert not (tmp_path / "run").exists()


def test_variants_on_the_command_line(toml, tmp_path, capsys):
    """Sums, a variant of the file, and code of one's own, beside each other."""
    (tmp_path / "own.py").write_text(
        "import resharpen as rs\n\n@rs.norm()\ndef nothing(x, p):\n    return x\n# the norm that is none\n"
    )
    out, own = tmp_path / "run", f"{tmp_path / 'own.py'}:nothing"
    chosen = f"mine, log-n+peri,pre+{own}"
    main(["run", str(toml), "--out", str(out), "--workers", "1", "--models", "2", "--variants", chosen])
    store = load(out)
    assert list(store.experiment.variants) == ["mine", "peri+log-n", "pre+nothing"]
    capsys.readouterr()
    main(["status", str(out)])
    assert "peri+log-n torch" in capsys.readouterr().out
    main(["figure", str(out), "--attention", "adaptive-temperature"])
    assert (out / "figure-adaptive-temperature.png").exists()
    assert "did you mean 'log-n'" in fails(capsys, "figure", str(out), "--attention", "logn")


def test_other_specs_and_foreign_directories_are_refused(toml, tmp_path, capsys):
    out = tmp_path / "run"
    main(["run", str(toml), "--out", str(out), "--workers", "1"])
    capsys.readouterr()
    assert "steps: 12 -> 11" in fails(capsys, "run", str(toml), "--out", str(out), "--steps", "11")
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter1.tex").write_text("...")
    assert "not empty and is not a run" in fails(capsys, "run", str(toml), "--out", str(foreign))


def test_a_damaged_file_is_named_then_mended(toml, tmp_path, capsys):
    out = tmp_path / "run"
    main(["run", str(toml), "--out", str(out), "--workers", "1"])
    victim = sorted(out.rglob("lengths.parquet"))[2]
    victim.write_bytes(b"not parquet")
    capsys.readouterr()
    for command in ("figure", "results", "claims", "status"):
        assert str(victim) in fails(capsys, command, str(out))
    main(["run", str(out), "--workers", "1"])
    said = capsys.readouterr().out.replace("\n", "")
    assert victim.name in said
    assert "1 of 4 shards to train" in said
    main(["results", str(out)])


def test_inspect(toml, tmp_path, capsys):
    out = tmp_path / "run"
    main(["run", str(toml), "--out", str(out), "--workers", "1"])
    capsys.readouterr()
    main(["inspect", str(out)])
    said = capsys.readouterr().out
    assert "Inside the models of sct-v4-s" in said
    for name in ("inspect-model", "inspect-run", "dispersion"):
        assert (out / f"{name}.png").stat().st_size > 10_000
    main(["inspect", str(out), "--model", "sct-v4-s2/mine/3", "--weights", "bema", "--out", str(tmp_path / "p")])
    assert "sct-v4-s2" in capsys.readouterr().out
    assert (tmp_path / "p" / "dispersion.svg").exists()
    assert "no model 'sct-v4-s2/mine/99'" in fails(capsys, "inspect", str(out), "--model", "sct-v4-s2/mine/99")
    victim = next(out.rglob("sct-v4-s2/mine/*/weights.safetensors"))
    victim.unlink()
    assert "weights.safetensors is missing" in fails(capsys, "inspect", str(out))


def test_theory(capsys):
    main(["theory", "--v", "4"])
    said = capsys.readouterr().out
    assert "vacuous" in said
    assert " NO " not in said


def test_a_dry_run_writes_nothing(toml, tmp_path, capsys):
    main(["run", str(toml), "--out", str(tmp_path / "run"), "--dry-run"])
    said = capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert re.search(r"shards +4", said)
    assert "64 models x 12 steps" in said
    assert re.search(r"time +about \d+ s on", said)
    assert "MiB" in said


def test_ctrl_c_leaves_a_run_that_resumes(toml, tmp_path, capsys):
    out = tmp_path / "run"
    longer = TINY.replace("steps = 12", "steps = 200_000_000").replace("checkpoints = 3", "checkpoints = 2000")
    toml.write_text(longer.replace('"torch"', '"native"'))
    command = [sys.executable, "-m", "resharpen", "run", str(toml), "--out", str(out), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout is not None
    for line in process.stdout:  # the first checkpoint shows that work is under way
        if "best TVD so far" in line:
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Continue with: resharpen run {out}" in said.replace("\n", " ")
    assert list(out.rglob("state.safetensors"))
    main(["status", str(out)])
    assert "in progress" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["run", "fig9"]])
def test_help_and_bad_arguments_answer_at_once(args):
    """Without torch, polars or matplotlib; the time itself is checked loosely, machines differ."""
    code = (
        "import sys; sys.argv[0] = 'resharpen'\n"
        "from resharpen.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    assert not {'torch', 'polars', 'matplotlib', 'scipy'} & set(sys.modules), 'slow imports'\n"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert "slow imports" not in done.stderr
    assert done.returncode == (0 if "--help" in args else 2)
    assert time.perf_counter() - started < 3


def test_a_run_beside_a_misspelled_one_is_suggested(toml, tmp_path, capsys):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "run.json").touch()
    for command in ("status", "report"):
        assert f"did you mean '{tmp_path / 'tiny'}'?" in fails(capsys, command, str(tmp_path / "tinny"))


def test_help_is_one_line_per_command_at_80_columns(capsys):
    for words in ([], ["--help"], ["-h"]):
        main(words)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        named = [line.split()[0] for line in lines if line.startswith("  ")]
        assert named == list(COMMANDS)


def test_the_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"resharpen {version('resharpen')}\n"


def test_every_command_has_an_example(capsys):
    commands = [one.__metadata__[0].name for one in get_args(Command)]
    assert {"list", "run", "report", "verify", "doctor"} <= set(commands)
    for command in commands:
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0
        said = capsys.readouterr().out
        assert "For example" in said
        assert said.count(f"resharpen {command}") >= 2  # the usage line and an example


def test_doctor(capsys):
    main(["doctor"])
    said = capsys.readouterr().out
    assert "torch" in said
    assert "compiler" in said


def test_doctor_says_which_compiler_there_is_or_how_to_get_one(capsys, monkeypatch, tmp_path):
    def said() -> str:
        main(["doctor"])
        return "".join(capsys.readouterr().out.split())  # lines are broken anywhere

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    assert "missing:noC++compilerfound" in said()
    assert "pipinstall'resharpen[compiler]'" in said()
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: name == "ziglang")
    monkeypatch.setattr(compiler, "call", lambda command: subprocess.CompletedProcess(command, 0, "clang version 99\n"))
    compiler._known.cache_clear()
    assert "clangversion99" in said()
    assert "-mziglangc++" in said()
    compiler._known.cache_clear()


def test_a_new_run_from_an_old_one_has_the_engine_that_is_asked_for(tmp_path):
    toml = tmp_path / "spec.toml"
    toml.write_text(
        "models = 1\nsteps = 2\nbatch = 4\ncheckpoints = 1\nvariants = ['pre']\ntask = { v = 4, train_lengths = [1] }\n"
    )
    main(["run", str(toml), "--out", str(tmp_path / "a"), "--engine", "torch", "--workers", "1"])
    old = RunFigure(str(tmp_path / "a"), engine="native", out=tmp_path / "b")._experiment()[0]
    assert with_engine(old).variants["pre"].engine == "native"
    assert RunFigure(str(tmp_path / "a"))._experiment()[0].variants["pre"].engine == "torch"


def test_a_submitted_seed_of_zero_is_a_seed():
    assert _options(Submit("x.toml", seed=0, trust_code=True, slurm=True), Training) == ["--seed", "0", "--trust-code"]


def test_nothing_is_written_over_what_a_run_consists_of(toml, tmp_path, capsys):
    out = tmp_path / "run"
    main(["run", str(toml), "--out", str(out), "--workers", "1"])
    capsys.readouterr()
    header = out / "run.json"
    before = header.read_bytes()
    assert "must end in .parquet" in fails(capsys, "results", str(out), "--parquet", str(header))
    assert "must end in .html" in fails(capsys, "report", str(out), "--out", str(header))
    assert header.read_bytes() == before
    assert "there is no reference for 'tiny'" in fails(capsys, "verify", str(out))
    assert "not a run of 'fig1-laptop'" in fails(capsys, "verify", str(out), "--reference", "fig1-laptop")
