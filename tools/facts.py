"""Facts in the sentences of README.md, docs/ and reference/README.md: the text between `<!--NAME-->` and `<!---->`.

A fact is a function without arguments. If it returns a text, `tools/pages.py` writes it there. True and False say
whether the statement that stands there is true: if not, `tools/pages.py` fails, and the sentence must be rewritten.

No mark may begin a line or a list item, because Markdown would take the line for HTML: put it inside the **bold**.
"""

from collections.abc import Callable, Iterable
from itertools import takewhile

import polars as pl
from published_facts import PUBLISHED
from results import (
    CLAIMS,
    RANGES,
    by_reading,
    per_cell,
    percent,
    read_study,
    reference,
    span,
    summary,
    tested,
)

import resharpen as rs
from resharpen.analysis.claims.finding import Claim, Finding
from resharpen.analysis.claims.positions import BASE, losses
from resharpen.analysis.claims.reading import THRESHOLD
from resharpen.analysis.dispersion import gains_from
from resharpen.analysis.published import SOFTMAX
from resharpen.analysis.samples import MEDIAN, by_draw, median_of, paired_differences
from resharpen.analysis.statistics import quantile
from resharpen.analysis.verdict import MARGIN
from resharpen.parts import PAPER_PLACEMENTS

FIG1, FIG2, FIG3, FIG4, FIG5 = (f"fig{n}-overnight" for n in range(1, 6))
FIG67 = "fig6-7-overnight"
FIGURES = {1: FIG1, 2: FIG2, 3: FIG3, 4: FIG4, 5: FIG5, 6: FIG67, 7: FIG67}
SCT_LENGTHS = {9: range(1, 8), 16: range(1, 9), 25: range(1, 9)}
"""v -> training lengths with longer inputs, in the tables of figures 1 and 5."""

WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven")
QUANTILES = {
    "default": "the 10% quantile",
    "best of 48": "the expected best of 48",
    "2%": "the 2% quantile",
    "5%": "the 5% quantile",
    "median": "the median",
}
"""Readings of what is best -> what the pages call them."""
CHECKPOINTS = ("default", "last", "best-trained")


# ---- reading the tables ----------------------------------------------------------------------------------------------


def best(name: str, row: str, column: str) -> float:
    """The best tenth of the models, as in the table of a reference."""
    return summary(name)[1][row, column][0]


def median(name: str, row: str, column: str) -> float:
    return summary(name)[1][row, column][1]


def sct_best(v: int, placement: str, s: int) -> float:
    return best(FIG1, placement, f"s = {s}") if v == 9 else best(FIG5, f"{placement}, v = {v}", f"s = {s}")


def at_least(value: float) -> str:
    """Rounded down: `0.132` of 0.1327."""
    return f"{int(1_000 * value) / 1_000:.3f}"


def listed(names: Iterable[object]) -> str:
    """`1, 2 and 3`"""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def claim(name: str, number: int) -> Claim:
    return next(claim for claim in tested(name) if claim.number == number)


def findings(name: str, number: int, *starts: str) -> list[Finding]:
    """The findings of a claim that begin with one of these."""
    return [finding for finding in claim(name, number).findings if finding.what.startswith(starts)]


def all_are(verdict: str, name: str, number: int, *starts: str) -> bool:
    return {finding.verdict for finding in findings(name, number, *starts)} == {verdict}


def hold(name: str, number: int, *starts: str) -> bool:
    return all_are("holds", name, number, *starts)


def undecided(name: str, number: int, *starts: str) -> bool:
    return all_are("undecided at this scale", name, number, *starts)


def value(finding: Finding) -> str:
    """The number of a finding with its interval."""
    found = finding.interval
    return f"{found.estimate:.3f} ({found.low:.3f} to {found.high:.3f})"


def verdicts() -> str:
    """How many claims of the paper hold; those on Set Complement with nine tokens."""
    numbers: dict[str, list[int]] = {"holds": [], "does not hold": [], "undecided at this scale": []}
    for of in (of for name in dict.fromkeys(FIGURES.values()) if name != FIG5 for of in tested(name)):
        numbers[of.verdict].append(of.number)
    held, failed, rest = (sorted(found) for found in numbers.values())
    verbs = (("holds", "hold"), ("does not hold", "do not hold"), ("is undecided", "are undecided"))
    each = zip((held, failed, rest), verbs, strict=True)
    counts = [f"{WORDS[len(of)]} {verb[len(of) > 1]} ({listed(of)})" for of, verb in each if of]
    return f"Of the paper's seven claims {listed(counts)}, the first three for Set Complement with nine tokens."


