"""The site builds without a warning, its links lead somewhere, and its numbers are those of `reference/`."""

import importlib.util
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import resharpen as rs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def load_tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_numbers_of_the_pages_are_those_of_the_references(capsys):
    pages = load_tool("pages")
    assert pages.main("--check") == 0, capsys.readouterr().out


def test_a_changed_number_is_noticed(tmp_path, monkeypatch, capsys):
    pages = load_tool("pages")
    shutil.copy(DOCS / "paper.md", tmp_path)
    text = (tmp_path / "paper.md").read_text()
    number = re.search(r"\d\.\d{3}(?= \()", text[text.index("<!-- claims -->") :])[0]
    (tmp_path / "paper.md").write_text(text.replace(number, "0.999", 1))
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    assert pages.main("--check") == 1
    assert "paper.md: not up to date" in capsys.readouterr().out
    pages.main()
    assert (tmp_path / "paper.md").read_text() == text


def test_the_api_page_has_every_public_name_once():
    listed = re.findall(r":: resharpen\.(\w+)", (DOCS / "api.md").read_text())
    assert sorted(listed) == rs.__all__


def test_every_picture_is_made_by_the_tool_and_shown_on_a_page():
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/([\w-]+\.\w+)\)", page.read_text())}
    kept = {path.name for path in (DOCS / "images").iterdir()}
    assert shown == kept == {f"{name}.png" for name in load_tool("pictures").PICTURES}


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
    pages = {path.relative_to(site).as_posix(): Links(path.read_text()) for path in site.rglob("*.html")}
    assert {"index.html", "paper.html", "api.html", "notebook.html"} <= set(pages)
    references = {path.parent.name for path in (ROOT / "reference").glob("*/reference.json")}
    for page, links in pages.items():
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
            if url.fragment and name in pages:
                assert unquote(url.fragment) in pages[name].anchors, f"{page}: {target}"
