"""Comparisons as they are shown: the table, the figure, the study; and the commands that show them."""

from dataclasses import replace

import pytest
from rich.console import Console

from resharpen.analysis.compare import compare
from resharpen.cli import main
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs import shelf
from resharpen.experiments.specs.shelf import Entry, Size
from resharpen.experiments.specs.spec import Setting
from resharpen.tasks import SetComplement
from resharpen.views.compare_figure import draw_comparison, draw_remedies, styles
from resharpen.views.tables import print_comparison


@pytest.fixture
def store(tiny, tmp_path):
    return run(replace(tiny, variants=["pre", "peri", "pre+log-n"], models=6), tmp_path / "r", workers=1)


def text_of(found, width=120) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        print_comparison(found, console)
    return console.export_text()


def test_table(store):
    said = text_of(compare(store))
    assert "Gain in TVD over 'pre', pair by pair (lower is better" in said
    assert "pre+log-n against pre on new lengths, mean of settings: median" in said
    assert "6 draws per setting" in said
    assert "0 of 36 models diverged" in " ".join(said.split())
    assert all(len(line) <= 120 for line in said.splitlines() if "against" not in line)


def test_a_narrow_terminal_keeps_the_names_of_rows(store):
    said = text_of(compare(store), width=80)
    lines = said.splitlines()
    for name in ("pre+log-n", "s = 1 new", "mean new"):
        assert sum(" ".join(line.split()).startswith(name) for line in lines) >= 2, name
    sentences = ("against", "Parameters:", "Warning:")  # which the terminal wraps
    assert all(len(line) <= 80 for line in lines if not any(word in line for word in sentences))


def test_figure_has_what_it_takes_to_read_it(store):
    figure = draw_comparison(compare(store))
    above, below = figure.subfigs
    assert "6 models per setting and variant, 0 of 36 diverged" in figure.get_suptitle()
    assert [axes.get_title() for axes in above.axes] == [
        "median gain (new lengths)",
        "gain of the best tenth (new lengths)",
    ]
    assert [label.get_text() for label in above.axes[0].get_yticklabels()][:2] == [
        "s = 1: peri",
        "s = 1: pre+log-n",
    ]
    labels = [text.get_text() for text in below.legends[0].get_texts()]
    assert labels == ["pre", "peri", "pre+log-n"]
    assert below.axes[0].get_xlabel() == "models tried, k"
    assert "tokens" in below.axes[-1].get_xlabel()


def test_two_dozen_variants_look_different():
    looks = styles([str(i) for i in range(24)])
    assert len({(look["color"], look["marker"], look["linestyle"]) for look in looks.values()}) == 24


def test_a_column_for_every_setting(store):
    found = compare(store)
    figure = draw_remedies([found, compare(store, ["peri"])])
    assert [axes.get_title() for axes in figure.axes] == ["sct-v4, s = 1", "sct-v4, s = 2", "", ""] * 2
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["peri", "pre+log-n"]


def test_compare_from_the_command_line(store, tmp_path, capsys):
    main(["compare", str(store.directory), "peri", "--baseline", "pre+log-n", "--out", str(tmp_path / "o")])
    assert "peri against pre+log-n" in capsys.readouterr().out
    assert (tmp_path / "o" / "comparison.svg").exists()
    with pytest.raises(SystemExit) as exit_:
        main(["compare", str(store.directory), "--with", str(tmp_path / "nowhere")])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_study_runs_in_turn_and_continues(monkeypatch, tmp_path, capsys):
    def entry(*variants):
        return Entry(
            "small", lambda scale: (Setting(SetComplement(4), 3), Setting(SetComplement(4), 2)), variants, sizes
        )

    sizes = (Size(2, 3, 1, batch=4),) * 4
    monkeypatch.setitem(shelf.SHELF, "one", entry("pre", "pre+log-n"))
    monkeypatch.setitem(shelf.SHELF, "two", entry("none", "post"))
    monkeypatch.setitem(shelf.STUDIES, "both", ("one", "two"))
    command = ["run", "both", "--scale", "smoke", "--engine", "torch", "--workers", "1", "--out", str(tmp_path)]
    main(command)
    capsys.readouterr()
    main(command)
    said = capsys.readouterr().out
    assert said.count("all 4 shards are finished") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"one-smoke", "two-smoke", "both-smoke.png", "both-smoke.svg"}
    assert "pre+log-n against pre" in said  # not what the paper claims: it ends with the comparison
    assert "post against none" not in said
    with pytest.raises(SystemExit):
        main([*command, "--variants", "pre"])
    assert "one of one, two" in capsys.readouterr().err