def shares_of_training() -> str:
    """Sequences that the models of every figure are trained on, as a share of the paper's."""
    shares: dict[str, list[int]] = {}
    for number, name in FIGURES.items():
        ours, paper = reference(name).experiment, rs.figure(f"fig{number}", "paper")
        assert ours.batch
        assert paper.batch
        share = 100 * ours.steps * ours.batch / (paper.steps * paper.batch)
        shares.setdefault(f"{share:.2g}%" if share < 100 else "all", []).append(number)
    return listed(f"{share} (figure{'s' if len(of) > 1 else ''} {listed(of)})" for share, of in shares.items())


# ---- models per cell -------------------------------------------------------------------------------------------------


def models(name: str) -> str:
    return span(*per_cell(reference(name)))


def so_far(name: str) -> str:
    """The number of models per cell, in brackets; nothing if there are as many as the scale has."""
    least, whole = per_cell(reference(name))[0], reference(name).experiment.models
    return "" if least >= whole else f" ({models(name)} of {whole} models so far)"


def kept(name: str) -> str:
    """The models of a reference, of those that the scale has."""
    experiment, there = reference(name).experiment, reference(name).table("models").height
    whole = experiment.models * len(experiment.settings) * len(experiment.variants)
    return f"{there:,} models" if there >= whole else f"{there:,} of {whole:,} models"


def complete_figures() -> str:
    """The figures that have as many models per cell as the scale, and the draws of the others."""
    others = {figure: name for figure, name in FIGURES.items() if so_far(name)}
    if not others:
        return "All figures are complete at the scale `overnight`"
    counts = [count for name in others.values() for count in per_cell(reference(name))]
    complete, draws = [figure for figure in FIGURES if figure not in others], span(min(counts), max(counts))
    are = f"Figures {listed(complete)} are" if len(complete) > 1 else f"Figure {complete[0]} is"
    return f"{are} complete at the scale `overnight`. The others have {draws} draws per cell so far"


def decided(word: str) -> str:
    """How many of the findings of figures 3 to 7 about the `median`, or about the `best`, are decided."""
    found = {
        (name, of.text.split(":")[0], f.what): f.verdict  # claims 1 and 2 share findings; a claim names its task first
        for name in (FIG3, FIG4, FIG5, FIG67)
        for of in tested(name)
        for f in of.findings
        if word in f.what
    }
    return f"{sum(verdict != 'undecided at this scale' for verdict in found.values())} of {len(found)}"


def none_diverged() -> bool:
    return all(reference(name).table("models")["diverged_at"].is_null().all() for name in FIGURES.values())


# ---- figures 1 and 5: Set Complement ---------------------------------------------------------------------------------

AFTER = ("post", "peri")
"""Findings that begin with it are about a norm after attention, those of peri-init included."""


def fig1_generalizes() -> bool:
    """A norm after attention from s = 3: every best tenth is below the threshold, no finding is refuted."""
    return all(f.as_claimed and f.verdict != "does not hold" for f in findings(FIG1, 1, *AFTER))


def fig1_open() -> list[str]:
    """Cells with a norm after attention that are undecided."""
    return [f.what.split(":")[0] for f in findings(FIG1, 1, *AFTER) if f.verdict != "holds"]


def fig1_held() -> str:
    found = findings(FIG1, 1, *AFTER)
    return f"{sum(f.verdict == 'holds' for f in found)} of {len(found)}"


def fig1_pre_share() -> str:
    """The share of pre models below the threshold on new lengths, the least and the most over s = 5, 6, 7."""
    rows = reference(FIG1).table("models").filter(pl.col("train_length").is_between(5, 7), variant="pre")
    shares = [
        (of["score_new_train"].fill_null(1.0) < THRESHOLD).to_numpy().mean() for of in rows.partition_by("train_length")
    ]
    return percent(min(shares), max(shares))


def fig1_bema_better(least_lag: float, most_lag: float) -> str:
    """The share of models with such an EMA lag whose mean TVD over all lengths is lower with BEMA."""
    rows = reference(FIG1).table("models").filter(pl.col("ema_lag").is_between(least_lag, most_lag))
    share = (rows["score_bema"].fill_null(1.0) < rows["score_train"].fill_null(1.0)).to_numpy().mean()
    return percent(share, share)


