"""User code that declares what cannot be: refused when the file is loaded, in one line, with what is expected."""

from __future__ import annotations

import os
import re
import sys
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import refused

from resharpen import own
from resharpen.cli import main
from resharpen.errors import UserError

HEAD = "from dataclasses import dataclass\nimport numpy as np\nimport resharpen as rs\n"
ARGUMENTS = {
    "norm()": "x, p",
    "attention()": "e, mask, p",
    'positions(on="logits")': "e, p",
    "optimizer()": "theta, g, state, p",
}
SIGNATURES = {
    "none": "def f():",
    "one": "def f(x):",
    "keyword-only": "def f(*, x, e, p, mask, theta, g, state):",
    "a class": "class f:",
    "six": "def f(a, b, c, d, e, g):",
}


def load(tmp_path: Path, code: str) -> str:
    """What is said of a file; it has to be one line."""
    path = tmp_path / "own.py"
    path.write_text(f"{HEAD}{code}\n# {tmp_path}\n")
    with pytest.raises(UserError) as error:
        own.find(own.refer(f"{path}:f"))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{path}, line ")
    return str(error.value)


@pytest.mark.parametrize(("kind", "wrong"), list(product(ARGUMENTS, SIGNATURES)))
def test_functions_of_other_arguments(tmp_path, kind, wrong):
    said = load(tmp_path, f"@rs.{kind}\n{SIGNATURES[wrong]}\n    pass")
    assert f"@rs.{kind.split('(')[0]} is for a function of ({ARGUMENTS[kind]})" in said


@pytest.mark.parametrize("kind", ["norm", "attention", "positions", "optimizer"])
def test_decorators_without_brackets(tmp_path, kind):
    said = load(tmp_path, f"@rs.{kind}\ndef f(x, p):\n    return x")
    assert f"@rs.{kind} needs parentheses: @rs.{kind}(...) above def f" in said


DECLARED = {
    "@rs.norm(a=rs.learned(-3))": r"rs\.learned: size -3: must be a whole number from 1 on, or the name of a size",
    "@rs.norm(a=rs.learned(True))": "size True",
    "@rs.norm(a=rs.learned(2.5))": "size 2.5",
    '@rs.norm(a=rs.learned(start="x"))': "start of rs.learned = 'x': must be a number",
    '@rs.norm(a=rs.learned(start=float("nan")))': "start = nan: must be finite",
    "@rs.norm(a=3)": r"f: a = 3: must be rs\.learned\(\.\.\.\)",
    "@rs.norm({'r': (1, 2)})": r"f: r = \(1, 2\): must be rs\.Row\(low, high\)",
    "@rs.norm([1])": r"hyperparameters = \[1\]: must be a dict of rs\.Row",
    "@rs.norm({'a b': rs.Row(1, 2)})": "has the name 'a b': must be a Python identifier",
    "@rs.positions(on='logit')": r"unknown place of positions 'logit': did you mean 'logits'\?",
    "@rs.positions(on='nothing')": "unknown place of positions 'nothing'",
    "@rs.attention(softmax=1)": "softmax of @rs.attention = 1: must be true or false",
    "@rs.attention(scale=lambda a, b: 1)": r"scale of @rs\.attention is a function of \(p\)",
    "@rs.attention(output=lambda p: 1)": r"output of @rs\.attention is a function of \(z, p\)",
    "@rs.optimizer(hyperparameters={'r': 3})": r"r = 3: must be rs\.Row\(low, high\)",
}


@pytest.mark.parametrize("decorator", DECLARED)
def test_declarations_that_make_no_sense(tmp_path, decorator):
    said = load(tmp_path, f"{decorator}\ndef f(a, b=0, c=0, d=0):\n    return a")
    assert re.search(DECLARED[decorator], said), said


