"""Built-in experiments: all figures, and any task by its name, at four scales."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from resharpen import own
from resharpen.errors import unknown
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.toml import parse_task, settings_of, task_of
from resharpen.experiments.specs.variant import ModelChange, Variant, choose
from resharpen.models import RETRIEVER_PLACEMENTS, Transformer
from resharpen.optim.hyperparameters import Given
from resharpen.parts import PAPER_PLACEMENTS, STUDIED_PLACEMENTS
from resharpen.tasks import (
    TASKS,
    Copy,
    Counter,
    Dyck,
    FlipFlop,
    Language,
    Majority,
    MaxRetrieval,
    QuestionTask,
    Regular,
    SeparatedTask,
    SetComplement,
    Sort,
    Task,
    TokenTask,
    Tomita,
    find_task,
)

SCALES = ("smoke", "laptop", "overnight", "paper")


@dataclass(frozen=True)
class Size:
    models: int
    steps: int
    checkpoints: int = 100
    batch: int | None = None
    """Sequences per minibatch; None: as in the paper."""


Sizes = tuple[Size, Size, Size, Size]
"""In the order of SCALES. `paper` is the full protocol; the others have fewer models, steps and sequences."""


@dataclass(frozen=True)
class Entry:
    title: str
    settings: Callable[[str], tuple[Setting, ...]]
    """Scale -> settings; validation sets are smaller below `paper`."""
    variants: tuple[str, ...]
    sizes: Sizes
    run: str | None = None
    """Name of the run, if it is not the figure's: figures of the same models share a run."""
    own: Mapping[str, Variant] = field(default_factory=dict)
    """Variants that are no sum of parts, by name."""
    hyperparameters: Mapping[str, Given] = field(default_factory=dict)
    """Rows of the paper's table that are narrowed or fixed."""


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


IN_FEW_STEPS: Mapping[str, Given] = {"peak_learning_rate": (1e-3, 1e-2), "warmup_steps": (1.0, 100.0)}
"""The upper third of the paper's learning rates, and short warm-ups."""


