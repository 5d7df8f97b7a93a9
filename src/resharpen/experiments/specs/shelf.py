"""Built-in experiments: all figures, and any task by its name, at four scales."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from resharpen import own
from resharpen.errors import unknown
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.toml import parse_task, settings_of, task_of
from resharpen.experiments.specs.variant import choose
from resharpen.models import RETRIEVER_PLACEMENTS, Transformer
from resharpen.optim.hyperparameters import Given
from resharpen.parts import PAPER_PLACEMENTS, STUDIED_PLACEMENTS
from resharpen.tasks import TASKS, Copy, Dyck, FlipFlop, Language, MaxRetrieval, SetComplement, Task, Tomita, find_task

SCALES = ("smoke", "laptop", "overnight", "paper")


@dataclass(frozen=True)
class Size:
    models: int
    steps: int
    checkpoints: int = 100
    batch: int | None = None
    """Sequences per minibatch; None: as in the paper."""


@dataclass(frozen=True)
class Entry:
    title: str
    settings: Callable[[str], tuple[Setting, ...]]
    """Scale -> settings; validation sets are smaller below `paper`."""
    variants: tuple[str, ...]
    sizes: tuple[Size, Size, Size, Size]
    """In the order of SCALES. `paper` is the full protocol; the others have fewer models, steps and sequences."""
    run: str | None = None
    """Name of the run, if it is not the figure's: figures of the same models share a run."""
    hyperparameters: Mapping[str, Given] = field(default_factory=dict)
    """Rows of the paper's table that are narrowed."""


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


SHORT_VALIDATION = {"smoke": (4, 2), "laptop": (16, 4), "overnight": (64, 16), "paper": (1_024, 64)}
"""The same for sequences of more than a thousand tokens, which are slow on torch."""


def small(
    task: Language, train_length: int, validation: Mapping[str, tuple[int, int]] = VALIDATION
) -> Callable[[str], tuple[Setting, ...]]:
    """A transformer of half the paper's width, with heads as wide as the paper's."""

    def settings(scale: str) -> tuple[Setting, ...]:
        report, selection = validation[scale]
        sized = replace(task, sequences=report, selection_sequences=selection)
        return (Setting(sized, train_length, half_width(task)),)

    return settings


def half_width(task: Task) -> Transformer:
    return Transformer(task.vocabulary, layers=2, d=32, heads=2, d_mlp=64)


def copying(scale: str) -> tuple[Setting, ...]:
    """Questions of up to 8 distinct items, validated up to 24."""
    task = Copy(30, train_items=8)
    return (Setting(task, task.train_items, half_width(task)),)


ENCODINGS = ("", "+rope-half", "+rope-500k", "+nope", "+alibi", "+t5", "+fire", "+randomized-rope", "+window")
"""Position encodings of the study; the first is rope."""
POSITIONS = (*(f"{p}{e}" for p in ("pre", "peri") for e in ENCODINGS), "pre+log-n", "pre+log-n+nope", "lstm")
"""Variants of the study of positions; log-n separates the effect of dispersion."""


def positions_on(task: str, settings: Callable[[str], tuple[Setting, ...]], laptop_steps: int) -> Entry:
    """Learning rates from the upper third of the paper's range and short warm-ups. With other values few models learn
    even the trained lengths in so few steps, and a model that has learned nothing cannot lose accuracy at length."""
    laptop = Size(32, laptop_steps, 5, batch=16)
    return Entry(
        f"Ours: position encodings on {task}",
        settings,
        POSITIONS,
        (Size(2, 10, 2, batch=8), laptop, Size(64, 10_000, 10, batch=16), Size(100, 100_000)),
        hyperparameters={"peak_learning_rate": (1e-3, 1e-2), "warmup_steps": (1.0, 100.0)},
    )


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
    # as published: stick-breaking without positions, asentmax with NAPE
    "remedies-dyck": Entry(
        "Ours: norms x attention x positions on Dyck(2, 3)",
        languages(Dyck(2, 3)),
        (
            *(f"{p}{a}{n}" for p in ("pre", "peri") for a in ("", "+ssmax") for n in ("", "+nope")),
            *(f"{p}+{a}" for p in ("pre", "peri") for a in ("asentmax+nape", "stick-breaking")),
        ),
        (Size(2, 10, 2, batch=8), Size(32, 2_000, 5, batch=16), Size(64, 10_000, 10, batch=16), Size(100, 100_000)),
    ),
    "positions-tomita": positions_on("Tomita 3", small(Tomita(3), 100), 1_500),
    "positions-dyck": positions_on("Dyck(8, 10)", small(Dyck(8, 10), 175, SHORT_VALIDATION), 1_500),
    "positions-flip-flop": positions_on("flip-flop", small(FlipFlop(0.2), 64), 3_000),
    "positions-copy": positions_on("copying distinct items", copying, 4_000),
}

