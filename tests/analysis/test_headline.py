"""The sentence that a report begins with, for every kind of verdict."""

from dataclasses import replace

import pytest

from resharpen.analysis.claims.finding import Claim, Finding
from resharpen.analysis.compare import compare
from resharpen.analysis.headline import described, headline
from resharpen.analysis.statistics import Interval
from resharpen.analysis.verdict import Gain
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.variant import parse_sum


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from report_page import small

    variants = {name: parse_sum(name) for name in ("pre", "peri", "none+log-n")}
    experiment = small("three", models=8, steps=2, checkpoints=1, variants=variants)
    return run(experiment, tmp_path_factory.mktemp("runs") / "r", workers=1)


def judged(found, **verdicts):
    """A comparison with these (verdict, gain) of variants."""
    names = {"peri": "peri", "other": "none+log-n"}
    given = {names[name]: x for name, x in verdicts.items()}

    def effect(old):
        verdict, gain = given[old.variant]
        interval = Interval(gain, gain - 0.01, gain + 0.01, 0.5)
        median = Gain(interval, 0.5, verdict, 48 if verdict == "undecided" else None)
        return replace(old, median=median, wins=Interval(0.75, 0.6, 0.9, 0.5))

    return replace(found, effects=tuple(effect(old) for old in found.effects))


@pytest.mark.parametrize(
    ("peri", "other", "said"),
    [
        (
            ("helps", 0.228),
            ("undecided", 0.01),
            "A norm after attention helps: peri beats pre by 0.23 TVD on inputs longer than trained, in 75% of 16 "
            "pairs",
        ),
        (
            ("helps", 0.1),
            ("helps", 0.2),  # not the norm, then
            "none+log-n beats pre by 0.2 TVD on inputs longer than trained, in 75% of 16 pairs",
        ),
        (
            ("no difference", 0.001),
            ("hurts", -0.3),
            "No variant beats pre; none+log-n is worse than pre by 0.3 TVD on inputs longer than trained, in 25% of 16 "
            "pairs",
        ),
        (
            ("undecided", 0.03),
            ("no difference", 0.0),
            "Undecided whether peri beats pre: +0.03 (+0.02 to +0.04) TVD on inputs longer than trained; about 48 more "
            "models per setting would decide it",
        ),
        (
            ("no difference", 0.001),
            ("no difference", 0.0),
            "No difference: peri, none+log-n and pre are within 0.02 TVD on inputs longer than trained",
        ),
        (
            ("not trained enough to tell", 0.5),
            ("not trained enough to tell", 0.0),
            "Not trained enough to tell: neither pre nor peri, none+log-n beats a constant guess",
        ),
    ],
)
def test_the_headline_says_what_was_found(store, peri, other, said):
    assert headline(store, judged(compare(store), peri=peri, other=other)) == said


def test_a_run_without_a_comparison_says_how_good_its_models_are(store):
    assert headline(store, None).split(":")[0] in store.experiment.variants
    assert "median TVD of 0." in headline(store, None)


def test_a_variant_is_described_by_its_norms_and_unusual_parts(store):
    assert described(store, "pre") == "norm before attention"
    assert described(store, "none+log-n") == "no norm; log-n attention"


def test_a_claim_counts_what_holds_and_names_the_rest():
    def finding(what, p, estimate):
        return Finding(what, Interval(estimate, 0.0, 1.0, p), "<", 0.5, p)

    findings = [finding("peri, s = 3: best", 0.0, 0.1), finding("pre, s = 7: best", 0.5, 0.1)]
    findings += [finding("pre, s = 4: best", 0.9, 0.1), finding("post - pre: median", 0.0, 0.9)]
    claim = Claim(1, "text", tuple(findings))
    assert claim.counts == "1 of 4 findings hold; refuted: post - pre; open: pre, s = 4, 7"
    share = Finding("share", Interval(0.2, 0.0, 1.0, 1.0), ">", 0.5, share=True)
    assert not share.bounded
    assert replace(share, share=False).bounded
