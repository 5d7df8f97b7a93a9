"""Claims 5 to 7 on made-up runs whose verdict is known, and on real ones."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from resharpen.analysis.claims import claims
from resharpen.analysis.claims.languages import dyck_claims, tomita_claims
from resharpen.analysis.scores import scores
from resharpen.cli import main
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.spec import Setting
from resharpen.experiments.specs.toml import from_data
from resharpen.tasks import Dyck, OwnLanguage, Tomita
from resharpen.views.tables import print_scores

PLACEMENTS = ("pre", "post", "peri", "peri-init")
MAIN = [{"k": 8, "m": 10}]
FURTHER = [{"k": k, "m": m} for k, m in ((2, 3), (2, 5), (2, 10), (8, 3), (8, 5), (32, 3), (32, 5), (32, 10))]
CORNERS = [{"k": k, "m": m} for k in (2, 32) for m in (3, 10)]
TOMITA = [{"n": 3}, {"n": 7}]
OWN = OwnLanguage.from_data({"states": {"only": {"a": [0.5, "only"], "end": 0.5}}})
HOLDS, FAILS, OPEN, NOT_TESTED = "holds", "does not hold", "undecided at this scale", "not tested"


@dataclass
class MadeUp:
    """The two tables of a run."""

    models: pl.DataFrame
    lengths: pl.DataFrame
    experiment = SimpleNamespace(settings=(SimpleNamespace(task=Tomita(3)),))
    """All that is asked of it: what metrics there are."""

    def table(self, name):
        return getattr(self, name)

    def lose(self, models, rows=True):
        """Without the values of these models, or only these rows of them."""
        lost = pl.col("model").is_in(self.models.filter(models)["model"].to_list()) & rows
        return MadeUp(self.models, self.lengths.with_columns(value=pl.when(lost).then(None).otherwise("value")))

    def undefine(self, rows):
        """With nothing to score there."""
        nothing = {"value": None, "count": 0}
        columns = {name: pl.when(rows).then(value).otherwise(name) for name, value in nothing.items()}
        return MadeUp(self.models, self.lengths.with_columns(**columns))

    def without(self, expression):
        models = self.models.filter(~expression)
        return MadeUp(models, self.lengths.join(models, on="model", how="semi", maintain_order="left"))


def made_up(settings, level, draws=96, placements=PLACEMENTS, lengths=(100, 120, 460, 500), noise=0.05):
    """Values around level(metric, setting, placement, weights, length), trained to 100. Each draw has a factor that all
    its models share."""
    rng, models, values = np.random.default_rng(0), [], []
    for setting in settings:
        name = "-".join(f"{key}{value}" for key, value in setting.items())
        for draw in range(draws):
            of_draw = rng.uniform(0.8, 1.2)
            for placement in placements:
                model = f"{name}/{placement}/{draw}"
                models.append({"model": model, "setting": name, "variant": placement, "draw": draw, **setting})
                for metric, weights, length in (
                    (metric, weights, length)
                    for metric in ("tvd", "auc")
                    for weights in ("train", "bema")
                    for length in lengths
                ):
                    value = level(metric, setting, placement, weights, length)
                    lost = 1 - value if metric == "auc" else value  # of an AUC what it lacks is what varies
                    lost *= of_draw * (1 + noise * rng.normal())
                    values.append((model, weights, metric, length, 1 - lost if metric == "auc" else lost))
    columns = ["model", "weights", "metric", "length", "value"]
    same = {"selection": pl.lit("best"), "test": pl.lit(""), "count": pl.lit(128)}
    table = pl.DataFrame(values, schema=columns, orient="row").with_columns(**same)
    return MadeUp(pl.DataFrame(models).with_columns(train_length=pl.lit(100)), table)


def dyck(metric, setting, placement, weights, length):
    """As the paper says."""
    if metric == "auc":
        return 0.99 if placement == "peri" else 0.8
    tvd = {"pre": 0.4, "post": 0.3}.get(placement, 0.2) + 0.1 / setting["m"]
    return tvd - (0.002 * setting["k"] if weights == "bema" else 0.0)


def tomita(metric, setting, placement, weights, length):
    """As the paper says."""
    return 0.9 if setting["n"] == 3 and placement.startswith("peri") else 0.7


def verdict(test, settings, level, **how):
    (claim,) = test(made_up(settings, level, **how))
    return claim.verdict


def finding(claim, part):
    (found,) = [f for f in claim.findings if part in f.what]
    return found


@pytest.mark.parametrize(
    ("test", "settings", "level", "number", "findings"),
    [
        (dyck_claims, MAIN, dyck, 5, 3 + 4),
        (dyck_claims, FURTHER, dyck, 6, 5 + 1 + 1 + 8),
        (tomita_claims, TOMITA, tomita, 7, 4 + 6),
    ],
)
def test_what_the_paper_saw_holds(test, settings, level, number, findings):
    (claim,) = test(made_up(settings, level))
    assert (claim.number, claim.verdict, len(claim.findings)) == (number, HOLDS, findings)
    assert verdict(test, settings, level, draws=5) == OPEN


def test_a_run_of_both_kinds_of_dyck_has_both_claims():
    both = dyck_claims(made_up([*MAIN, *FURTHER[:1]], dyck, draws=16))
    assert [claim.number for claim in both] == [5, 6]
    assert len(both[1].findings) == 5 + 1  # nothing to compare k and m with


def test_placements_that_are_not_there_are_left_out():
    (claim,) = dyck_claims(made_up(MAIN, dyck, placements=("post", "peri")))
    assert [f.what.split(":")[0] for f in claim.findings] == ["post", "peri"]  # BEMA, nothing against pre
    assert verdict(dyck_claims, MAIN, dyck, placements=("none",)) == NOT_TESTED
    assert verdict(dyck_claims, FURTHER[:1], dyck, placements=("none",)) == NOT_TESTED
    (claim,) = tomita_claims(made_up(TOMITA, tomita, placements=("peri",)))
    assert claim.verdict == NOT_TESTED
    assert verdict(tomita_claims, [{"n": 5}], lambda *_: 0.7) == NOT_TESTED


def test_one_placement_that_is_no_better_fails_claim_5():
    assert verdict(dyck_claims, MAIN, lambda *at: 0.45 if at[2] == "post" else dyck(*at)) == FAILS


def test_bema_that_hurts_one_placement_fails_claim_5():
    hurts = lambda *at: dyck(*at) + 0.05 * (at[2:4] == ("peri", "bema"))  # noqa: E731
    (claim,) = dyck_claims(made_up(MAIN, hurts))
    assert [f.verdict for f in claim.findings if "BEMA" in f.what] == [HOLDS, HOLDS, FAILS, HOLDS]


def test_placements_that_are_alike_decide_nothing():
    (claim,) = dyck_claims(made_up(MAIN, lambda *at: 0.3))
    assert claim.verdict == OPEN


def test_only_new_lengths_compare_placements():
    better_when_trained = lambda *at: 0.05 if at[2] == "pre" and at[4] == 100 else dyck(*at)  # noqa: E731
    assert verdict(dyck_claims, MAIN, better_when_trained, lengths=(100, 120)) == HOLDS


def test_the_best_models_say_whether_a_logit_separates():
    peri = (pl.col("variant") == "peri") & (pl.col("draw") % 16 > 3)
    (claim,) = dyck_claims(made_up(FURTHER[:1], dyck).lose(peri, pl.col("metric") == "auc"))
    assert finding(claim, "AUC of EOS").verdict == HOLDS


def test_lost_models_rank_worst():
    made, post = made_up(MAIN, dyck), pl.col("variant") == "post"
    assert dyck_claims(made.lose(post & (pl.col("draw") == 3)))[0].verdict == HOLDS
    (claim,) = dyck_claims(made.lose(post & (pl.col("draw") % 16 > 5)))
    assert finding(claim, "post - pre").verdict == FAILS
    assert finding(claim, "post - pre").interval.estimate > 0.4  # 1 - 0.41, but for the factor of the draw
    assert finding(claim, "peri - pre").verdict == HOLDS


def test_a_model_lost_at_one_length_has_the_worst_value_there():
    made = made_up(TOMITA[:1], lambda *at: 0.6, draws=16, noise=0.0)
    (claim,) = tomita_claims(made.lose(pl.col("variant") == "peri", pl.col("length") == 120))
    # at 120 and 460 it has 0 and x where the others have x and x
    assert finding(claim, "peri - pre").interval.estimate == pytest.approx(-0.3, abs=0.02)


def test_the_rule_on_values_that_are_not_there():
    """Of scores and claims alike, see `scored_lengths`."""
    made = made_up(TOMITA[:1], lambda *at: 0.6, draws=4, placements=("pre", "peri"), noise=0.0)
    made = made.lose(pl.col("model") == "n3/pre/0")  # diverged
    made = made.lose(pl.col("model") == "n3/pre/1", pl.col("length") == 120)
    made = made.undefine(pl.col("length").is_in([460, 500]))
    table = scores(made).filter(weights="train")
    assert table["model"].to_list() == made.models["model"].to_list()
    found = {row["model"]: row for row in table.iter_rows(named=True)}
    assert (found["n3/pre/0"]["score"], found["n3/pre/0"]["score_new"]) == (None, None)
    value = found["n3/peri/1"]["score"]  # the same at every length
    assert found["n3/pre/1"]["score"] == pytest.approx(value / 2)  # 0 at 120, itself at 100, nothing beyond
    assert found["n3/pre/1"]["score_new"] == 0.0
    (claim,) = tomita_claims(made)
    differences = [found[f"n3/peri/{draw}"]["score_new"] for draw in (0, 1)] + [0.0, 0.0]  # to the worst one: 0
    assert finding(claim, "peri - pre").interval.estimate == pytest.approx(np.median(differences))


def test_a_length_at_which_every_model_is_lost_counts():
    """There was something to score: whoever is compared with these models, in this run or another, was scored there."""
    made = made_up(TOMITA[:1], lambda *at: 0.6, draws=4, placements=("pre",), noise=0.0)
    whole, lost = (scores(x)["score"].to_numpy() for x in (made, made.lose(pl.lit(True), pl.col("length") == 120)))
    assert lost == pytest.approx(whole * 3 / 4)


def test_a_setting_in_which_all_models_are_lost_keeps_them():
    made = made_up(TOMITA[:1], lambda *at: 0.6, draws=2).lose(pl.lit(True))
    table = scores(made)
    assert table.height == 2 * made.models.height
    assert table["score"].is_null().all()


def test_lengths_where_nothing_can_be_scored_are_left_out():
    made = made_up(TOMITA, tomita, lengths=(100, 120, 300, 460, 500))
    nothing = pl.col("length").is_in([300, 500])
    (claim,) = tomita_claims(made.undefine(nothing))
    (without,) = tomita_claims(MadeUp(made.models, made.lengths.filter(~nothing)))
    assert claim == without
    assert claim.verdict == HOLDS


def test_language_3_counts_to_460_and_language_7_to_the_end():
    beyond = lambda *at: 0.3 if at[2] == "peri" and at[4] == 500 else tomita(*at)  # noqa: E731
    assert verdict(tomita_claims, TOMITA[:1], beyond) == HOLDS
    (claim,) = tomita_claims(made_up(TOMITA, beyond))
    assert finding(claim, "n7, pre and peri:").verdict == FAILS
    trained = lambda *at: 0.3 if at[2] == "peri" and at[4] == 100 else tomita(*at)  # noqa: E731
    assert verdict(tomita_claims, TOMITA, trained) == HOLDS


@pytest.mark.parametrize(("gap", "expected"), [(0.02, HOLDS), (0.05, OPEN), (0.2, FAILS)])
def test_no_difference_is_one_below_the_margin(gap, expected):
    """Whichever placement is the better one."""
    for sign in (-1, 1):
        (claim,) = tomita_claims(made_up(TOMITA[1:], lambda *at, s=sign: 0.7 + s * gap * (at[2] == "post")))
        assert claim.verdict == expected
        (found,) = [f for f in claim.findings if "pre and post" in f.what]
        assert found.interval.estimate == pytest.approx(gap, abs=0.02)
        assert {f.verdict for f in claim.findings if "post" not in f.what} == {HOLDS}


def test_noise_does_not_refute_no_difference():
    """Six differences of nothing, each with a standard error of about 0.05: the largest of them is no evidence."""
    made = made_up(TOMITA[1:], lambda *_: 0.7, lengths=(100, 120), noise=1.0)
    (claim,) = tomita_claims(made)
    assert claim.verdict == OPEN
    assert max(f.interval.estimate for f in claim.findings) > 0.05


def test_the_peri_placements_that_are_no_better_fail_claim_7():
    assert verdict(tomita_claims, TOMITA, lambda *at: 0.6 if at[2] == "peri-init" else tomita(*at)) == FAILS


@pytest.mark.parametrize(
    ("level", "part"),
    [
        (lambda *at: dyck(*at) + 0.15 * (at[0] == "tvd" and at[2] == "peri-init"), "peri-init - post"),
        (lambda *at: dyck(*at) + 0.2 * (at[0] == "tvd" and at[2] == "post"), "post - pre"),
        (lambda *at: dyck(*at) + (0.004 * at[1]["k"] if at[3] == "bema" else 0.0), "largest - smallest k"),
        (lambda *at: dyck(*at) + (0.02 * at[1]["m"] if at[0] == "tvd" else 0.0), "smallest - largest m"),
        (lambda *at: 0.85 if at[0] == "auc" and at[1] == CORNERS[1] else dyck(*at), "k2-m10, peri"),
    ],
)
def test_each_part_of_claim_6_can_fail(level, part):
    (claim,) = dyck_claims(made_up(CORNERS, level, lengths=(100, 120)))
    assert claim.verdict == FAILS
    assert [f.what for f in claim.findings if f.verdict == FAILS] == [finding(claim, part).what]
    assert {f.verdict for f in claim.findings if part not in f.what} == {HOLDS}


def test_settings_count_alike():
    """The mean of the settings' medians, however many draws each has."""
    gaps = {2: 0.1, 32: 0.3}
    level = lambda metric, setting, placement, *_: 0.5 - gaps[setting["k"]] * (placement == "peri")  # noqa: E731
    made = made_up([{"k": 2, "m": 3}, {"k": 32, "m": 3}], level, noise=0.0, draws=48)
    more = made.without((pl.col("k") == 2) & (pl.col("draw") >= 16))
    pre = more.lengths.filter(metric="tvd", length=120).join(more.models.filter(variant="pre"), on="model")
    factor = {k: np.median(pre.filter(k=k)["value"]) / 0.5 for k in gaps}
    (claim,) = dyck_claims(more)
    expected = -np.mean([gaps[k] * factor[k] for k in gaps])
    assert finding(claim, "peri - pre").interval.estimate == pytest.approx(expected)


