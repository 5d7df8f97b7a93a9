"""Which draws of which references to train for a quick check of a machine in about ten minutes.

The number of steps cannot be reduced, because the schedule depends on it. Reduced are the settings (only the middle
one), the variants (only the first and the last that the native engine supports) and the draws. Every reference gets one
model per variant first, then `TELLING`, then a group, the cheapest first while the time allows; references of models
that a cheaper one has already checked, such as those with other hyperparameters, come last. A reference whose smallest
subset takes too long is skipped, and the plan says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from resharpen.engines.choose import why_not_native
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.running.estimate import Paces, calibrate, estimate
from resharpen.experiments.running.runner import with_engine
from resharpen.experiments.specs.spec import Experiment
from resharpen.streams import GROUP

MINUTES = 7.5
"""Estimated training time; the rest of ten minutes is for compiling kernels, starting workers and reports."""
TELLING = 6
"""Models per variant from which `verify` can distinguish other results from rounding: fewer have no interval."""


@dataclass(frozen=True)
class Quick:
    """The subset of one reference to train."""

    reference: Reference
    experiment: Experiment
    seconds: float
    """Estimated for this machine."""
    why_not: str = ""
    """Why the reference is skipped; empty if it is trained."""


def plan_quick(references: Sequence[Reference], workers: int | None, minutes: float = MINUTES) -> list[Quick]:
    """The subset of each reference to train."""
    parts = [cheapest(reference) for reference in references]
    kinds = [_kind(part) for part in parts]
    paces = {kind: calibrate(part) for kind, part in dict(zip(kinds, parts, strict=True)).items()}
    sizes = [
        _sizes(reference, part, paces[kind], workers)
        for reference, part, kind in zip(references, parts, kinds, strict=True)
    ]
    cheap = sorted(range(len(sizes)), key=lambda i: sizes[i][0].seconds)
    cheapest_of = {kinds[i]: i for i in reversed(cheap)}
    taken: list[Quick | None] = [None] * len(sizes)
    left = minutes * 60
    for level in range(max(map(len, sizes))):
        higher = [i for i, plans in enumerate(sizes) if level < len(plans) and (not level or taken[i] is not None)]
        for i in sorted(higher, key=lambda i: (cheapest_of[kinds[i]] != i, sizes[i][level].seconds)):
            before, plan = taken[i], sizes[i][level]
            more = plan.seconds - (before.seconds if before else 0.0)
            if more <= left:
                taken[i], left = plan, left - more
    return [plan or replace(plans[0], why_not=_too_long(plans[0])) for plan, plans in zip(taken, sizes, strict=True)]


def _kind(part: Experiment) -> str:
    """What is trained, whatever the steps and hyperparameters: the same code of the kernel."""
    return repr((part.settings, part.variants, part.batch))


def _sizes(reference: Reference, part: Experiment, pace: Paces, workers: int | None) -> list[Quick]:
    """Subsets of a reference with increasing numbers of models, from the number that trains at the cost of one."""
    together = max(pace[part.settings[0].name, name].models for name in part.variants)
    sized = [part.with_changes(models=n) for n in (1, TELLING, GROUP) if n >= together]
    return [Quick(reference, of, estimate(of, pace, workers).seconds) for of in sized]


def cheapest(reference: Reference) -> Experiment:
    """One setting and at most two variants whose first draws are all in the reference."""
    whole = reference.experiment
    kept = {(shard.setting.name, shard.variant) for shard in reference.kept if shard.first == 0}
    settings = [setting for setting in whole.settings if any(name == setting.name for name, _ in kept)]
    setting = settings[len(settings) // 2]
    variants = [name for name in whole.variants if (setting.name, name) in kept]
    one = replace(whole, settings=(setting,), engine="auto").with_changes(variants=variants, models=GROUP)
    native = [cell.variant for cell in one.cells() if not why_not_native(one.problem(cell))] or variants
    ends = dict.fromkeys((native[0], native[-1]))
    return with_engine(one.with_engines(dict.fromkeys(variants)).with_changes(variants=ends))


def _too_long(plan: Quick) -> str:
    steps, models = plan.experiment.steps, plan.experiment.models
    work = f"{models} model{'s' * (models > 1)} per variant for {steps:,} steps"
    return f"{work} would take about {plan.seconds / 60:.1f} min here, more than the time left"
