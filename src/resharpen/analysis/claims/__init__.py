"""The claims of the paper, and our own on remedies, tested on a run."""

from dataclasses import replace

from resharpen.analysis.claims.finding import Claim
from resharpen.analysis.claims.languages import dyck_claims, tomita_claims
from resharpen.analysis.claims.max_retrieval import max_retrieval_claims
from resharpen.analysis.claims.reading import DEFAULT, Reading
from resharpen.analysis.claims.remedies import remedies_claims
from resharpen.analysis.claims.set_complement import set_complement_claims
from resharpen.analysis.samples import correlation_within_groups, paired_only
from resharpen.analysis.scores import scores, task_of, worst_values
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.specs import shelf
from resharpen.experiments.specs.spec import usual_model
from resharpen.models import RETRIEVER_PLACEMENTS
from resharpen.optim.hyperparameters import TABLE, narrowed
from resharpen.parts import PLACEMENTS
from resharpen.streams import GROUP
from resharpen.tasks import Dyck, MaxRetrieval, SetComplement, Tomita

_BY_TASK = {
    SetComplement.kind: set_complement_claims,
    MaxRetrieval.kind: max_retrieval_claims,
    Dyck.kind: dyck_claims,
    Tomita.kind: tomita_claims,
}
TESTED_BY = {
    **dict.fromkeys((1, 2, 3), ("fig1", "fig5")),
    **{4: ("fig2",), 5: ("fig3",), 6: ("fig6",), 7: ("fig4",), 8: ("remedies-sct",), 9: ("remedies-max",)},
}
"""Claim -> built-in runs that together test all of it."""


def why_no_claims(run: RunOrReference) -> str:
    """Why no claim can be tested on this run; empty if one can."""
    if task_of(run).kind not in _BY_TASK:
        return "there are no claims about this kind of task"
    other = [setting.name for setting in run.experiment.settings if setting.model != usual_model(setting.task)]
    return f"claims are about the paper's models, but {other[0]} has a different model" if other else ""


def of_the_paper(run: RunOrReference) -> bool:
    """Whether claims replace a comparison: the paper's tasks, placements only, and no baseline in the spec."""
    experiment = run.experiment
    placements = {*PLACEMENTS, *RETRIEVER_PLACEMENTS}
    return not why_no_claims(run) and experiment.baseline is None and set(experiment.variants) <= placements


def claims(run: RunOrReference, reading: Reading = DEFAULT) -> list[Claim]:
    """The claims that can be tested on a run: none for tasks and models that are not in the paper, and none until a
    draw is finished in all variants of a setting. `reading` defines the best results and the checkpoint."""
    if why_no_claims(run) or paired_only(found := scores(run, reading.selection)).is_empty():
        return []
    test, metric = _BY_TASK[task_of(run).kind], task_of(run).metric
    correlation = correlation_within_groups(found, worst_values(run)[metric])
    worth = correlation.worth(GROUP)
    have = set(run.table("models").select("setting", "variant").unique().iter_rows())
    given = run.experiment.hyperparameters
    other = tuple(f"the paper's range of {n}" for n in TABLE if n in given and narrowed(n, given[n]) != TABLE[n])
    return [
        replace(claim, correlation=correlation, lacks=(*_lacks(have, claim), *other))
        for claim in test(run, worth, reading) + remedies_claims(run, worth, reading)
    ]


def _lacks(have: set[tuple[str, str]], claim: Claim) -> tuple[str, ...]:
    """What a full test needs but this run lacks: whole settings, whole variants, then single cells."""
    whole = [shelf.SHELF[name] for name in TESTED_BY[claim.number] if name in shelf.SHELF]
    cells = [(s.name, v) for entry in whole for s in entry.settings("paper") for v in entry.variants]
    cells = [(setting, variant) for setting, variant in cells if setting.startswith(claim.settings)]
    settings, variants = (dict.fromkeys(cell[place] for cell in cells) for place in (0, 1))
    no_settings = [s for s in settings if not any((s, v) in have for v in variants)]
    no_variants = [v for v in variants if not any((s, v) in have for s in settings)]
    single = [f"{s}/{v}" for s, v in cells if (s, v) not in have and s not in no_settings and v not in no_variants]
    return *no_settings, *no_variants, *single