def test_an_unfinished_run_uses_the_draws_that_all_placements_have():
    made = made_up([*MAIN, *CORNERS], dyck, lengths=(100, 120))
    ahead = made.without((pl.col("variant") == "peri") & (pl.col("draw") >= 80))
    same = made.without(pl.col("draw") >= 80)
    assert dyck_claims(ahead) == dyck_claims(same)
    # a setting that has only begun speaks where it can
    begun = made.without((pl.col("k") == 2) & (pl.col("m") == 10) & (pl.col("variant") != "pre"))
    assert [claim.verdict for claim in dyck_claims(begun)] == [HOLDS, HOLDS]


def test_a_logit_with_nothing_to_tell_has_no_finding():
    """At odd lengths of Dyck(k, 1) the depth is 0, at even ones 1: no two prefixes of one length to tell apart."""
    made = made_up([{"k": 2, "m": 1}], dyck, draws=16)
    (claim,) = dyck_claims(made.undefine(pl.col("metric") == "auc"))
    assert [f.what for f in claim.findings if "AUC" in f.what] == []
    assert len(claim.findings) == 5


def test_from_a_run_to_the_terminal(tmp_path, capsys):
    spec = {"name": "x", "models": 2, "steps": 2, "batch": 2, "checkpoints": 1, "variants": ["pre", "peri"]}
    task = {"kind": "dyck", "k": 2, "m": 3, "sequences": 2, "selection_sequences": 2}
    run(from_data(spec | {"engine": "torch", "task": task}), tmp_path / "r", workers=1)
    main(["claims", str(tmp_path / "r")])
    shown = capsys.readouterr().out
    for part in ("6. Further Dyck", "peri - pre", "best AUC of EOS", "undecided", "unknown, there is one group"):
        assert part in shown
    main(["results", str(tmp_path / "r")])
    assert "TVD over all lengths" in capsys.readouterr().out


@pytest.mark.parametrize(("task", "numbers"), [(Dyck(8, 10), [5]), (Tomita(3), [7]), (OWN, [])])
def test_claims_go_by_the_kind_of_task(task, numbers):
    made = made_up(MAIN if numbers == [5] else TOMITA, lambda *_: 0.7, draws=16)
    made.experiment = SimpleNamespace(settings=(Setting(task, task.cap),), hyperparameters={})
    assert [claim.number for claim in claims(made)] == numbers


def test_scores_are_titled_by_their_metric(capsys):
    row = {"setting": "tomita-3-s100", "variant": "pre", "weights": "train", "score": 0.9, "diverged_at": None}
    metric = Tomita(3).metrics[Tomita(3).metric]
    print_scores(pl.DataFrame([row]), metric, {"tomita-3-s100": "Tomita 3"}, Console())
    said = capsys.readouterr().out
    assert "ROC AUC of the logit of 1 over all lengths" in said
    assert "90%" in said  # the best tenth
