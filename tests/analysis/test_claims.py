"""Claims on made-up scores whose verdict is known, and on a real run."""

from dataclasses import replace

import polars as pl
import pytest
from made_up import PLACEMENTS, as_the_paper_says, made_up_scores

from resharpen.analysis.claims import _lacks, claims, why_no_claims
from resharpen.analysis.claims.set_complement import claims_on
from resharpen.analysis.samples import paired_only
from resharpen.analysis.scores import scores, tidy_results
from resharpen.experiments.running.runner import Observer, run
from resharpen.experiments.running.training import Asked
from resharpen.experiments.specs.spec import Setting
from resharpen.models import Minimal
from resharpen.optim.hyperparameters import TABLE, narrowed
from resharpen.tasks import SetComplement


def made_up(level, bema=-0.005, draws=96, v=9):
    return claims_on(made_up_scores(level, bema, draws, v), str(v), worst=1.0, worth=1.0)


def test_what_the_paper_saw_holds():
    found = made_up(as_the_paper_says)
    assert [claim.number for claim in found] == [1, 2, 3]
    assert [claim.verdict for claim in found] == ["holds"] * 3
    # post, peri and peri-init and pre from s = 3 to 7: at v = 9 nothing is longer than s = 8
    assert len(found[0].findings) == 4 * 5


@pytest.mark.parametrize(
    ("without", "lacks", "verdict"),
    [
        (lambda s, p: False, (), "holds"),
        (lambda s, p: p == "post" or s == 4, ("sct-v9-s4", "post"), "holds as far as tested"),
        (lambda s, p: (s, p) == (2, "peri"), ("sct-v9-s2/peri",), "holds as far as tested"),
    ],
)
def test_a_claim_that_is_tested_in_part_says_so(without, lacks, verdict):
    have = {(f"sct-v9-s{s}", p) for s in range(1, 9) for p in PLACEMENTS if not without(s, p)}
    for claim in made_up(as_the_paper_says):
        claim = replace(claim, lacks=_lacks(have, claim))
        assert claim.lacks == lacks
        assert claim.verdict == verdict


def test_a_vocabulary_of_the_user_s_own_lacks_nothing():
    assert {_lacks(set(), claim) for claim in made_up(as_the_paper_says, v=12)} == {()}


def test_one_placement_that_fails_fails_the_claim():
    found = made_up(lambda p, s: 0.2 if p == "post" else as_the_paper_says(p, s))
    assert found[0].verdict == "does not hold"
    assert found[1].verdict == "holds"


def test_pre_that_generalizes_contradicts_the_claim():
    assert made_up(lambda p, s: 0.01)[0].verdict == "does not hold"


def test_few_draws_decide_what_they_can():
    """Of 32 draws all above a threshold, the 10% quantile could still be below it: 0.9^32 = 0.034."""
    found = made_up(as_the_paper_says, draws=32)
    assert [claim.verdict for claim in found] == ["undecided at this scale", "holds", "holds"]
    undecided = [f.what for f in found[0].findings if f.verdict == "undecided at this scale"]
    assert undecided == [f"pre, s = {s}: best TVD on new lengths" for s in range(3, 8)]
    assert {claim.verdict for claim in made_up(as_the_paper_says, draws=5)} == {"undecided at this scale"}


def test_bema_that_hurts():
    claim = made_up(as_the_paper_says, bema=+0.02)[2]
    assert [finding.verdict for finding in claim.findings] == ["does not hold"] * 2


def test_lost_models_rank_worst():
    lost = made_up_scores(as_the_paper_says).with_columns(
        score_new=pl.when((pl.col("variant") == "post") & (pl.col("draw") > 0)).then(None).otherwise("score_new")
    )
    assert claims_on(lost, "9", worst=1.0, worth=1.0)[0].verdict == "does not hold"


def test_scores_of_a_run(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    table = scores(store)
    lengths = store.table("lengths").filter(selection="best", weights="train", model="sct-v4-s2/peri/3", metric="tvd")
    row = table.filter(model="sct-v4-s2/peri/3", weights="train").row(0, named=True)
    assert row["score"] == pytest.approx(lengths["value"].mean())
    assert row["score_new"] == lengths.filter(length=3)["value"][0]
    assert {claim.number for claim in claims(store)} == {1, 2, 3}


def test_claims_are_about_the_paper_s_models_and_search(tiny, tmp_path):
    narrow = replace(tiny, models=2, hyperparameters={"peak_learning_rate": narrowed("peak_learning_rate", 1e-3)})
    for claim in claims(run(narrow, tmp_path / "narrow", workers=1)):
        assert claim.lacks[-1] == "the paper's range of peak_learning_rate"
    wider = replace(tiny, models=2, settings=(Setting(SetComplement(4), 2, Minimal(4, 5, 1, 3)),))
    store = run(wider, tmp_path / "wider", workers=1)
    assert claims(store) == []
    assert why_no_claims(store) == "claims are about the paper's models, but sct-v4-s2 has a different model"


def test_tidy_results_hold_every_hyperparameter(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    tidy = tidy_results(store)
    assert tidy.height == store.table("lengths").height
    assert {*TABLE} <= set(tidy.columns)


def test_claims_of_an_unfinished_run_use_the_draws_that_all_placements_have(tiny, tmp_path):
    ended = []

    def watch(progress):
        if progress.step == progress.steps and progress.shard not in ended:
            ended.append(progress.shard)

    tiny = replace(tiny, models=32)
    store = run(tiny, tmp_path / "r", workers=1, observer=Observer(update=watch, asked=lambda: Asked(len(ended) == 6)))
    assert len(store.done()) == 5  # the first group, and one placement of the second
    assert {claim.verdict for claim in claims(store)} <= {"undecided at this scale", "not tested"}
    assert paired_only(scores(store))["draw"].max() == 15
