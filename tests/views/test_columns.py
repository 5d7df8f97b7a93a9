"""Tables at 80 columns: no row loses its name."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

import resharpen as rs
from resharpen.analysis.claims import claims
from resharpen.analysis.compare import compare
from resharpen.analysis.scores import scores, task_of
from resharpen.experiments.specs.shelf import take
from resharpen.experiments.specs.spec import labels
from resharpen.views.columns import Column, print_table
from resharpen.views.tables import print_claims, print_comparison, print_scores


def shown(width, what, *args):
    console = Console(width=width, file=io.StringIO(), markup=False, emoji=False)
    what(*args, console)
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    assert not any("…" in line for line in lines)
    return lines


@pytest.fixture(scope="module")
def fig1():
    return rs.reference("fig1-laptop")


def test_columns_go_before_names_shrink():
    columns = [Column("a name"), Column("words", wraps=6), Column("x", goes=1), Column("y", goes=2)]
    rows = [("a long name", "some words", "1" * 9, "2" * 9), (), ("another", "", "3", "4")]

    def table(width):
        return [line.rstrip() for line in shown(width, lambda console: print_table(console, columns, rows))]

    assert any(line.split() == ["a", "long", "name", "some", "words", "1" * 9, "2" * 9] for line in table(60))
    assert any(line.split() == ["a", "long", "name", "some", "111111111"] for line in table(31))
    assert table(31)[-1] == "Left out at this width: y."
    assert "a long name  some" in table(20)
    assert " ".join(table(20)[-2:]).endswith("x, y.")


def test_claims_and_scores_at_80_columns(fig1):
    lines = shown(80, print_claims, claims(fig1))
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("1  peri-init, s = ") for line in lines) == 5
    metric = task_of(fig1).metrics["tvd"]
    lines = shown(80, print_scores, scores(fig1), metric, labels(fig1.experiment.settings))
    rows = [line.split()[:4] for line in lines if line.startswith("s = ")]
    assert rows == [["s", "=", str(s), v] for s in range(1, 9) for v in ("pre", "post", "peri", "peri-init")]


def test_a_comparison_at_80_columns(fig1):
    found = replace(compare(fig1, ["pre", "peri"]), variants=("peri",))
    lines = shown(80, print_comparison, found)
    tables = [line for line in lines if line.startswith("  s = ")]
    assert max(map(len, tables)) <= 80
    for s in range(1, 8):
        for lengths in ("all", "new"):
            assert sum(line.split()[:4] == ["s", "=", str(s), lengths] for line in tables) == 2  # median, best tenth


def test_labels_say_what_differs():
    def of(figure, scale="laptop"):
        return list(labels(take(figure, scale).settings).values())

    assert of("fig1")[:2] == ["s = 1", "s = 2"]
    assert of("fig2") == ["Maximum Retrieval"]
    assert of("fig3") == ["Dyck(8, 10)"]
    assert of("fig4") == ["Tomita 3", "Tomita 7"]
    assert of("fig5")[7:9] == ["v = 16, s = 8", "v = 25, s = 1"]
    assert of("fig6")[0] == "Dyck(2, 3)"
