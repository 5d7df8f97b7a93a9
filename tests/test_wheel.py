"""The package as it is installed: all files are in it, and it runs where there is nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("wheel")  # one for all


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def files_below(directory: Path) -> set[str]:
    found = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"resharpen/{path.relative_to(directory).as_posix()}" for path in found}


def test_every_file_is_in_the_wheel(wheel):
    """Kernels, the pages of the report and what else is not Python; the references where the package looks for them."""
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = files_below(ROOT / "src" / "resharpen")
    expected |= {name.replace("resharpen/", "resharpen/reference/", 1) for name in files_below(ROOT / "reference")}
    assert {name for name in names if name.startswith("resharpen/")} == expected
    for suffix in (".cpp", ".h", ".html", ".css", ".js", "py.typed", "reference/README.md"):
        assert any(name.endswith(suffix) for name in expected), suffix
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith("METADATA"))
    about = Parser().parsestr(archive.read(name).decode())
    for field in ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords", "Classifier"):
        assert about[field], field
    assert about.get_payload().startswith("# resharpen")
    assert "ziglang>=0.13; extra == 'compiler'" in about.get_all("Requires-Dist")


@pytest.mark.slow
def test_a_figure_from_a_bare_environment(wheel, tmp_path):
    """Two or three minutes: torch has to be installed."""
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(str(programs / "pip"), "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel))
    where = run(str(programs / "python"), "-c", "import resharpen; print(resharpen.__file__)")
    assert str(tmp_path) in where
    out = tmp_path / "run"
    assert "(native engine)" in run(str(programs / "resharpen"), "run", "fig1", "--scale", "smoke", "--out", str(out))
    assert (out / "figure.png").stat().st_size > 10_000
    assert run(str(programs / "resharpen"), "verify", "--help")