def same_order() -> bool:
    """Best tenths, at every v: at s = 1 peri is first and post last; from s = 2 on pre is last."""
    for v, lengths in SCT_LENGTHS.items():
        for s in lengths:
            tvd = {placement: sct_best(v, placement, s) for placement in PAPER_PLACEMENTS}
            first, *_, last = sorted(tvd, key=tvd.__getitem__)
            if last != ("post" if s == 1 else "pre") or (s == 1 and first != "peri"):
                return False
    return True


def fig5_generalize_from(v: int, *placements: str) -> str | bool:
    """The first training length from which on all best tenths of the placements are below the threshold."""
    last = max(s for s in SCT_LENGTHS[v] if any(sct_best(v, placement, s) >= THRESHOLD for placement in placements))
    return f"{last + 1}" if last < max(SCT_LENGTHS[v]) else False


def fig5_least(placement: str, lengths: Iterable[int]) -> str:
    """The lowest best tenth of a placement over these training lengths and both v."""
    return at_least(min(sct_best(v, placement, s) for v in (16, 25) for s in lengths))


def fig5_peri_init() -> str:
    """The best tenths of peri-init at v = 16 from s = 5 on, the least and the most."""
    found = [sct_best(16, "peri-init", s) for s in range(5, 9)]
    return span(f"{min(found):.2f}", f"{max(found):.2f}")


# ---- figure 2: Maximum Retrieval -------------------------------------------------------------------------------------


def fig2_post_gap() -> str:
    return value(findings(FIG2, 4, "post - pre")[0])


def fig2_far_best() -> str | bool:
    """The best tenth of peri and of no norm at the most items, if that of peri is not better."""
    farthest = summary(FIG2)[0][-1]
    peri, none = (best(FIG2, variant, farthest) for variant in ("peri", "none"))
    return peri <= none and f"{peri:.3f} against {none:.3f}"


def fig2_median_gains_more() -> bool:
    """At every number of items of the table peri gains more over none in the median than in the best tenth."""
    columns, cells = summary(FIG2)
    gains = [[a - b for a, b in zip(cells["peri", c], cells["none", c], strict=True)] for c in columns]
    return all(of_best < of_median for of_best, of_median in gains)


def fig2_bema_better() -> str:
    """The share of models whose mean accuracy on new lengths is higher with BEMA: the least and most of a placement."""
    rows = reference(FIG2).table("models").partition_by("variant")
    shares = [(of["score_new_bema"] > of["score_new_train"]).to_numpy().mean() for of in rows]
    return percent(min(shares), max(shares))


def published_softmax() -> str:
    """The published accuracies at the numbers of items of the table."""
    return ", ".join(f"{SOFTMAX[items]:.3f}" for items, _ in RANGES[FIG2])


# ---- figures 3, 4, 6 and 7: languages --------------------------------------------------------------------------------


def fig3_best_better() -> bool:
    """The best tenth of every other placement is better than that of pre in every bin beyond the cap."""
    cap = reference(FIG3).experiment.settings[0].train_length
    beyond = [column for column, (low, _) in zip(summary(FIG3)[0], RANGES[FIG3], strict=True) if low > cap]
    others = ("post", "peri", "peri-init")
    return all(best(FIG3, variant, of) < best(FIG3, "pre", of) for variant in others for of in beyond)


def fig3_peri_lower_up_to() -> str | bool:
    """The end of the columns of the table, from the first one on, in which the median of peri is lower than of pre."""
    lower = list(takewhile(lambda of: median(FIG3, "peri", of) < median(FIG3, "pre", of), summary(FIG3)[0]))
    return lower[-1].split("-")[1] if lower else False


def fig3_auc() -> str:
    """The lowest and the highest median over models of the mean AUC beyond the cap, and their placements."""
    scores = rs.scores(reference(FIG3), metric="auc").filter(weights="train")
    rows = scores.with_columns(pl.col("score_new").fill_null(0.0))
    medians = sorted((quantile(of["score_new"].to_numpy(), 0.5), name) for (name,), of in rows.group_by("variant"))
    return " to ".join(f"{value:.3f} ({name})" for value, name in (medians[0], medians[-1]))


def fig4_tomita_3() -> bool:
    """peri-init is better than pre on new lengths, all other differences are undecided."""
    return hold(FIG4, 7, "peri-init - pre") and undecided(FIG4, 7, "peri - pre", "peri - post", "peri-init - post")


