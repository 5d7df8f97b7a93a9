"""Facts about published numbers beside our draws, for `facts.py`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results import all_compared, percent, reference
from scipy.stats import binomtest

from resharpen.analysis.anchors import Compared
from resharpen.analysis.published import (
    ABAB,
    ATTENTION,
    COUNTER,
    FLIP_FLOP,
    ON_QUESTIONS,
    SORTING,
    SPARSE_COPYING,
    SPARSE_SORTING,
    THEIR_QUERY,
    TOMITA_7,
    TWICE,
    Range,
    Source,
)
from resharpen.views.anchors import interval_text

SETS = {
    "tomita-4-trained": ("Tomita 4", (1, 100)),
    "tomita-4": ("Tomita 4", (101, 150)),
    "tomita-7": ("Tomita 7", (101, 150)),
    "abab": ("(abab)*", (61, 70)),
    "counter": ("a^n b^n c^n", (101, 150)),
}
"""Name in facts -> title of a source, and lengths."""
TRAINED, LONGER = tuple(ON_QUESTIONS)[:2]
"""Lengths of the questions on sparse attention."""


def beside(title: str, what: str, lengths: Range, hyperparameters: str = "drawn", test: str = "") -> Compared:
    """A published number and our draws."""
    return next(
        each
        for each in all_compared()
        if each.source.title.startswith(title)
        and (each.anchor.what, each.anchor.test) == (what, test)
        and (each.lengths, each.hyperparameters) == (lengths, hyperparameters)
    )


def middle(*asked: Any, **given: Any) -> str:
    """The median of our draws with its interval."""
    return interval_text(beside(*asked, **given).median)


def perfect(*asked: Any) -> str:
    """How many draws have a value of 1."""
    values_N = beside(*asked).sample.values_N
    return f"{(values_N == 1).sum()} of {len(values_N)}"


def best_draw(*asked: Any) -> str:
    return f"{100 * beside(*asked).best:.1f}"


def learned(source: Source, attention: str) -> NDArray[np.bool_]:
    """Which draws of an attention have at least 90% of the questions of trained length right."""
    return beside(source.title, attention, TRAINED).sample.values_N >= 0.9


def gain_on_longer(more: str, less: str) -> NDArray[np.float64]:
    """Differences on longer questions, of the draws where both learned to sort."""
    of_pair = beside(SPARSE_SORTING.title, f"{more} minus {less}", LONGER).sample.values_N
    both_N = learned(SPARSE_SORTING, more) & learned(SPARSE_SORTING, less)
    assert len(both_N) == len(of_pair) == reference("anchors-sparse-sort-laptop").experiment.models  # in order of draws
    return of_pair[both_N]


def sign_test(gain_N: NDArray[np.float64]) -> float:
    """Two-sided p-value for as many gains as losses; ties are left out."""
    return float(binomtest(int((gain_N > 0).sum()), int((gain_N != 0).sum())).pvalue)


def learned_sorting() -> str:
    counts = [f"{attention} {learned(SPARSE_SORTING, attention).sum()}" for attention in ATTENTION]
    return f"{', '.join(counts)} of {len(learned(SPARSE_SORTING, 'softmax'))}"


def ahead_on_longer(more: str, less: str) -> str:
    gain_N = gain_on_longer(more, less)
    behind = f" (behind in {(gain_N < 0).sum()})" if (gain_N < 0).any() else ""
    return f"{(gain_N > 0).sum()} of {len(gain_N)}{behind}"


def sparse_order() -> bool:
    """Where both learned to sort, entmax is ahead of softmax; the sign test of asentmax and entmax is undecided."""
    first_N, second_N = gain_on_longer("entmax", "softmax"), gain_on_longer("asentmax", "entmax")
    return bool((first_N > 0).mean() > 0.5 and sign_test(first_N) < 0.05 <= sign_test(second_N))


def sparse_is_behind(source: Source) -> bool:
    """At trained lengths entmax and asentmax are behind softmax in the median pair."""
    pairs = [beside(source.title, f"{name} minus softmax", TRAINED) for name in ("entmax", "asentmax")]
    return all(each.median.high < 0 for each in pairs)


def gains_agree() -> bool:
    """At 256 and 1,024 items, with their query and with ours: below there is no gain, above there are few test sets."""
    gains = [each for each in all_compared() if each.anchor.what == "gain" and each.lengths[0] in (256, 1_024)]
    return len(gains) == 4 and all(each.verdict == "consistent" for each in gains)


def sorting_is_worse() -> bool:
    """With drawn hyperparameters the median draw sorts less well than published, at all lengths."""
    found = [each for each in all_compared() if each.source is SORTING and each.hyperparameters == "drawn"]
    return bool(found) and all(each.verdict == "worse" for each in found)


def share_of_training() -> str:
    """Our questions of sorting and copying, as a share of the most that their models may train on."""
    run = reference("anchors-copy-published-laptop").experiment
    assert run.batch
    return percent(*[run.steps * run.batch / (30_000 * 64)] * 2)


def copy_learned() -> str:
    found = beside("Copying", "learned positions, offset", (1, 50))
    assert found.as_good
    draws = len(found.sample.values_N)
    return f"{round(found.as_good.estimate * draws)} of {draws}"


def copy_longer(lengths: Range) -> str:
    """The least and the most right on longer questions of the draws that are as good as published at trained ones."""
    what = ("Copying", "learned positions, offset")
    trained = beside(*what, (1, 50))
    assert trained.published
    there = beside(*what, lengths).sample.values_N[trained.sample.values_N >= trained.published[0]]
    return f"{100 * there.min():.1f} to {100 * there.max():.1f}"


def all_include_zero() -> bool:
    """Every interval of a change from `pre`, on both tests, at trained and at longer lengths."""
    medians = [each.median for each in all_compared() if each.source is FLIP_FLOP and each.anchor.less]
    return bool(medians) and all(median.low <= 0 <= median.high for median in medians)


def lstm_verdict() -> bool:
    verdicts = {
        each.anchor.test: each.verdict for each in all_compared() if each.anchor.what == "LSTM" and each.published
    }
    return verdicts == {"dense": "consistent", "sparse": "undecided"}


def positions_needed() -> bool:
    """On longer strings of (abab)* no draw without positions is right, and some draws with learned positions are."""
    longer = [each for each in all_compared() if each.source is ABAB and each.lengths[0] > 50]
    by_positions = [[each.best for each in longer if each.anchor.what.startswith(what)] for what in ("no ", "learned")]
    return max(by_positions[0]) == 0 and min(by_positions[1]) == 1


def tomita_7_is_constant() -> bool:
    """Most draws, with and without positions, are as right on longer strings as a constant distribution."""
    found = [each for each in all_compared() if each.source is TOMITA_7 and each.lengths[0] > 100]
    return bool(found) and all((np.abs(x.sample.values_N - (x.constant or 0.0)) < 0.01).mean() > 0.5 for x in found)


def counting_is_worse() -> bool:
    """At three times the trained length both medians are worse than published, and some draw without positions is not;
    at twice the length the same."""
    longer = [each for each in all_compared() if each.source is COUNTER and each.lengths[0] > 50]
    best = [each.best for each in longer if each.anchor.what == "no positions"]
    return bool(longer) and all(each.verdict == "worse" for each in longer) and min(best) == 1


def guessing() -> str:
    """Models of flip-flop whose error at reads is within five points of a guess."""
    error_N = beside("Flip-flop", "pre", (1, 64), test="dense").sample.values_N
    return f"{(error_N > 0.45).sum()} of {len(error_N)}"


def lstm_as_good() -> str:
    share = beside("Flip-flop", "LSTM", (1, 64), test="sparse").as_good
    assert share
    return f"{interval_text(share).replace(' (', '% (')}"


PUBLISHED: dict[str, Callable[[], str | bool]] = {
    "anchor-gain": lambda: middle("Maximum", "gain", (1_024, 1_024)),
    "anchor-gain-query": lambda: middle("Maximum", "gain", (1_024, 1_024), THEIR_QUERY),
    "anchor-query-consistent": gains_agree,
    "anchor-share": share_of_training,
    "anchor-sort-worse": sorting_is_worse,
    "anchor-sparse-order": sparse_order,
    "anchor-sparse-twice": lambda: ", ".join(
        f"{name} {interval_text(beside(SPARSE_SORTING.title, name, TWICE).median)}" for name in ATTENTION
    ),
    "anchor-sort-two": lambda: middle("Sorting", "two heads", (101, 150)),
    "anchor-sort-one": lambda: middle("Sorting", "one head", (101, 150)),
    "anchor-copy-learned": copy_learned,
    "anchor-copy-twice": lambda: copy_longer((51, 100)),
    "anchor-copy-thrice": lambda: copy_longer((101, 150)),
    "anchor-majority": lambda: middle("Binary", "no positions", (101, 150)),
    "anchor-sparse-learned": learned_sorting,
    "anchor-sparse-first-of": lambda: ahead_on_longer("entmax", "softmax"),
    "anchor-sparse-second-of": lambda: ahead_on_longer("asentmax", "entmax"),
    "anchor-sparse-slow": lambda: sparse_is_behind(SPARSE_SORTING),
    "anchor-sparse-first": lambda: middle(SPARSE_SORTING.title, "entmax minus softmax", LONGER),
    "anchor-sparse-copy-trained": lambda: middle(SPARSE_COPYING.title, "softmax", TRAINED),
    "anchor-sparse-copy-twice": lambda: middle(SPARSE_COPYING.title, "softmax", TWICE),
    "anchor-sparse-copy-slow": lambda: sparse_is_behind(SPARSE_COPYING),
    "anchor-sparse-copy": lambda: middle(SPARSE_COPYING.title, "asentmax minus softmax", TRAINED),
    **{
        f"anchor-sets-{name}-{which}": partial(middle, title, what, lengths)
        for name, (title, lengths) in SETS.items()
        for which, what in (("learned", "learned positions, offset"), ("none", "no positions"))
    },
    "anchor-closing-peri": lambda: middle("Dyck", "peri", (701, 1_400)),
    "anchor-closing-peri-init": lambda: middle("Dyck", "peri-init", (701, 1_400)),
    "anchor-closing-best": lambda: best_draw("Dyck", "peri-init", (701, 1_400)),
    "anchor-closing-pre": lambda: middle("Dyck", "pre", (701, 1_400)),
    "anchor-lstm": lambda: middle("Flip-flop", "LSTM", (1, 64), test="sparse"),
    "anchor-tomita-7": tomita_7_is_constant,
    "anchor-tomita-7-constant": lambda: percent(*[beside("Tomita 7", "no positions", (101, 150)).constant or 0.0] * 2),
    "anchor-abab": positions_needed,
    "anchor-abab-perfect": lambda: perfect("(abab)*", "learned positions, offset", (61, 70)),
    "anchor-counter-twice": lambda: perfect("a^n b^n c^n", "no positions", (51, 100)),
    "anchor-counter-thrice": lambda: perfect("a^n b^n c^n", "no positions", (101, 150)),
    "anchor-counter": counting_is_worse,
    "anchor-lstm-verdict": lstm_verdict,
    "anchor-lstm-as-good": lstm_as_good,
    "anchor-chance": guessing,
    "anchor-flip-flop": lambda: middle("Flip-flop", "pre", (1, 64), test="dense"),
    "anchor-flip-flop-sparse": lambda: middle("Flip-flop", "pre", (1, 64), test="sparse"),
    "anchor-changes": all_include_zero,
    "anchor-window": lambda: middle("Flip-flop", "pre+window minus pre", (65, 192), test="dense"),
}
