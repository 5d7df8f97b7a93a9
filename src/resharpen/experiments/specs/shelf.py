"""The shelf: experiments of all figures, by name, at four scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from resharpen.errors import unknown
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import choose
from resharpen.models import RETRIEVER_PLACEMENTS
from resharpen.parts import PAPER_PLACEMENTS, STUDIED_PLACEMENTS
from resharpen.tasks import Dyck, Language, MaxRetrieval, SetComplement, Tomita

SCALES = ("smoke", "laptop", "overnight", "paper")


@dataclass(frozen=True)
class Size:
    models: int
    steps: int
    checkpoints: int = 100
    batch: int | None = None
    """Sequences in a minibatch; None: as in the paper."""


@dataclass(frozen=True)
class Entry:
    title: str
    settings: Callable[[str], tuple[Setting, ...]]
    """By scale: validation sets are smaller below `paper`."""
    variants: tuple[str, ...]
    sizes: tuple[Size, Size, Size, Size]
    """In the order of SCALES. `paper` is the full protocol; the others have fewer models, steps and sequences."""
    run: str | None = None
    """Name of the run, if it is not the figure's: figures of the same models share a run."""


def set_complement(*vocabularies: int, lengths: Sequence[int] = range(1, 9)) -> Callable[[str], tuple[Setting, ...]]:
    """The smallest models; by default the paper's grid, s = 1..8 for each vocabulary."""
    settings = tuple(Setting(SetComplement(v), s) for v in vocabularies for s in lengths)
    return lambda scale: settings


def max_retrieval(scale: str) -> tuple[Setting, ...]:
    """Trained on 5 to 16 items, reported up to 4,096, or 16,384 at `paper`."""
    sizes = {
        "smoke": (4_096, 8_192, 2_048),
        "laptop": (4_096, 65_536, 8_192),
        "overnight": (4_096, 262_144, 8_192),  # 64 sets of 4,096 items
        "paper": (16_384, 1_048_576, 65_536),
    }
    longest, items, selection_items = sizes[scale]
    return (Setting(MaxRetrieval(longest=longest, items=items, selection_items=selection_items), 16),)


VALIDATION = {"smoke": (32, 8), "laptop": (128, 32), "overnight": (256, 32), "paper": (1_024, 64)}
"""Scale -> sequences in the report set and in the selection set: validation takes less than a fifth of the time."""


def languages(*tasks: Language) -> Callable[[str], tuple[Setting, ...]]:
    """The paper's transformer, trained up to the length cap of each language."""

    def settings(scale: str) -> tuple[Setting, ...]:
        report, selection = VALIDATION[scale]
        sized = [replace(task, sequences=report, selection_sequences=selection) for task in tasks]
        return tuple(Setting(task, task.cap) for task in sized)

    return settings


FURTHER_DYCK = (
    languages(*(Dyck(k, m) for k, m in ((2, 3), (2, 5), (2, 10), (8, 3), (8, 5), (32, 3), (32, 5), (32, 10)))),
    PAPER_PLACEMENTS,
    (Size(2, 10, 2), Size(16, 5_000, 10, batch=16), Size(64, 6_000, 10, batch=16), Size(100, 100_000)),
    "fig6-7",
)
"""Settings, variants, sizes and run of two figures."""

SHELF = {
    "fig1": Entry(
        "Set Complement, v = 9: TVD by training length and placement",
        set_complement(9),
        PAPER_PLACEMENTS,
        (Size(16, 1_000), Size(96, 20_000), Size(96, 1_000_000), Size(1_000, 1_000_000)),
    ),
    "fig2": Entry(
        "Maximum Retrieval: accuracy by input length and placement",
        max_retrieval,
        tuple(RETRIEVER_PLACEMENTS),
        (Size(16, 100, 2), Size(80, 10_000, 10), Size(96, 50_000, 20), Size(100, 100_000)),
    ),
    "fig3": Entry(
        "Dyck(8, 10): TVD by input length and placement",
        languages(Dyck(8, 10)),
        PAPER_PLACEMENTS,
        (Size(2, 20, 2), Size(32, 9_000, 10, batch=16), Size(64, 20_000, 10, batch=16), Size(100, 100_000)),
    ),
    "fig4": Entry(
        "Tomita 3 and 7: ROC AUC by input length and placement",
        languages(Tomita(3), Tomita(7)),
        PAPER_PLACEMENTS,
        (Size(2, 20, 2), Size(32, 2_000, 10, batch=16), Size(64, 8_000, 10, batch=16), Size(100, 100_000)),
    ),
    "fig5": Entry(
        "Set Complement, v = 16 and 25, as figure 1",
        set_complement(16, 25),
        PAPER_PLACEMENTS,
        (Size(16, 200), Size(32, 10_000), Size(96, 100_000), Size(1_000, 1_000_000)),
    ),
    "fig6": Entry("Eight further Dyck(k, m): TVD, as figure 3", *FURTHER_DYCK),
    "fig7": Entry("The same models: ROC AUC of EOS by input length", *FURTHER_DYCK),
    "placements": Entry(
        "Ours: Set Complement, v = 9, all seven placements",
        set_complement(9),
        STUDIED_PLACEMENTS,
        (Size(16, 500), Size(96, 20_000), Size(96, 200_000), Size(1_000, 1_000_000)),
    ),
    "remedies-sct": Entry(
        "Ours: norms x attention on Set Complement, v = 9, s = 2, 3, 4",
        set_complement(9, lengths=(2, 3, 4)),  # where a norm after attention begins to matter
        tuple(f"{p}{a}" for p in ("pre", "none", "pre-final", "peri") for a in ("", "+log-n", "+ssmax")),
        (Size(16, 300, 5), Size(96, 30_000), Size(96, 200_000), Size(1_000, 1_000_000)),
    ),
    "remedies-max": Entry(
        "Ours: norms x attention on Maximum Retrieval",
        max_retrieval,
        tuple(f"{p}{a}" for p in ("none", "post") for a in ("", "+log-n", "+ssmax")),
        (Size(16, 50, 2), Size(64, 5_000, 10), Size(96, 50_000, 20), Size(100, 100_000)),
    ),
    # stick-breaking needs no positions; asentmax is tried without them, though its authors pair it with NAPE
    "remedies-dyck": Entry(
        "Ours: norms x attention x positions on Dyck(2, 3)",
        languages(Dyck(2, 3)),
        (
            *(f"{p}{a}{n}" for p in ("pre", "peri") for a in ("", "+ssmax") for n in ("", "+nope")),
            *(f"{p}+{a}+nope" for p in ("pre", "peri") for a in ("asentmax", "stick-breaking")),
        ),
        (Size(2, 10, 2, batch=8), Size(32, 2_000, 5, batch=16), Size(64, 10_000, 10, batch=16), Size(100, 100_000)),
    ),
}

STUDIES = {"remedies": ("remedies-sct", "remedies-max", "remedies-dyck")}
"""Name -> figures that are run one after the other, each in its own directory, and shown together."""


def take(name: str, scale: str) -> Experiment:
    """The experiment of a figure at a scale."""
    if name not in SHELF:
        raise unknown("figure", name, (*SHELF, *STUDIES))
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    entry = SHELF[name]
    size = entry.sizes[SCALES.index(scale)]
    return Experiment(
        name=f"{entry.run or name}-{scale}",
        settings=entry.settings(scale),
        batch=size.batch,
        variants=choose(entry.variants, {}),
        models=size.models,
        steps=size.steps,
        checkpoints=size.checkpoints,
    )