def positions_on(task: str, settings: Callable[[str], tuple[Setting, ...]], laptop_steps: int) -> Entry:
    """With other learning rates and warm-ups few models learn even the trained lengths in so few steps, and a model
    that has learned nothing cannot lose accuracy at length."""
    laptop = Size(32, laptop_steps, 5, batch=16)
    return Entry(
        f"Ours: position encodings on {task}",
        settings,
        POSITIONS,
        (Size(2, 10, 2, batch=8), laptop, Size(64, 10_000, 10, batch=16), Size(100, 100_000)),
        hyperparameters=IN_FEW_STEPS,
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


def max_retrieval_far(scale: str) -> tuple[Setting, ...]:
    """Reported up to 16,384 items, on enough sets of each length to see differences of a percent."""
    items = {"smoke": 16_384, "laptop": 524_288, "overnight": 1_048_576, "paper": 1_048_576}[scale]
    return (Setting(MaxRetrieval(longest=16_384, items=items, selection_items=min(items, 16_384)), 16),)


QUESTIONS = {"smoke": 4, "laptop": 32, "overnight": 128, "paper": 512}
"""Scale -> questions of each n in the report set."""


def like_gpt2(task: QuestionTask, layers: int, d: int, heads: int) -> Callable[[str], tuple[Setting, ...]]:
    """Questions of up to 50 items, validated up to 150, for a transformer of the shape of a GPT-2."""
    model = Transformer(task.vocabulary, layers=layers, d=d, heads=heads, d_mlp=4 * d)
    return lambda scale: (Setting(task.with_options(sequences=QUESTIONS[scale]), task.train_items, model),)


AS_HUANG = {
    "peak_learning_rate": 1e-3,
    "weight_decay": 0.01,
    "one_minus_beta1": 0.1,
    "one_minus_beta2": 1e-3,
    "adam_epsilon": 1e-8,
    "max_gradient_norm": 1.0,
    "warmup_steps": 0.0,
    "end_multiplier": 0.0,
    "rms_epsilon": 1e-5,
}
"""Hyperparameters of Huang et al. (2025)."""
OF_QUESTIONS = (
    Size(2, 10, 2, batch=8),
    Size(32, 2_000, 4, batch=16),
    Size(64, 10_000, 10, batch=32),
    Size(100, 30_000, 10, batch=64),
)
OF_LONGER_ANSWERS = (OF_QUESTIONS[0], Size(32, 10_000, 5, batch=16), Size(64, 20_000, 10, batch=32), OF_QUESTIONS[3])
"""Sorting and copying take more steps than majority."""
IN_8000_STEPS = (
    Size(2, 10, 2, batch=8),
    Size(32, 8_000, 5, batch=16),
    Size(64, 20_000, 10, batch=32),
    Size(100, 100_000),
)
WITH_POSITIONS, WITHOUT_POSITIONS = "pre-final+layer+learned-offset", "pre-final+layer+nope"
PUBLISHED_POINT = "-published"
"""What an entry with published hyperparameters ends with."""
SEEDS = 8
"""Its draws, which differ in initial weights only."""


def _of_seeds(sizes: Sizes) -> Sizes:
    smoke, laptop, overnight, paper = (replace(size, models=min(SEEDS, size.models)) for size in sizes)
    return smoke, laptop, overnight, paper


def _flip_flop(scale: str) -> tuple[Setting, ...]:
    return _of_task(f"flip-flop,{OF_FAMILIES['transformer']}", scale)


def _legal_symbols(task: Language | TokenTask, title: str) -> Entry:
    """A language for a transformer of the shape of a GPT-2, scored by its sets of legal symbols."""

    def settings(scale: str) -> tuple[Setting, ...]:
        report, selection = VALIDATION[scale]
        sized = task
        if isinstance(task, Language):
            sized = replace(task, sequences=report, selection_sequences=selection)
        sized = sized.with_options(metrics=["sets"])
        assert task.usual_train_length
        model = Transformer(task.vocabulary, layers=2, d=32, heads=2, d_mlp=128)
        return (Setting(sized, task.usual_train_length, model),)

    return Entry(
        f"Anchors: {title}, next-symbol sets, with learned positions and without",
        settings,
        (WITH_POSITIONS, WITHOUT_POSITIONS),
        IN_8000_STEPS,
        hyperparameters=IN_FEW_STEPS,
    )


GPT2 = Variant("pre-final", "layer", positions="learned-offset")
ALGORITHMIC = {
    "anchors-sort": Entry(
        "Anchors: sorting, one head and two",
        like_gpt2(Sort(150, train_items=50), layers=1, d=64, heads=2),
        ("two-heads", "one-head"),
        OF_LONGER_ANSWERS,
        own={"two-heads": GPT2, "one-head": replace(GPT2, model=ModelChange(sizes=(("heads", 1),)))},
    ),
    "anchors-copy": Entry(
        "Anchors: copying distinct items, with learned positions and without",
        like_gpt2(Copy(150, train_items=50), layers=2, d=64, heads=2),
        (WITH_POSITIONS, WITHOUT_POSITIONS),
        OF_LONGER_ANSWERS,
    ),
    "anchors-majority": Entry(
        "Anchors: binary majority, with learned positions and without",
        like_gpt2(Majority(2, train_items=50), layers=1, d=16, heads=1),
        (WITH_POSITIONS, WITHOUT_POSITIONS),
        OF_QUESTIONS,
    ),
}
ATTENTIONS = ("peri+nape", "peri+entmax+nape", "peri+asentmax+nape")


def _like_gemma2(task: SeparatedTask) -> Callable[[str], tuple[Setting, ...]]:
    """For a transformer of two layers and four heads. A few long answers are not enough to see a difference of medians:
    four times the usual number of questions."""
    model = Transformer(task.vocabulary, layers=2, d=64, heads=4, d_mlp=256)
    return lambda scale: (Setting(task.with_options(sequences=4 * QUESTIONS[scale]), task.train_items, model),)


def _sparse(title: str, task: SeparatedTask) -> Entry:
    return Entry(
        f"Anchors: {title}, softmax, entmax and asentmax",
        _like_gemma2(task),
        ATTENTIONS,
        IN_8000_STEPS,
        hyperparameters=IN_FEW_STEPS,
    )


ANCHORS = {
    "anchors-max": Entry(
        "Anchors: Maximum Retrieval, softmax and adaptive temperature",
        max_retrieval_far,
        ("none", "none+adaptive-temperature"),
        (Size(16, 50, 2), Size(32, 20_000, 10), Size(96, 50_000, 20), Size(100, 100_000)),
    ),
    **{name: replace(entry, hyperparameters=IN_FEW_STEPS) for name, entry in ALGORITHMIC.items()},
    **{
        f"{name}{PUBLISHED_POINT}": replace(
            entry,
            title=f"{entry.title}; published hyperparameters",
            sizes=_of_seeds(entry.sizes),
            hyperparameters=AS_HUANG,
        )
        for name, entry in ALGORITHMIC.items()
    },
    "anchors-tomita-4": _legal_symbols(Tomita(4), "Tomita 4"),
    "anchors-tomita-7": _legal_symbols(Tomita(7), "Tomita 7"),
    "anchors-abab": _legal_symbols(Regular("abab"), "(abab)*"),
    "anchors-counter": _legal_symbols(Counter(3), "a^n b^n c^n"),
    "anchors-sparse-sort": _sparse("sorting", Sort(32, repeated=True, train_items=16)),
    "anchors-sparse-copy": _sparse("copying", Copy(32, repeated=True, train_items=16)),
    "anchors-flip-flop": Entry(
        "Anchors: flip-flop, transformers",
        _flip_flop,
        ("pre", "peri", "pre+log-n", "pre+window", "pre+dropout"),
        # of 16 models with 3,000 steps none had learned to read
        (Size(2, 10, 2, batch=8), Size(32, 12_000, 5, batch=16), Size(64, 30_000, 10, batch=16), Size(100, 100_000)),
        hyperparameters=IN_FEW_STEPS,
    ),
    "anchors-flip-flop-lstm": Entry(
        "Anchors: flip-flop, an LSTM",
        _flip_flop,
        ("lstm",),
        (Size(2, 10, 2, batch=8), Size(32, 4_000, 5, batch=16), Size(64, 10_000, 10, batch=16), Size(100, 100_000)),
        hyperparameters=IN_FEW_STEPS,
    ),
}
"""The study of published numbers (`analysis/anchors.py`)."""
OF_STUDIES = {**{f"tasks-{kind}": _family(kind) for kind in FAMILIES}, **ANCHORS}
"""Entries that are run as a part of a study only, or by their name."""
STUDIES = {
    "remedies": ("remedies-sct", "remedies-max", "remedies-dyck"),
    "positions": ("positions-tomita", "positions-dyck", "positions-flip-flop", "positions-copy"),
    "tasks": tuple(f"tasks-{kind}" for kind in FAMILIES),
    "anchors": tuple(ANCHORS),
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
        variants=choose(entry.variants, entry.own),
        models=size.models,
        steps=size.steps,
        checkpoints=size.checkpoints,
        hyperparameters=entry.hyperparameters,
    )
