"""A small run and its report in a real browser, shared by all tests of the report."""

import os
import shutil
from unittest import mock

import pytest
from report_page import HOSTILE, VARIANT, opened, small

from resharpen.experiments.running.runner import run
from resharpen.views.report import write
from resharpen.views.report.write import run_data, write_report

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"
)


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return run(small(HOSTILE), tmp_path_factory.mktemp("<b>runs") / "<i>r", workers=1)


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if chromium is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("there is no chromium: see `make chromium`")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(store, tmp_path_factory):
    """Of the report of the small run, with hostile names in it."""
    path = tmp_path_factory.mktemp("out") / "report.html"
    with mock.patch.object(write, "run_data", hostile):
        write_report([store], path)
    return path.as_uri()


@pytest.fixture(scope="module")
def page(browser, address):
    """One page for all: it must have no error and ask for nothing but itself."""
    page, problems = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "blob:")) else problems.append(asked.url))
    opened(page, address)
    yield page
    assert problems == []
    assert page.evaluate("window.hacked") is None


def hostile(*asked):
    """What no spec allows: names that would like to be markup, wherever the page shows one."""
    facts, arrays = run_data(*asked)
    facts["variants"][0] = VARIANT
    facts["hyperparameters"][0]["name"] = facts["unit"] = facts["headline"] = VARIANT
    for finding in [finding for claim in facts["claims"] for finding in claim["findings"]]:
        finding["what"] = VARIANT
    found = facts["comparison"]
    found["baseline"] = VARIANT
    for effect in found["effects"]:
        effect["best"]["more"] = 48  # there are too few models to tell
    for importance in found["importance"]:
        importance["hyperparameter"] = VARIANT
    for curve in found["bestOf"]:
        curve["variant"] = VARIANT if curve["variant"] == "pre" else curve["variant"]
    for importance in found["importance"]:
        importance["variant"] = VARIANT if importance["variant"] == "pre" else importance["variant"]
    return facts, arrays