QUESTION = "rs.tasks.question.QuestionTask"
CLASSES = {
    "no sample": ("def p_star(self, inputs): pass", "does not define sample(self, words_NxT"),
    "no p_star": ("def sample(self, words): pass", "does not define p_star(self, inputs_NxL"),
    "no ask": ("def p_star(self, inputs): pass", "does not define ask(self, words_NxT, n_N)", QUESTION),
    "arguments": (
        "def sample(self): pass\n    def p_star(self, x): pass",
        "sample takes (self, words_NxT), and this is sa",
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_tasks_without_their_methods(tmp_path, capsys, name):
    body, message, *base = CLASSES[name]
    fields = "    v: int = 3\n    longest = 4\n    vocabulary = 3\n"
    code = f"@dataclass(frozen=True)\nclass f({base[0] if base else 'rs.TokenTask'}):\n{fields}    {body}\n"
    (tmp_path / "own.py").write_text(f"{HEAD}{code}# {tmp_path}\n")
    (tmp_path / "spec.toml").write_text(
        'models = 1\nsteps = 1\nvariants = ["pre"]\ntask = { kind = "own.py:f", train_lengths = [2] }'
    )
    assert message in refused(capsys, "run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()


def test_what_is_not_a_regular_file_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.py")
    for name in (tmp_path / "pipe.py", Path("/dev/zero")):
        (tmp_path / "link.py").unlink(missing_ok=True)
        (tmp_path / "link.py").symlink_to(name)
        said = refused(capsys, "run", "fig1", "--scale", "smoke", "--variants", f"pre+{tmp_path / 'link.py'}:f")
        assert f"{name} is not a regular file" in said


def test_nobody_s_home(capsys):
    said = refused(capsys, "run", "fig1", "--scale", "smoke", "--variants", "pre+~nosuchuser/x.py:f")
    assert "'~nosuchuser/x.py:f': there is no such user" in said


# ---- fuzzed ----------------------------------------------------------------------------------------------------------

VALUES = [
    "3",
    "-1",
    "None",
    "'x'",
    "(1, 2)",
    "rs.Row(1, 2)",
    "rs.learned('d')",
    "rs.learned()",
    "float('inf')",
    "print",
]
BODIES = [
    "return a",
    "raise SystemExit",
    "return None",
    "return 1 / 0",
    "import os; os._exit(0)",
    "raise KeyboardInterrupt",
]
BODIES += ["import torch; torch.set_grad_enabled(False); return a", "return a.double()", "return a[:1]", "yield a"]


@st.composite
def files(draw) -> str:
    kind = draw(st.sampled_from(["norm", "attention", "positions", "optimizer"]))
    names = st.sampled_from(["a", "hyperparameters", "on", "softmax", "scale", "state", "n", "x", "rms_epsilon", "g"])
    options = draw(
        st.dictionaries(names, st.sampled_from([*VALUES, "'logits'", "True", "{'r': rs.Row(1, 2)}"]), max_size=2)
    )
    arguments = draw(st.sampled_from(["", "a", "a, b", "a, b, c", "a, b, c, d", "*a", "a, *, b", "a, b=1", "**a"]))
    at_top = draw(
        st.sampled_from(["pass", "pass", "pass", "import sys; sys.exit(0)", "1 / 0", "import nosuchmodule", "(("])
    )
    brackets = f"({', '.join(f'{name}={value}' for name, value in options.items())})"
    decorator = f"@rs.{kind}{draw(st.sampled_from([brackets, brackets, '']))}"
    return f"{HEAD}{at_top}\n{decorator}\ndef f({arguments}):\n    {draw(st.sampled_from(BODIES))}\n"


def _fuzz(tmp_path, capsys, code: str) -> None:
    """Whatever a file is, a command ends with 0 and a finished run, or with 2 and words about the user's code."""
    (tmp_path / "own.py").write_text(code)
    spec = 'models = 1\nsteps = 2\nbatch = 4\nvariants = ["pre+own.py:f"]\nengine = "torch"\n'
    spec += "task = { v = 4, train_lengths = [2] }\n"
    (tmp_path / "spec.toml").write_text(spec)
    out = tmp_path / f"r{abs(hash(code))}"
    here = os.getcwd()
    with pytest.raises(SystemExit) as ended:  # noqa: PT012
        main(["run", str(tmp_path / "spec.toml"), "--out", str(out), "--workers", "1"])
        sys.exit(0)
    said = capsys.readouterr().err
    if ended.value.code:
        assert ended.value.code == 2, said
        assert said.startswith("resharpen: ")
        assert "Traceback" not in said
        assert "resharpen/experiments" not in said
    else:
        assert len(list(out.glob("shards/*/*/*/manifest.json"))) == 1
    assert os.getcwd() == here


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(code=files())
def test_user_code_fuzzed(tmp_path, capsys, code):
    _fuzz(tmp_path, capsys, code)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(code=files())
def test_user_code_fuzzed_for_long(tmp_path, capsys, code):
    _fuzz(tmp_path, capsys, code)
