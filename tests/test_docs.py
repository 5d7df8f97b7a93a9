"""The site builds without a warning, its links lead somewhere, and its numbers are those of `reference/`."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pages
import pictures
import pytest

import resharpen as rs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_numbers_of_the_pages_are_those_of_the_references(capsys):
    assert pages.main("--check") == 0, capsys.readouterr().out


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the pages with facts."""
    for folder in ("docs", "reference"):
        (tmp_path / folder).mkdir()
    for name in ("README.md", "docs/paper.md", "docs/anchors.md", "reference/README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path


TABLE, SENTENCE = r"(?<=: )\d\.\d{3}(?= \()", r"(?<=-->)0\.\d+(?=<!---->)"


@pytest.mark.parametrize(
    ("page", "number"), [("docs/paper.md", TABLE), ("docs/paper.md", SENTENCE), ("README.md", SENTENCE)]
)
def test_a_changed_number_is_noticed(copy, capsys, page, number):
    text = (copy / page).read_text()
    (copy / page).write_text(re.sub(number, "0.999", text, count=1))
    assert pages.main("--check") == 1
    assert capsys.readouterr().out == f"{page}: not up to date\n"
    assert pages.main() == 0
    assert (copy / page).read_text() == text


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("It is <!--fig9-->1<!---->.", "there is no fact 'fig9' in tools/facts.py"),
        ("It is <!--hero-pre-->0.24.", "a mark without its other end: <!--hero-pre-->"),
        ("- <!--fig2-models-->96<!---->", "a mark begins a line, which is then HTML: - <!--fig2-models-->96<!---->"),
    ],
)
def test_a_wrong_mark_is_an_error(copy, capsys, line, problem):
    (copy / "README.md").write_text(f"{(copy / 'README.md').read_text()}\n{line}\n")
    for options in (["--check"], []):
        assert pages.main(*options) == 1
        assert capsys.readouterr().out == f"README.md: {problem}\n"


def test_a_statement_that_is_not_true_is_an_error(copy, monkeypatch, capsys):
    monkeypatch.setitem(pages.FACTS, "fig2-post", lambda: False)
    assert pages.main() == 1
    problem = "no longer true, to be rewritten: no difference is found (fig2-post in tools/facts.py)"
    assert capsys.readouterr().out == f"README.md: {problem}\ndocs/paper.md: {problem}\n"


def test_a_fact_that_no_page_has_is_an_error(copy, monkeypatch, capsys):
    monkeypatch.setitem(pages.FACTS, "fig9", lambda: "1")
    assert pages.main("--check") == 1
    assert capsys.readouterr().out == "tools/facts.py: no page has the fact 'fig9'\n"


def test_the_api_page_has_every_public_name_once():
    listed = re.findall(r":: resharpen\.(\w+)", (DOCS / "api.md").read_text())
    assert sorted(listed) == rs.__all__


def test_every_picture_is_made_by_the_tool_and_shown_on_a_page():
    texts = [path.read_text() for path in (ROOT / "README.md", *DOCS.glob("*.md"))]
    shown = {name for text in texts for name in re.findall(r"images/([\w-]+\.\w+)\)", text)}
    kept = {path.name for path in (DOCS / "images").iterdir()}
    assert shown == kept == {f"{name}.png" for name in pictures.PICTURES}


class Links(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(out / "trees"),
        str(DOCS),
        str(out),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return out


def test_links_of_the_site_lead_somewhere(site):
    built = {path.relative_to(site).as_posix(): Links(path.read_text()) for path in site.rglob("*.html")}
    assert {"index.html", "paper.html", "api.html", "notebook.html"} <= set(built)
    references = {path.parent.name for path in (ROOT / "reference").glob("*/reference.json")}
    for page, links in built.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc or page.startswith("_modules/"):
                continue
            path = (site / page).parent / unquote(url.path) if url.path else site / page
            name = path.resolve().relative_to(site).as_posix()
            if name.startswith("reports/"):  # `make docs` writes them
                assert Path(name).stem in references, f"{page}: {target}"
                continue
            assert path.exists(), f"{page}: {target}"
            if url.fragment and name in built:
                assert unquote(url.fragment) in built[name].anchors, f"{page}: {target}"