def fig4_tomita_7() -> bool:
    """The medians of peri and peri-init are above those of pre and post on longer inputs; whether the median difference
    is as large as what counts as one is undecided."""
    columns = [column for column in summary(FIG4)[0] if column.startswith("Tomita 7")][1:]
    ahead = [(a, b, column) for a in ("peri", "peri-init") for b in ("pre", "post") for column in columns]
    open_ = undecided(FIG4, 7, "tomita-7-s100, pre and peri", "tomita-7-s100, post and peri")
    return open_ and all(median(FIG4, a, column) > median(FIG4, b, column) for a, b, column in ahead)


def fig6_hardest() -> str:
    """The lowest median of a placement on Dyck(32, 10)."""
    return at_least(min(of[1] for (row, _), of in summary(FIG67)[1].items() if row.startswith("Dyck(32, 10)")))


# ---- other readings --------------------------------------------------------------------------------------------------


def same_in_every_reading() -> str:
    """The claims of the paper whose verdict depends neither on what is called best nor on checkpoint or threshold."""
    found = [of.claim for name in CLAIMS for of in by_reading(name) if len(of.verdicts()) == 1]
    sct = [f"{claim.number} on {claim.text.partition(':')[0]}" for claim in found if claim.number <= 3]
    return listed([*sct, *(str(number) for number in sorted(claim.number for claim in found if claim.number > 3))])


def bema_by_reading() -> str:
    """Verdict -> the readings that give it, of the claim that BEMA improves the best results."""
    verdicts = next(of.verdicts() for of in by_reading(FIG1) if of.claim.number == 3)
    of_quantiles = {verdict: [name for name in names if name in QUANTILES] for verdict, names in verdicts.items()}
    return "; ".join(
        f"{verdict.removesuffix(' at this scale')} by {listed([QUANTILES[name] for name in names])}"
        for verdict, names in of_quantiles.items()
        if names
    )


def checkpoints_change_nothing() -> bool:
    """Whether every verdict is the same for the best checkpoint, the last, and the best one on trained lengths."""
    verdicts = [[of.by_reading[name].verdict for name in CHECKPOINTS] for run in CLAIMS for of in by_reading(run)]
    return all(len(set(of_claim)) == 1 for of_claim in verdicts)


# ---- our own studies -------------------------------------------------------------------------------------------------


def both_remedies_help() -> bool:
    """On Maximum Retrieval the median difference in accuracy on new lengths is above zero for log n and for a norm."""
    rows = rs.scores(reference("remedies-max-laptop")).filter(weights="train")
    cells = by_draw(rows, ["setting", "variant"], "score_new", 0.0, 1.0)
    return all(median_of(paired_differences(cells, remedy, "none")).low > 0 for remedy in ("none+log-n", "post"))


def tasks_helped(variant: str, least: float = 0.0) -> tuple[list[str], int]:
    """The tasks on which a variant helps on longer inputs by more than `least`, and the number of all tasks."""
    gains = [gain for gain in gains_from(read_study("tasks-laptop-gains")) if gain.lengths == "new"]
    of_variant = [gain for gain in gains if gain.variant == variant]
    return [gain.task for gain in of_variant if gain.interval.low > least], len(of_variant)


def norm_helps_on() -> str:
    helped, tasks = tasks_helped("peri")
    return f"{len(helped)} of {tasks}"


def log_n_helps() -> bool:
    """On Maximum Retrieval, and on no other task by more than the smallest difference that matters."""
    return tasks_helped("pre+log-n", MARGIN)[0] == ["Maximum Retrieval"]


def loss_due_to_far_keys() -> bool:
    """Masking far keys recovers all of the median loss on Tomita 3 and flip-flop, none of it on Dyck(8, 10) and copy,
    to one digit."""
    shares = {}
    for of in losses(read_study("positions-laptop-distances")):
        recovered = quantile((of.new[BASE] - of.near[BASE]).values_N, MEDIAN)
        shares[of.setting.split("-")[0]] = round(recovered / of.median_lost(BASE).estimate, 1)
    return shares == {"tomita": 1, "flip": 1, "dyck": 0, "copy": 0}


