"""Claims 8 and 9 on made-up scores whose verdict is known."""

import numpy as np
import polars as pl
import pytest

from resharpen.analysis.claims import remedies
from resharpen.analysis.claims.remedies import remedies_claims
from resharpen.tasks import MaxRetrieval, SetComplement


@pytest.fixture
def made_up(monkeypatch):
    """Scores around levels of (setting's training length, variant), for a task."""

    def claim(task, levels, draws=96):
        rng = np.random.default_rng(0)
        rows = [
            (f"s{s}", s, variant, draw, weights, min(1.0, level * rng.uniform(0.9, 1.1)), True)
            for (s, variant), level in levels.items()
            for draw in range(draws)
            for weights in ("train", "bema")
        ]
        columns = ["setting", "train_length", "variant", "draw", "weights", "score_new", "has_new"]
        monkeypatch.setattr(remedies, "task_of", lambda run: task)
        monkeypatch.setattr(remedies, "scores", lambda run, selection: pl.DataFrame(rows, schema=columns, orient="row"))
        return remedies_claims(None)  # pyright: ignore[reportArgumentType]

    return claim


def sct(sharper=0.3, norm=0.02, s=(2, 3)):
    names = {"pre": 0.3, "none": 0.3, "pre-final": norm, "peri": norm}
    names |= {f"{p}+{a}": sharper for p in ("pre", "none") for a in ("log-n", "ssmax")}
    return {(length, name): level for length in s for name, level in names.items()}


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        (sct(), "holds"),
        (sct(sharper=0.01), "does not hold"),  # it solves it
        (sct(sharper=0.15), "does not hold"),  # it does not solve it, and yet takes off half
        (sct(norm=0.2), "does not hold"),
        (sct(sharper=0.25), "undecided at this scale"),  # what it takes off is as large as the margin
        ({**sct(), (2, "peri"): 0.4}, "holds"),  # s = 2 is no part of it
    ],
)
def test_set_complement(made_up, levels, verdict):
    (claim,) = made_up(SetComplement(9), levels)
    assert (claim.number, claim.verdict) == (8, verdict)
    assert len(claim.findings) == 4 * 2 + 2 + 2


def test_few_draws_do_not_show_that_nothing_solves_it(made_up):
    (claim,) = made_up(SetComplement(9), sct(), draws=32)
    assert claim.verdict == "undecided at this scale"


@pytest.mark.parametrize(
    ("post", "log_n", "verdict"), [(0.4, 0.99, "holds"), (0.99, 0.99, "does not hold"), (0.4, 0.6, "does not hold")]
)
def test_maximum_retrieval(made_up, post, log_n, verdict):
    levels = {"none": 0.4, "post": post, "none+log-n": log_n, "none+ssmax": log_n}
    levels = {(16, name): min(level, 0.9) if level < 0.9 else 1.0 for name, level in levels.items()}
    (claim,) = made_up(MaxRetrieval(), levels)
    assert claim.number == 9
    assert claim.verdict == verdict


def test_runs_without_sharper_attention_say_nothing(made_up):
    assert made_up(SetComplement(9), {(3, "pre"): 0.3, (3, "peri"): 0.01}) == []
    assert made_up(MaxRetrieval(), {(16, "none"): 0.3, (16, "post"): 0.3}) == []


def test_where_all_is_solved_no_remedy_is_needed(made_up):
    """All do well without a remedy, and the norm harms: log n solves nothing, whatever the numbers."""
    levels = {(16, name): 1.1 for name in ("none", "none+log-n", "none+ssmax")} | {(16, "post"): 0.7}
    (claim,) = made_up(MaxRetrieval(), levels)
    assert claim.verdict == "does not hold"
