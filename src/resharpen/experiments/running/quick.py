"""Which draws of which references to train for a quick check of a machine, so that all of it takes ten minutes.

Steps cannot be cut: a shorter training gives other results. What is cut is the number of settings (the middle one),
variants (the first and the last that the native engine supports) and draws. A reference whose cheapest part does not
fit into the time that is left is skipped, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from resharpen.engines.choose import why_not_native
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.running.estimate import Paces, calibrate, estimate
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.specs.spec import Experiment
from resharpen.streams import GROUP

MINUTES = 8.0
"""Of training; two more are for compiling kernels, validation and reading results."""


@dataclass(frozen=True)
class Quick:
    """What to train of one reference."""

    reference: Reference
    experiment: Experiment
    seconds: float
    """Estimated for this machine."""
    why_not: str = ""
    """Why it is skipped; empty if it is trained."""


def plan_quick(references: Sequence[Reference], workers: int | None, minutes: float = MINUTES) -> list[Quick]:
    """The part of each reference to train: at first one SIMD group or one model per variant, then more while all fits,
    up to a group. The cheapest come first, so that as few as possible are skipped."""
    found = [(reference, part := cheapest(reference), calibrate(part)) for reference in references]
    plans = [_sized(reference, part, pace, _together(part, pace), workers) for reference, part, pace in found]
    left, taken = minutes * 60, set[int]()
    for i in sorted(range(len(plans)), key=lambda i: plans[i].seconds):
        if plans[i].seconds <= left:
            taken.add(i)
            left -= plans[i].seconds
    while True:
        grown = [(i, _sized(*found[i], min(2 * plans[i].experiment.models, GROUP), workers)) for i in sorted(taken)]
        more = [(i, plan) for i, plan in grown if 0 < plan.seconds - plans[i].seconds <= left]
        if not more:
            break
        i, plan = min(more, key=lambda grown: grown[1].seconds)
        left -= plan.seconds - plans[i].seconds
        plans[i] = plan
    return [plan if i in taken else replace(plan, why_not=_too_long(plan)) for i, plan in enumerate(plans)]


def cheapest(reference: Reference) -> Experiment:
    """One setting and at most two variants of a reference, all of whose first draws it has kept."""
    whole = reference.experiment
    kept = {(shard.setting.name, shard.variant) for shard in reference.kept if shard.first == 0}
    settings = [setting for setting in whole.settings if any(name == setting.name for name, _ in kept)]
    setting = settings[len(settings) // 2]
    variants = [name for name in whole.variants if (setting.name, name) in kept]
    one = replace(whole, settings=(setting,), engine="auto").with_changes(variants=variants, models=GROUP)
    native = [cell.variant for cell in one.cells() if not why_not_native(one.problem(cell))] or variants
    ends = dict.fromkeys((native[0], native[-1]))
    return with_engine(one.with_engines(dict.fromkeys(variants)).with_changes(variants=ends))


def _together(part: Experiment, pace: Paces) -> int:
    """Models that train at the cost of one: fewer save no time."""
    return max(pace[part.settings[0].name, name].models for name in part.variants)


def _sized(reference: Reference, part: Experiment, pace: Paces, models: int, workers: int | None) -> Quick:
    sized = part.with_changes(models=models)
    return Quick(reference, sized, estimate(sized, pace, workers).seconds)


def _too_long(plan: Quick) -> str:
    steps, models = plan.experiment.steps, plan.experiment.models
    work = f"{models} model{'s' * (models > 1)} per variant for {steps:,} steps"
    return f"{work} would take about {plan.seconds / 60:.1f} min here, more than is left"
