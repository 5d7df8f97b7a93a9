"""Code of the user's own: references, hashes, refusals, and whose traceback is shown."""

from __future__ import annotations

import hashlib
import os
import py_compile
import re
from dataclasses import replace
from pathlib import Path

import pytest

from resharpen import own
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running.runner import load, run
from resharpen.experiments.specs.variant import parse_sum
from resharpen.models import find_model
from resharpen.optim import find_optimizer
from resharpen.parts import find_attention, find_norm, find_positions
from resharpen.tasks import find_task

NORM = """
import resharpen as rs

@rs.norm(a=rs.learned("d", start=1.0))
def my_dyt(x, p):
    return (p.a * x).tanh()

number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file whose content no other test has: files are known by their content."""
    path = tmp_path / "dyt.py"
    path.write_text(f"{NORM}\n# {tmp_path}\n")
    return path


def reference(path: Path, name: str) -> str:
    return f"{path.name}:{name}@{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def test_a_reference_says_which_content_is_meant(file, tmp_path, monkeypatch):
    expected = reference(file, "my_dyt")
    assert own.refer(f"{file}:my_dyt") == expected
    assert own.refer("dyt.py:my_dyt", tmp_path) == expected
    assert own.refer(f"./{tmp_path.name}/dyt.py:my_dyt", tmp_path.parent) == expected
    assert own.refer(expected) == expected
    monkeypatch.chdir(tmp_path)
    assert own.refer("dyt.py:my_dyt") == expected
    found = own.find_in({}, type(find_norm(expected)), "norm", expected)
    assert found is find_norm(expected) is own.find(expected)
    assert found.name == "my-dyt"
    assert own.source(expected) == own.Source(file.resolve(), hashlib.sha256(file.read_bytes()).hexdigest())


def test_a_path_with_a_plus_in_it_stands_in_a_sum(file, tmp_path):
    """In the name of a file, and in that of a directory on the way."""
    folder = tmp_path / "c++"
    folder.mkdir()
    copy = folder / "a+b.py"
    copy.write_text(f"{file.read_text()}# {copy}\n")
    for base, written in ((None, f"{copy}:my_dyt"), (folder, "a+b.py:my_dyt"), (tmp_path, "c++/a+b.py:my_dyt")):
        variant = parse_sum(f"pre + {written}+ssmax", base)
        assert (variant.placement, variant.attention) == ("pre", "ssmax")
        assert variant.norm == reference(copy, "my_dyt")
    with pytest.raises(UserError, match="unknown variant 'a'"):
        parse_sum("pre+a+c.py:my_dyt", folder)


def test_wherever_the_file_lies_its_content_is_the_same_code(file, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "dyt.py"
    copy.write_bytes(file.read_bytes())
    assert own.refer(f"{copy}:my_dyt") == own.refer(f"{file}:my_dyt")


def test_another_content_is_another_reference(file):
    before = own.refer(f"{file}:my_dyt")
    file.write_text(file.read_text().replace("tanh", "sigmoid"))
    after = own.refer(f"{file}:my_dyt")
    assert before != after
    assert own.find(after) is own.find(after)


def test_what_python_keeps_of_an_earlier_content_is_not_executed(file):
    """It goes by size and time of a file, which another content may have, too."""
    py_compile.compile(str(file))
    then = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace("number = 7", "number = 8"))
    os.utime(file, ns=(then, then))
    assert own.find(own.refer(f"{file}:number")) == 8


def test_a_changed_file_is_refused(file):
    before = own.refer(f"{file}:my_dyt")
    file.write_text(file.read_text() + "\n# changed\n")
    with pytest.raises(UserError, match=rf"{re.escape(str(file))} has changed since '{re.escape(before)}' was read"):
        own.find(before)
    file.unlink()
    with pytest.raises(UserError, match="No such file"):
        own.find(before)