FACTS: dict[str, Callable[[], str | bool]] = {
    "hero-pre": lambda: f"{median(FIG1, 'pre', 's = 3'):.2f}",
    "hero-peri": lambda: f"{median(FIG1, 'peri', 's = 3'):.2f}",
    "fig3-so-far": lambda: so_far(FIG3),
    "fig4-so-far": lambda: so_far(FIG4),
    "fig5-so-far": lambda: so_far(FIG5),
    "fig6-so-far": lambda: so_far(FIG67),
    "complete-figures": complete_figures,
    "decided-medians": lambda: decided("median"),
    "decided-best": lambda: decided("best"),
    "none-diverged": none_diverged,
    "verdicts": verdicts,
    "shares-of-training": shares_of_training,
    "fig2-far-best": fig2_far_best,
    "fig6-depth": lambda: all_are("does not hold", FIG67, 6, "best TVD, smallest - largest m"),
    "fig6-depth-gap": lambda: value(findings(FIG67, 6, "best TVD, smallest - largest m")[0]),
    "fig6-types": lambda: undecided(FIG67, 6, "reduction of the best TVD by BEMA"),
    "same-in-every-reading": same_in_every_reading,
    "checkpoints-change-nothing": checkpoints_change_nothing,
    "bema-by-reading": bema_by_reading,
    "fig1-models": lambda: models(FIG1),
    "fig3-kept": lambda: kept(FIG3),
    "fig4-kept": lambda: kept(FIG4),
    "fig5-kept": lambda: kept(FIG5),
    "fig6-7-kept": lambda: kept(FIG67),
    "fig1-generalizes": fig1_generalizes,
    "fig1-held": fig1_held,
    "fig1-open": lambda: "; ".join(fig1_open()) or "none",
    "fig1-open-count": lambda: f"{len(fig1_open())} of {len(findings(FIG1, 1, *AFTER))}",
    "fig1-pre": lambda: hold(FIG1, 1, "pre, s = 3", "pre, s = 4"),
    "fig1-pre-open": lambda: undecided(FIG1, 1, "pre, s = 5", "pre, s = 6", "pre, s = 7"),
    "fig1-pre-share": fig1_pre_share,
    "fig1-peri": lambda: hold(FIG1, 2, ""),
    "fig1-bema": lambda: claim(FIG1, 3).verdict == "does not hold",
    "fig1-bema-short-lag": lambda: fig1_bema_better(100, 10_000),
    "fig1-bema-long-lag": lambda: fig1_bema_better(1e6, float("inf")),
    "fig2-models": lambda: models(FIG2),
    "fig2-peri": lambda: hold(FIG2, 4, "peri"),
    "fig2-post": lambda: undecided(FIG2, 4, "post - pre"),
    "fig2-post-gap": fig2_post_gap,
    "fig2-median-gains-more": fig2_median_gains_more,
    "fig2-bema": fig2_bema_better,
    "published-softmax": published_softmax,
    "fig3-peri-init": lambda: hold(FIG3, 5, "peri-init - pre"),
    "fig3-open": lambda: undecided(FIG3, 5, "post - pre", "peri - pre"),
    "fig3-best": fig3_best_better,
    "fig3-peri-lower-up-to": fig3_peri_lower_up_to,
    "fig3-auc": fig3_auc,
    "fig4-open": lambda: claim(FIG4, 7).verdict == "undecided at this scale",
    "fig4-tomita-3": fig4_tomita_3,
    "fig4-tomita-7": fig4_tomita_7,
    "fig5-order": same_order,
    "fig5-pre-least": lambda: fig5_least("pre", range(1, 9)),
    "fig5-16-from": lambda: fig5_generalize_from(16, "post", "peri"),
    "fig5-25-post-from": lambda: fig5_generalize_from(25, "post"),
    "fig5-25-peri-from": lambda: fig5_generalize_from(25, "peri"),
    "fig5-peri-init": fig5_peri_init,
    "fig5-peri-least": lambda: fig5_least("peri", (1, 2)),
    "fig6-peri": lambda: hold(FIG67, 6, "peri"),
    "fig6-post": lambda: undecided(FIG67, 6, "post - pre"),
    "fig6-eos": lambda: hold(FIG67, 6, "dyck"),
    "fig6-hardest": fig6_hardest,
    **PUBLISHED,
    "remedies-sct": lambda: claim("remedies-sct-laptop", 8).verdict == "holds",
    "remedies-max": both_remedies_help,
    "tasks-norm": norm_helps_on,
    "tasks-log-n": log_n_helps,
    "positions-far-keys": loss_due_to_far_keys,
}
"""Name -> a text, or whether a statement is true."""
