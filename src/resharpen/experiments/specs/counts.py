"""Parameter counts of all variants: a larger model may be better only because of its size."""

from collections.abc import Mapping

from resharpen.experiments.specs.spec import Experiment

ALIKE = 0.1
"""Relative difference from the baseline's count above which a variant is reported."""

Counts = Mapping[tuple[str, str], int]
"""(setting, variant) -> number of parameters of one model."""


def parameter_counts(experiment: Experiment) -> dict[tuple[str, str], int]:
    return {
        (setting.name, variant): experiment.parameter_count(setting, variant)
        for setting in experiment.settings
        for variant in experiment.variants
    }


def side_by_side(counts: Counts) -> list[str]:
    """One line for all settings that have the same counts.

    >>> side_by_side({("a", "pre"): 1_000, ("a", "peri"): 1_200, ("b", "pre"): 1_000, ("b", "peri"): 1_200})
    ['pre 1,000, peri 1,200']
    """
    by_setting: dict[str, list[str]] = {}
    for (setting, variant), n in counts.items():
        by_setting.setdefault(setting, []).append(f"{variant} {n:,}")
    alike: dict[str, list[str]] = {}
    for setting, said in by_setting.items():
        alike.setdefault(", ".join(said), []).append(setting)
    return [said if len(alike) == 1 else f"{said} ({', '.join(settings)})" for said, settings in alike.items()]


def unlike(counts: Counts, baseline: str) -> list[str]:
    """A sentence for every variant that is larger or smaller than the baseline by more than a tenth, in at least one
    setting.

    >>> unlike({("a", "pre"): 1_000, ("a", "peri"): 1_200}, "pre")
    ["'peri' has 20% more parameters than 'pre': a difference between them may be due to size"]
    """
    most: dict[str, float] = {}
    for (setting, variant), n in counts.items():
        share = n / counts[setting, baseline] - 1
        if abs(share) > max(ALIKE, abs(most.get(variant, 0.0))):
            most[variant] = share
    return [
        f"'{variant}' has {abs(share):.0%} {'more' if share > 0 else 'fewer'} parameters than '{baseline}': "
        "a difference between them may be due to size"
        for variant, share in most.items()
    ]
