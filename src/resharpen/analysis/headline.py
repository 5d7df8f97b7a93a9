"""The finding of a run in one sentence, and a description of its variants: the beginning of a report."""

from __future__ import annotations

import numpy as np

from resharpen import own
from resharpen.analysis.compare import Comparison, Effect
from resharpen.analysis.scores import scores, task_of
from resharpen.analysis.statistics import quantile
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs.variant import DEFAULTS
from resharpen.models import Minimal, Retriever
from resharpen.parts import SITES

WHERE = {"new": "on inputs longer than trained", "all": "over all lengths"}
NAMED = 3
"""The most variants that a headline names."""
AFTER_ATTENTION = ("block_out", "residual", "unembedding_in", "heads_out")
"""Sites whose norm acts on what attention returns."""
SITE_WORDS = {
    "embedding_out": "after the embedding",
    "block_in": "before {block}",
    "block_out": "after {block}",
    "residual": "after the residual sum",
    "unembedding_in": "before the unembedding",
    "heads_out": "on the heads of attention",
    "queries_keys": "on queries and keys",
}


def headline(run: RunOrReference, found: Comparison | None, test: str = "") -> str:
    """The result of the comparison on new lengths, or over all lengths if there are no new ones. Without a comparison:
    the median score."""
    if found is None:
        return _alone(run, test)
    by_verdict: dict[str, list[Effect]] = {}
    for effect in sorted(found.headlines(), key=lambda effect: -effect.median.interval.estimate):
        by_verdict.setdefault(effect.median.verdict, []).append(effect)
    base, label = found.baseline, found.metric.label
    if helping := by_verdict.get("helps"):
        best = helping[0]
        said = f"{best.variant} beats {base} by {_size(best)} {label} {_where(best)}, {_pairs(best)}"
        said += "; its best tenth is worse" if best.best.verdict == "hurts" else ""
        return f"A norm after attention helps: {said}" if _norm_after_helps(run, found, helping) else said
    if hurting := by_verdict.get("hurts"):
        worst = hurting[-1]
        lost = f"{worst.variant} is worse than {base} by {_size(worst)} {label} {_where(worst)}, "
        lost += _pairs(worst, lost=True)
        return lost if len(found.variants) == 1 else f"No variant beats {base}; {lost}"
    if open_ := by_verdict.get("undecided"):
        first = open_[0]
        low, high = first.median.interval.low, first.median.interval.high
        gain = f"{first.median.interval.estimate:+.2g} ({low:+.2g} to {high:+.2g}) {label} {_where(first)}"
        more = f"; about {first.median.more:,} more models per setting would decide it" if first.median.more else ""
        return f"Undecided whether {first.variant} beats {base}: {gain}{more}"
    if same := by_verdict.get("no difference"):
        names = f"{_listed([effect.variant for effect in same])} and {base}"
        return f"No difference: {names} are within {found.margin:g} {label} {_where(same[0])}"
    return f"Not trained enough to tell: neither {base} nor {_listed(found.variants)} beats a constant guess"


def _alone(run: RunOrReference, test: str) -> str:
    """One variant, or variants that share no draw yet."""
    task, rows = task_of(run), scores(run, test=test).filter(weights="train")
    lengths, column = ("new", "score_new") if rows["has_new"].any() else ("all", "score")
    medians = {
        variant: quantile(of[column].fill_null(task.metrics[task.metric].worst).to_numpy().astype(np.float64), 0.5)
        for (variant,), of in rows.filter("has_new" if lengths == "new" else True).group_by("variant")
    }
    best = (min if task.lower_is_better else max)(medians, key=lambda variant: medians[variant])
    return f"{best}: median {task.metrics[task.metric].label} of {medians[best]:.2g} {WHERE[lengths]}"


def _size(effect: Effect) -> str:
    return f"{abs(effect.median.interval.estimate):.2g}"


def _where(effect: Effect) -> str:
    return WHERE[effect.lengths]


def _pairs(effect: Effect, lost: bool = False) -> str:
    share = 1 - effect.wins.estimate if lost else effect.wins.estimate
    return f"in {share:.0%} of {effect.pairs:,} pairs"


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} variants"


def _norm_after_helps(run: RunOrReference, found: Comparison, helping: list[Effect]) -> bool:
    """Whether exactly the variants with a norm after attention beat the baseline, which has none."""
    has = {name: _has_norm_after(run, name) for name in (found.baseline, *found.variants)}
    beats = {effect.variant for effect in helping}
    return not has[found.baseline] and all(has[name] == (name in beats) for name in found.variants)


def _has_norm_after(run: RunOrReference, variant: str) -> bool:
    """Whether a variant has a norm after attention; False for a user's model, whose norms are unknown."""
    setting, of = run.experiment.settings[0], run.experiment.variants[variant]
    return any(getattr(setting.parts_of(of).placement, site) for site in AFTER_ATTENTION)


def described(run: RunOrReference, variant: str) -> str:
    """A variant in words: the sites of its norms, and the parts that are not the default."""
    setting, of = run.experiment.settings[0], run.experiment.variants[variant]
    model, placement = setting.model_of(of), setting.parts_of(of).placement
    block = "attention" if isinstance(model, Minimal | Retriever) else "each block"
    sites = [SITE_WORDS[site].format(block=block) for site in SITES if getattr(placement, site)]
    norms = f"norm{'s' * (len(sites) > 1)} {', '.join(sites)}" if sites else "no norm"
    columns = of.columns(model)
    usual = {**DEFAULTS, "positions": type(model).positions}
    further = [f"{own.short(columns[kind])} {kind}" for kind, name in usual.items() if columns[kind] != name]
    return "; ".join([f"model {own.short(model.kind)}" if model.is_module else norms, *further])
