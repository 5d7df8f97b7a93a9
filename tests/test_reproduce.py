"""Everything in one go: runs, theory and one report; a second time nothing is trained again."""

import pytest

from resharpen.cli import main
from resharpen.experiments.specs import shelf
from resharpen.experiments.specs.shelf import Entry, Size
from resharpen.experiments.specs.spec import Setting
from resharpen.tasks import SetComplement


@pytest.fixture(autouse=True)
def small_shelf(monkeypatch):
    def entry(s: int, run: str | None = None) -> Entry:
        sizes = (*[Size(2, 4, 2)] * 3, Size(3, 4, 2))
        return Entry("small", lambda scale: (Setting(SetComplement(4), s),), ("pre", "peri"), sizes, run=run)

    figures = {"fig1": entry(1), "fig6": entry(2, "fig6-7"), "fig7": entry(2, "fig6-7"), "a": entry(1), "b": entry(2)}
    monkeypatch.setattr(shelf, "SHELF", figures)
    monkeypatch.setattr(shelf, "STUDIES", {"both": ("a", "b")})


def test_all_of_it_and_then_nothing_is_left_to_do(tmp_path, capsys):
    out = tmp_path / "all"
    for expected in ("shards to train", "shards are finished"):
        main(["reproduce", "--scale", "smoke", "--out", str(out), "--workers", "1"])
        said = capsys.readouterr().out
        assert said.count(expected) == 4, "figures of the same models are one run"
        assert "Finished. Report" in said
    page = (out / "report.html").read_text()
    assert page.count('class="run"') == 4
    assert "<h2>Theory</h2>" in page
    assert "holds" in page
    assert (out / "both-smoke.png").exists()


def test_some_of_it(tmp_path, capsys):
    main(["reproduce", "--scale", "smoke", "--only", "fig7", "--out", str(tmp_path), "--workers", "1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig6-7-smoke", "report.html"]


@pytest.mark.parametrize(("only", "said"), [("fig9", "unknown figure 'fig9'"), ("theory", "resharpen theory")])
def test_what_is_not_there_is_one_line(only, said, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "--only", only, "--out", str(tmp_path / "x")])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
