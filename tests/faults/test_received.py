"""Runs and references from somebody else: looking at one executes nothing of it without --trust-code."""

import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest
from make_reference import write_reference
from runs import forge

import resharpen as rs
from resharpen import own
from resharpen.cli import main

PAYLOAD = """
from pathlib import Path
Path({mark!r}).touch()
import resharpen as rs

@rs.norm()
def f(x, p):
    return x
"""
SPEC = 'models = 1\nsteps = 2\nbatch = 4\nvariants = ["pre+payload.py:f"]\nengine = "torch"\n'
SPEC += "task = { v = 4, train_lengths = [1, 2] }\n"
NOT_MINE = "this account has not trained with "
LOOKING = ["status", "results", "figure", "compare", "report", "inspect", "verify", "claims", "run"]


@pytest.fixture
def results(finished, tmp_path, monkeypatch) -> Path:
    """A run that was received, seen from the directory that it was unpacked in; `payload.py` came with it."""
    monkeypatch.chdir(tmp_path)
    directory = finished.directory.rename(tmp_path / "results")
    (directory / "payload.py").write_text(PAYLOAD.format(mark=str(tmp_path / "executed")))
    return directory


@pytest.fixture
def kept(results, tmp_path) -> Path:
    """A reference that was received."""
    run = rs.load(results)
    reference = write_reference(run, rs.scores(run), tmp_path / "kept").directory
    shutil.copy(results / "payload.py", reference)
    return reference


def refused(capsys, *args: str) -> str:
    """What was said: one line, exit code 2, and nothing of the payload was executed."""
    with pytest.raises(SystemExit) as ended:
        main([*args])
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith("resharpen: ")
    assert said.count("\n") == 1
    assert not Path("executed").exists()
    return said


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