def test_code_that_nobody_admitted_is_not_at_hand():
    with pytest.raises(UserError, match=r"the code of 'dyt\.py:my_dyt@000000000000' is not available"):
        own.find("dyt.py:my_dyt@000000000000")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.py:my_dyt", "No such file"),
        (".:my_dyt", "is not a regular file"),
        ("dyt.py:a-b", r"write user code as FILE\.py:NAME"),
    ],
)
def test_bad_names(file, tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        own.refer(name, tmp_path)


def test_a_missing_name_says_what_there_is(file):
    with pytest.raises(UserError, match=r"dyt\.py does not define 'dty' \(it defines: my_dyt, number, rs\)"):
        find_norm(own.refer(f"{file}:dty"))


@pytest.mark.parametrize(
    ("find", "what"),
    [
        (find_attention, "is a norm, not attention: see @rs.attention"),
        (find_positions, "is a norm, not positions: see @rs.positions"),
        (find_optimizer, "is a norm, not optimizer: see @rs.optimizer"),
        (find_model, "is not a model: it must be a frozen dataclass derived from rs.Model"),
        (find_task, "is not a task: it must be a frozen dataclass derived from rs.Task"),
    ],
)
def test_not_a_part_of_the_right_kind(file, find, what):
    with pytest.raises(UserError, match=what):
        find(own.refer(f"{file}:my_dyt"))
    with pytest.raises(UserError, match="'number' in "):
        find(own.refer(f"{file}:number"))


def test_a_class_that_is_no_dataclass(tmp_path):
    path = tmp_path / "half.py"
    path.write_text("import resharpen as rs\n\nclass Half(rs.Model):\n    pass\n")
    with pytest.raises(UserError, match=r"frozen dataclass derived from rs\.Model"):
        find_model(own.refer(f"{path}:Half"))


def test_a_dataclass_that_is_not_frozen(tmp_path):
    path = tmp_path / "loose.py"
    head = "from dataclasses import dataclass\nimport resharpen as rs\n"
    path.write_text(f"{head}@dataclass\nclass Loose(rs.TokenTask):\n    v: int\n")
    with pytest.raises(UserError, match=r"it must be a frozen dataclass derived from rs\.Task"):
        find_task(own.refer(f"{path}:Loose"))


def test_a_file_that_cannot_be_loaded_shows_the_user_s_lines(tmp_path):
    path = tmp_path / "torn.py"
    path.write_text("import resharpen as rs\n\ndef helper():\n    return 1 / 0\n\nhelper()\n")
    with pytest.raises(own.OwnCodeError) as error:
        own.find(own.refer(f"{path}:anything"))
    text = str(error.value)
    assert text.startswith(f"{path} cannot be loaded:")
    assert f'File "{path}", line 6' in text
    assert f'File "{path}", line 4, in helper' in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert text.count("File ") == 2
    path.write_text("def broken(:\n")
    with pytest.raises(own.OwnCodeError, match="SyntaxError"):
        own.find(own.refer(f"{path}:broken"))


BROKEN = """
import resharpen as rs

@rs.attention()
def broken(e, mask, p):
    return sharpened(e, p).softmax(-1)

def sharpened(e, p):
    return e * p.n.no_such_thing
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_in_own_code_is_told_as_the_user_s(tiny, tmp_path, workers):
    """The user's frames, and none of ours or of torch, from this process and from a worker."""
    path = tmp_path / "broken.py"
    path.write_text(f"{BROKEN}\n# {tmp_path}\n")
    spec = replace(tiny, variants=["pre", f"pre+{path}:broken"], models=1)
    with pytest.raises(UserError) as error:
        run(spec, tmp_path / "r", workers=workers)
    text = str(error.value)
    assert text.startswith("variant 'pre+broken' failed in your own code:")
    assert f'File "{path}", line 6, in broken' in text
    assert f'File "{path}", line 9, in sharpened' in text
    assert text.endswith("AttributeError: 'Tensor' object has no attribute 'no_such_thing'")
    assert text.count("File ") == 2
    assert "resharpen/models" not in text
    assert "resharpen/engines" not in text


def test_frames_of_ours_below_the_user_s_are_left_out(tiny, tmp_path):
    """Their code calls ours with what is no mask: the line that does so is theirs."""
    path = tmp_path / "unmasked.py"
    path.write_text(BROKEN.replace("e * p.n.no_such_thing", "rs.masked_softmax(e, 0.5)") + f"# {tmp_path}\n")
    with pytest.raises(own.OwnCodeError) as error:
        run(replace(tiny, variants=[f"pre+{path}:broken"], models=1), tmp_path / "r", workers=1)
    text = str(error.value)
    assert f'File "{path}", line 9, in sharpened' in text
    assert "\nTypeError: " in text
    assert text.count("File ") == 2
    assert "parts/part.py" not in text


def test_an_exception_of_ours_is_not_the_user_s():
    with pytest.raises(ZeroDivisionError) as error:
        1 / 0  # noqa: B018
    assert not own.raised_by_own(error.value)


# ---- in a run --------------------------------------------------------------------------------------------------------


def test_a_run_keeps_a_copy_and_runs_only_what_it_began_with(tiny, tmp_path, file, capsys):
    out = tmp_path / "r"
    spec = replace(tiny, variants=["pre", f"pre+{file}:my_dyt"], models=1)
    store = run(spec, out, workers=1)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert list(store.experiment.variants) == ["pre", "pre+my_dyt"]
    assert set(store.table("models").filter(variant="pre+my_dyt")["norm"]) == {reference(file, "my_dyt")}
    copy = out / "code" / f"{digest[:12]}-dyt.py"
    assert copy.read_bytes() == file.read_bytes()
    before = store.table("lengths")

    kept = file.read_bytes()
    file.write_text(file.read_text().replace("tanh", "sigmoid"))
    with pytest.raises(UserError, match=r"has changed since this run started.*--trust-code"):
        load(out)
    file.unlink()
    with pytest.raises(UserError, match=r"no longer exists.*--trust-code"):
        load(out)
    with pytest.raises(SystemExit):
        main(["status", str(out)])
    assert str(copy) in capsys.readouterr().err
    main(["status", str(out), "--trust-code"])
    assert load(out, trust_code=True).table("lengths").equals(before)
    copy.write_text("raise RuntimeError('a copy that was tampered with')")
    with pytest.raises(UserError, match="no longer exists"):
        load(out, trust_code=True)
    file.write_bytes(kept)
    assert Run(out).table("lengths").equals(before)


def test_workers_execute_the_user_s_file(tiny, tmp_path, file):
    spec = replace(tiny, variants=["pre", f"pre+{file}:my_dyt"], models=2)
    one, two = (run(spec, tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert (
        one.table("lengths")
        .sort("model", "weights", "selection", "metric", "length")
        .equals(two.table("lengths").sort("model", "weights", "selection", "metric", "length"))
    )


def test_other_code_in_the_same_run_is_refused(tiny, tmp_path, file):
    run(replace(tiny, variants=[f"pre+{file}:my_dyt"], models=1), tmp_path / "r", workers=1)
    other = tmp_path / "other" / "dyt.py"
    other.parent.mkdir()
    other.write_text(file.read_text().replace("tanh", "sigmoid"))
    with pytest.raises(UserError, match=r"variant\.pre\+my_dyt\.norm: dyt\.py:my_dyt@.* -> dyt\.py:my_dyt@"):
        run(replace(tiny, variants=[f"pre+{other}:my_dyt"], models=1), tmp_path / "r", workers=1)
