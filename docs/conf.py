"""The documentation site: `make docs`."""

import os
import re
from pathlib import Path

project = "resharpen"
author = "The resharpen contributors"
copyright = "The resharpen contributors, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "_extra"]
html_theme = "furo"
html_title = "resharpen"
html_extra_path = [name for name in ("_extra",) if (Path(__file__).parent / name).exists()]
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = os.environ.get("NOTEBOOK", "off")
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
default_role = "code"
always_use_bars_union = True


ROOT = Path(__file__).parent.parent
WHOLE = {"index": "README.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages that are files of the repository."""


def setup(app):
    app.connect("source-read", put_file_first)
    app.connect("autodoc-process-docstring", escape_stars)
    app.connect("autodoc-process-signature", unquote_types)


def put_file_first(app, name: str, source: list[str]) -> None:
    """Files that are no pages lose their link, and pages are not below docs/ here."""
    if name in WHOLE:
        pages = {file: f"{page}.md" for page, file in WHOLE.items()}

        def link(found: re.Match[str]) -> str:
            text, target = found[1], found[2].removeprefix("docs/")
            target = pages.get(target, target)
            is_page = target in pages.values() or (ROOT / "docs" / target.partition("#")[0]).is_file()
            return found[0] if "://" in target else f"[{text}]({target})" if is_page else text

        source[0] = re.sub(r"\[([^]]*)\]\(([^)]*)\)", link, (ROOT / WHOLE[name]).read_text()) + source[0]


def escape_stars(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text: `[M, *shape]` does not begin an emphasis."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def unquote_types(app, what, name, obj, options, signature: str | None, returns: str | None):
    """Types of a dataclass without quotes, and defaults that can be parsed, so that types get links and short names."""
    if signature:
        signature = re.sub(r"(?<=: )'([^']*)'", r"\1", signature).replace("=<factory>", " = ...")
    return signature, returns