PATH = "results/payload.py:f"
PLACES = {
    "norm": lambda spec: spec["variant"]["pre"].update(norm=PATH),
    "attention": lambda spec: spec["variant"]["pre"].update(attention=PATH),
    "positions": lambda spec: spec["variant"]["pre"].update(positions=PATH),
    "optimizer": lambda spec: spec["variant"]["pre"].update(optimizer=PATH),
    "placement": lambda spec: spec["variant"]["pre"].update(placement=PATH),
    "model": lambda spec: spec["variant"]["pre"].update(model=PATH),
    "kind of model": lambda spec: spec["variant"]["pre"].update(model={"kind": PATH}),
    "a variant that is not compared": lambda spec: spec["variant"].update(zz={"norm": PATH}),
    "task": lambda spec: spec["task"][0].update(kind=PATH),
    "model of a task": lambda spec: spec["task"][0]["model"].update(kind=PATH),
    "variants": lambda spec: spec["variants"].append(PATH),
    "a sum": lambda spec: spec["variants"].append(f"pre+{PATH}"),
    "no variant tables": lambda spec: spec.update(variants=[f"pre+{PATH}"], variant={}),
    "baseline": lambda spec: spec.update(baseline=f"pre+{PATH}"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_path_in_a_stored_spec_is_refused(results, kept, capsys, place):
    forge(results / "run.json", lambda header: PLACES[place](header["spec"]))
    assert "run.json" in refused(capsys, "status", "results")
    forge(kept / "reference.json", lambda header: PLACES[place](header["spec"]))
    assert "reference.json" in refused(capsys, "results", "kept")


@pytest.mark.parametrize("command", LOOKING)
def test_no_command_takes_a_path_from_a_stored_spec(results, kept, capsys, command):
    forge(results / "run.json", lambda header: PLACES["norm"](header["spec"]))
    assert f"'{PATH}' is a path" in refused(capsys, command, "results")
    if command in ("results", "figure", "compare", "report", "claims"):
        forge(kept / "reference.json", lambda header: PLACES["norm"](header["spec"]))
        assert f"'{PATH}' is a path" in refused(capsys, command, "kept")


def name_payload(header: Path, path: str) -> None:
    """The spec names the payload by its hash, the header says where it is."""
    digest = sha256(header.parent / "payload.py")

    def change(header):
        header["spec"]["variant"]["zz"] = {"placement": "pre", "norm": f"payload.py:f@{digest[:12]}"}
        header["spec"]["variants"].append("zz")
        header["code"] = [{"path": path, "sha256": digest}]

    forge(header, change)


@pytest.mark.parametrize("path", ["results/payload.py", "./results/payload.py", "~/payload.py", "payload.py"])
def test_a_relative_path_of_code_is_refused(results, capsys, path):
    name_payload(results / "run.json", path)
    for trust in ([], ["--trust-code"]):
        assert "'code' has a relative path" in refused(capsys, "status", "results", *trust)


def beside(results: Path, tmp_path: Path) -> Path:
    """In another run."""
    other = shutil.copytree(results, tmp_path / "other")
    return other / "payload.py"


def linked(results: Path, tmp_path: Path) -> Path:
    (tmp_path / "link.py").symlink_to(results / "payload.py")
    return tmp_path / "link.py"


WAYS = {
    "into the run": lambda results, tmp_path: results / "payload.py",
    "deep in the run": lambda results, tmp_path: shutil.copy(results / "payload.py", results / "shards" / "x.py"),
    "around": lambda results, tmp_path: results / "shards" / ".." / "payload.py",
    "another run": beside,
    "a link": linked,
    "outside of any run": lambda results, tmp_path: shutil.copy(results / "payload.py", tmp_path / "downloaded.py"),
    "from where we are": lambda results, tmp_path: Path("/proc/self/cwd/results/payload.py"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["status", "run"])
def test_code_in_a_run_directory_is_not_executed(results, tmp_path, capsys, way, command):
    name_payload(results / "run.json", str(WAYS[way](results, tmp_path)))
    assert NOT_MINE in refused(capsys, command, "results")


def test_code_in_a_run_directory_is_executed_by_who_trusts_it(results, tmp_path, capsys):
    name_payload(results / "run.json", str(results / "payload.py"))
    main(["status", "results", "--trust-code"])
    assert "4 of 6 finished" in capsys.readouterr().out
    assert (tmp_path / "executed").exists()


def test_code_in_a_reference_is_not_executed(results, kept, capsys):
    """By whatever reference.json says of it."""
    name_payload(kept / "reference.json", str(kept / "payload.py"))
    for command in ("results", "claims", "report"):
        assert "a reference stores no code" in refused(capsys, command, "kept", "--trust-code")
    name_payload(results / "run.json", str(kept / "payload.py"))
    assert NOT_MINE in refused(capsys, "status", "results")


def test_a_reference_of_own_code_is_read_beside_its_run(tiny, tmp_path, capsys):
    """Which has the code, and lets it in."""
    code = tmp_path / "mine.py"
    code.write_text(PAYLOAD.format(mark=str(tmp_path / "executed")))
    run = rs.run(
        rs.Experiment("mine", tiny.settings, ["pre", f"pre+{code}:f"], 1, 2, engine="torch"), tmp_path / "r", workers=1
    )
    kept = write_reference(run, rs.scores(run), tmp_path / "kept")
    main(["verify", str(tmp_path / "r"), "--reference", str(kept.directory)])
    assert write_reference(run, rs.scores(run), tmp_path / "kept").table("models").height == 4


def test_code_that_this_account_has_trained_with_is_executed(results, tmp_path, capsys, monkeypatch):
    """From where it was, as it was; not where somebody else says it is, nor by another account, nor with a record that
    others can write to."""
    shutil.copy(results / "payload.py", tmp_path / "mine.py")
    (tmp_path / "spec.toml").write_text(SPEC.replace("payload", "mine"))
    main(["run", "spec.toml", "--out", "mine", "--workers", "1"])
    shutil.copytree("mine", "received")
    (tmp_path / "copy.py").write_bytes((tmp_path / "mine.py").read_bytes())
    forge(tmp_path / "received/run.json", lambda header: header["code"][0].update(path=str(tmp_path / "copy.py")))

    def forget() -> None:
        """As in a new process."""
        (tmp_path / "executed").unlink(missing_ok=True)
        own._admitted.clear()
        own._module.cache_clear()

    def look(run: str) -> None:
        forget()
        main(["results", run])
        assert (tmp_path / "executed").exists()

    def refuse(run: str) -> None:
        forget()
        assert NOT_MINE in refused(capsys, "results", run)

    look("mine")
    refuse("received")
    main(["status", "received", "--trust-code"])
    refuse("received")
    record = Path(os.environ["XDG_STATE_HOME"]) / "resharpen/code"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    record.chmod(0o660)
    refuse("mine")
    record.chmod(0o600)
    look("mine")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    refuse("mine")
    main(["run", "spec.toml", "--out", "mine", "--workers", "1"])
    look("mine")


@pytest.mark.parametrize("workers", [1, 2])
def test_code_that_the_user_names_is_executed_wherever_it_lies(results, tmp_path, capsys, workers):
    """In this process and in workers; to continue, the run's own word for it is not enough."""
    (results / "spec.toml").write_text(SPEC)
    main(["run", "results/spec.toml", "--out", "mine", "--workers", str(workers)])
    assert len(rs.load("mine").done()) == 2
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "name", ["../../outside", "..", "/outside", "a/b", ".hidden", "a\0b", "a\x1b[2Jb"], ids=lambda name: repr(name)
)
def test_names_lead_nowhere_and_say_nothing_to_a_terminal(results, capsys, name):
    def renamed(spec):
        spec["variant"][name] = spec["variant"].pop("pre")
        spec["variants"][0] = name

    changes = (renamed, lambda spec: spec.update(name=name), lambda spec: spec.update(march=name))
    before = (results / "run.json").read_bytes()
    for change in changes:
        forge(results / "run.json", lambda header, change=change: change(header["spec"]))
        assert "\x1b" not in refused(capsys, "status", "results")
        (results / "run.json").write_bytes(before)


@pytest.mark.parametrize("place", ["started", "cpu"])
def test_what_is_shown_of_a_header_has_no_control_characters(results, kept, capsys, place):
    forge(results / "run.json", lambda header: header["provenance"].update({place: "x\x1b]0;y\x07"}))
    assert "control characters" in refused(capsys, "status", "results")
    forge(kept / "reference.json", lambda header: header["made"][0]["provenance"].update({place: "\x1b[2J"}))
    assert "control characters" in refused(capsys, "results", "kept")


@pytest.mark.parametrize(
    "command", ["rm -rf /", "resharpen run x; rm -rf /", "resharpen run $(rm x)", "resharpen run x\nrm", "", 7, None]
)
def test_the_command_of_a_reference_is_a_command_of_ours(kept, capsys, command):
    forge(kept / "reference.json", lambda header: header["made"][0].update(command=command))
    assert "reference.json is damaged: " in refused(capsys, "report", "kept")


@pytest.mark.parametrize("name", ["../../payload", "/etc/passwd", "", 7])
def test_a_table_of_a_reference_goes_by_its_hash(kept, capsys, name):
    forge(kept / "reference.json", lambda header: header["sha256"].update({"models.parquet": name}))
    assert "'sha256' has no hash" in refused(capsys, "results", "kept")


def test_a_table_that_is_none_is_one_line(kept, capsys):
    """Though its hash is right."""
    digest = sha256(kept / "payload.py")
    (kept / "payload.py").rename(kept / f"models-{digest[:8]}.parquet")
    forge(kept / "reference.json", lambda header: header["sha256"].update({"models.parquet": digest}))
    assert "is not the table of a reference" in refused(capsys, "results", "kept")