FAMILIES = {
    "set-complement": "v=16,train_lengths=[6]",
    "max-retrieval": "longest=256,items=8192,selection_items=2048",
    "dyck": "k=2,m=3,train_lengths=[48]",
    "tomita": "n=3,train_lengths=[48]",
    "flip-flop": "p_ignore=0.2,train_lengths=[32]",
    "group": "train_lengths=[32]",
    "regular": 'language="even-pairs",train_lengths=[32]',
    "counter": "train_lengths=[32]",
    "shuffle": "train_lengths=[32]",
    "copy": "v=30,train_lengths=[8]",
    "sort": "v=30,train_lengths=[8]",
    "majority": "train_lengths=[12]",
    "recall": "keys=18,values=8,train_lengths=[6]",
    "markov": "train_lengths=[32]",
    "hidden-markov": "train_lengths=[32]",
    "weighted-complement": "train_lengths=[6]",
    "game": "train_lengths=[9]",
    "othello": "board=6,train_lengths=[16]",
}
"""Parameters of each family of tasks in the study of all tasks: short lengths. Flip-flop has many reads, so that
small models learn it within these steps. Words of (aaaa)* would be known from their length alone."""
OF_FAMILIES = {
    "transformer": 'model={kind="transformer",layers=2,d=32,heads=2,d_mlp=64}',
    "retriever": "model={hidden=32}",
}
"""One model for tasks on tokens, and one for tasks on items."""


def _family(kind: str) -> Entry:
    model = OF_FAMILIES["transformer" if TASKS[kind].reads == "tokens" else "retriever"]
    return Entry(
        f"Ours: norms x attention on {kind}",
        lambda scale: _of_task(f"{kind},{FAMILIES[kind]},{model}", scale),
        ("pre", "peri", "pre+log-n", "peri+log-n"),
        (Size(2, 10, 2, batch=8), Size(32, 8_000, 10, batch=16), Size(64, 20_000, 20, batch=32), Size(100, 100_000)),
    )


OF_STUDIES = {f"tasks-{kind}": _family(kind) for kind in FAMILIES}
"""Entries that are run as a part of a study only, or by their name."""
STUDIES = {
    "remedies": ("remedies-sct", "remedies-max", "remedies-dyck"),
    "positions": ("positions-tomita", "positions-dyck", "positions-flip-flop", "positions-copy"),
    "tasks": tuple(OF_STUDIES),
}
"""Name of a study -> its entries, which are run one after the other, each in its own directory, and shown together."""


OF_A_TASK = (Size(2, 20, 2), Size(32, 5_000, 10, batch=16), Size(64, 20_000, 20, batch=16), Size(100, 100_000))
"""Sizes of a run of a task by its name."""


def take(name: str, scale: str) -> Experiment:
    """The experiment of a figure at a scale, or of a task: `flip-flop`, or with its parameters `dyck,k=2,m=3`."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if entry := {**SHELF, **OF_STUDIES}.get(name):
        return _experiment(name, entry, scale)
    kind = name.partition(",")[0]
    if kind not in TASKS and not own.is_own(kind):
        raise unknown("figure or task", name, (*SHELF, *STUDIES, *TASKS))
    settings = _of_task(name, scale)
    entry = Entry(settings[0].task.title, lambda scale: settings, ("pre", "peri"), OF_A_TASK)
    return _experiment(settings[0].task.name, entry, scale)


def _of_task(text: str, scale: str) -> tuple[Setting, ...]:
    """A task, with default parameters, training length and tests where none are given."""
    given = parse_task(text)
    kind = find_task(own.refer(given["kind"]) if own.is_own(given["kind"]) else given["kind"])
    names = {each.name for each in fields(kind)}  # pyright: ignore[reportArgumentType]
    sizes = zip(("sequences", "selection_sequences"), VALIDATION[scale], strict=True)
    tests = {"test": kind.usual_tests} if kind.usual_tests else {}
    table = {**{name: n for name, n in sizes if name in names}, **kind.usual_fields, **tests, **given}
    if "train_lengths" not in table:
        task = task_of(table)
        if task.usual_train_length is None and task.longest_input:
            table["train_lengths"] = [max(1, 3 * task.longest_input // 8)]  # as 3 of 8 in Set Complement
    return settings_of(table)


def _experiment(name: str, entry: Entry, scale: str) -> Experiment:
    size = entry.sizes[SCALES.index(scale)]
    return Experiment(
        name=f"{entry.run or name}-{scale}",
        settings=entry.settings(scale),
        batch=size.batch,
        variants=choose(entry.variants, {}),
        models=size.models,
        steps=size.steps,
        checkpoints=size.checkpoints,
        hyperparameters=entry.hyperparameters,
    )
