"""`resharpen parts`: all there is, at 120 columns, and engines as they say themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from resharpen.cli import main
from resharpen.experiments.running import support
from resharpen.experiments.running.support import engine_of_part, usual_settings
from resharpen.experiments.specs.variant import CATALOGS, PARTS
from resharpen.models import MODELS
from resharpen.models.model import Model
from resharpen.parts import PLACEMENTS
from resharpen.views.listings import described


def test_the_table(capsys):
    main(["parts"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-2])) <= 120
    assert heads(lines) == set(MODELS)
    found = [line.split()[0] for line in lines if line.startswith("    ") and not line.startswith("     ")]
    assert found == [name for kind in PARTS for name in CATALOGS[kind]]
    text = " ".join(" ".join(lines).split())
    for words in ("native", "torch", "(Nakanishi, 2025)", "peak_learning_rate: 0.001 to 10", "[e_i/2 - tau]_+^2"):
        assert words in text


def heads(lines):
    """Models that have a column; those with the same answers share one."""
    above = lines[: next(i for i, line in enumerate(lines) if "placement" in line)]
    return {word for line in above for word in line.split()} & set(MODELS)


def test_parts_of_one_kind(capsys):
    main(["parts", "--kind", "positions"])
    lines = capsys.readouterr().out.splitlines()
    found = [line.split()[0] for line in lines if line.startswith("    ") and not line.startswith("     ")]
    assert found == list(CATALOGS["positions"])
    with pytest.raises(SystemExit) as stopped:
        main(["parts", "--kind", "position"])
    assert stopped.value.code == 2
    assert "unknown kind of part 'position'" in capsys.readouterr().err


def test_every_part_says_what_it_is_and_whose():
    for kind in PARTS:
        for name, part in CATALOGS[kind].items():
            what, source = described(kind, name, part)
            assert 5 < len(what) < 140, name
            assert "(" not in source
            assert source or name in ("softmax", "no-dropout", "constant")


def test_engines_are_asked(monkeypatch):
    """The first setting is a minimal transformer on Set Complement, the last a retriever."""
    asked = []

    def why_not(problem, training):
        asked.append((problem.model.kind, problem.parts.attention.name, problem.optimizer.name, training))
        return "" if problem.parts.attention.name == "ssmax" else "it does not know it"

    monkeypatch.setattr(support, "why_not_native", why_not)
    minimal, _, retriever, *_ = usual_settings()
    assert engine_of_part(minimal, "attention", "ssmax") == "native"
    assert engine_of_part(retriever, "optimizer", "lion") == "torch"
    assert engine_of_part(minimal, "positions", "rope") == "torch*"
    assert engine_of_part(retriever, "attention", "adaptive-temperature") == "torch"
    assert asked == [
        ("minimal", "ssmax", "adamw", True),
        ("retriever", "softmax", "lion", True),
        ("minimal", "softmax", "adamw", True),
        ("retriever", "adaptive-temperature", "adamw", False),
    ]
    assert engine_of_part(retriever, "positions", "rope") == engine_of_part(minimal, "positions", "nape") == ""
    assert len(asked) == 4


@dataclass(frozen=True)
class Bag(Model):
    """A model that somebody adds: the mean of embeddings."""

    vocabulary: int
    kind: ClassVar[str] = "bag"
    reads: ClassVar[str] = "tokens"
    placements: ClassVar = {"none": PLACEMENTS["none"]}

    @classmethod
    def usual(cls, vocabulary):
        return cls(vocabulary)


def test_a_new_model_has_a_column_by_itself(monkeypatch, capsys):
    monkeypatch.setitem(MODELS, "bag", Bag)
    main(["parts"])
    assert heads(capsys.readouterr().out.splitlines()) == set(MODELS)
