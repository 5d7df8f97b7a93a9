"""The declared columns are those that are written, and nobody else's names."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from make_reference import write_reference

import resharpen as rs
from resharpen.analysis.scores import worst_values
from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.keeping.tables import columns_of, dtype
from resharpen.experiments.specs.schema import RESERVED, SCORES, TABLES
from resharpen.tasks import Dyck, MaxRetrieval, OwnLanguage, SetComplement, Tomita
from resharpen.views.report.write import run_data

LANGUAGE = OwnLanguage.from_data({"states": {"only": {"a": [0.5, "only"], "end": 0.5}}, "sequences": 4})
TASKS = [SetComplement(4), SetComplement(12), MaxRetrieval(longest=100, items=64), Dyck(2, 3), Tomita(3)]


def test_tables_have_the_declared_columns(tiny, tmp_path):
    run = rs.run(replace(tiny, models=2), tmp_path / "r", workers=1)
    kept = write_reference(run, rs.scores(run), tmp_path / "kept")
    setting, variant = tiny.settings[0], next(iter(tiny.variants))
    declared = {**TABLES, "models": columns_of(run.experiment, setting, variant)}
    for name, columns in declared.items():
        for path in run.directory.rglob(f"{name}.parquet"):
            assert dict(pl.read_parquet(path).schema) == {column.name: dtype(column) for column in columns}
    assert kept.table("models").columns == [column.name for column in (*declared["models"], *SCORES)]
    every = {c.name for c in (*declared["models"], *TABLES["lengths"])}
    assert set(rs.tidy_results(run).columns) == every - {"without"} | {"error"}
    assert RESERVED.isdisjoint(run.experiment.rows(run.experiment.variants[variant]))


@pytest.mark.parametrize("task", [*TASKS, LANGUAGE], ids=lambda task: task.name)
def test_reported_lengths_are_those_of_the_report(task):
    report = task.validation(0, "report")
    measured = {name: np.zeros((1, len(report.length_P)), np.float32) for name in task.measures}
    for length_S, _, _ in task.by_length(measured, report).values():
        assert list(length_S) == list(task.reported_lengths)


OWN = """
from dataclasses import dataclass
import numpy as np
import resharpen as rs

@dataclass(frozen=True)
class Coin(rs.TokenTask):
    sides: int
    longest = 4
    measures = ("tvd", "surprise")
    vocabulary = property(lambda self: self.sides + 1)
    opening = property(lambda self: self.sides)

    @property
    def metrics(self):
        surprise = rs.Metric("surprise (nats)", lower_is_better=True, worst=9.0, best=0.0, range=RANGE)
        return {**super().metrics, "surprise": surprise}

    def sample(self, words):
        return rs.below(words, self.sides)

    def p_star(self, inputs):
        p = np.full((*inputs.shape, self.vocabulary), 1 / self.sides)
        p[..., self.sides] = 0
        return p

    def score(self, logits, truth):
        expected = -(truth["p_star"] * logits.log_softmax(-1)).sum(-1)
        return {**super().score(logits, truth), "surprise": expected}
"""
SPEC = """
models = 3
steps = 4
batch = 4
checkpoints = 2
engine = "torch"
variants = ["pre", "peri"]

[task]
kind = "coin.py:Coin"
sides = 2
train_lengths = [2]
model = { layers = 1, d = 4, heads = 1, d_mlp = 4 }
"""


def own_task(directory, values: str):
    (directory / "coin.py").write_text(f"{OWN.replace('RANGE', values)}# {directory}\n")
    (directory / "spec.toml").write_text(SPEC)
    return directory / "spec.toml"


def test_values_out_of_a_metric_s_range_are_not_written(tmp_path):
    """They would be thrown away, and trained again, by whoever continues the run."""
    spec = rs.read_toml(own_task(tmp_path, "(0.0, 0.1)"))
    with pytest.raises(UserError, match=r"'lengths' is invalid and is not written: .*from 0 to 0\.1 for surprise"):
        rs.run(spec, tmp_path / "r", workers=1)


def test_a_new_metric_shows_up_by_itself(tmp_path, monkeypatch, capsys):
    """In tables, figures, the report and a reference: its task is the only place that knows of it."""
    spec = own_task(tmp_path, "(0.0, float('inf'))")
    monkeypatch.chdir(tmp_path)
    main(["run", str(spec), "--out", "r", "--workers", "1"])
    assert {"figure.png", "surprise.png"} <= {path.name for path in (tmp_path / "r").iterdir()}
    capsys.readouterr()
    main(["results", "r"])
    assert "surprise (nats) over all lengths" in capsys.readouterr().out
    main(["results", "r", "--csv"])
    assert ",surprise," in capsys.readouterr().out
    run = rs.load("r")
    assert rs.scores(run, metric="surprise")["score"].is_between(0, 9).all()
    assert worst_values(run).items() >= {"tvd": 1.0, "illegal": 1.0, "exact": 0.0, "surprise": 9.0}.items()
    facts, arrays = run_data(run)
    names = [metric["name"] for metric in facts["metrics"]]
    assert names == ["tvd", "kl", "illegal", "surprise"]  # no place is determined: there is nothing of an error
    assert np.isfinite(arrays["value"][names.index("surprise")]).all()
    kept = write_reference(run, rs.scores(run), tmp_path / "kept")
    assert set(kept.table("lengths")["metric"]) == {"tvd", "kl", "illegal", "error", "exact", "surprise"}
    main(["verify", "r", "--reference", "kept"])
