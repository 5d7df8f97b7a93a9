"""Experiment specs as frozen dataclasses: what to train, with everything that can change a result."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from resharpen import objects, own, streams
from resharpen.engines.base import Ensemble, Problem, setting_name
from resharpen.errors import UserError, unknown
from resharpen.experiments.specs.schema import RESERVED
from resharpen.experiments.specs.variant import OF_THE_TASK, Variant, choose, meaning, sizes_of, sum_name
from resharpen.models import MODELS, Model, find_model
from resharpen.optim import find_optimizer
from resharpen.optim.hyperparameters import TABLE, Given, Row, draw, narrowed
from resharpen.optim.schedules import find_schedule
from resharpen.parts import Parts
from resharpen.plain import known, shown, typed
from resharpen.streams import GROUP
from resharpen.tasks import TASKS, Task, find_task

ENGINES = ("auto", "torch", "native")
LARGEST = 2**31 - 1
"""Limit on models, steps and the like, from the counters of the random streams."""
MOST_WEIGHTS = 10**9
"""Limit on the weights of one model; at least sixteen are trained side by side."""
CHECKED_AT_ONCE = 2**21
"""Limit on places x tokens of a user's task that are checked at once."""
LONGEST_NAME = 200
"""Limit on the name of a directory in a run, with room for the rest of a path."""


def check_name(name: str, what: str = "name") -> None:
    """UserError unless the name can be that of one directory."""
    encoded = typed(what, name, str).encode("utf-8", "surrogateescape")  # a file's name need not be UTF-8
    bad = any(x in "/\\" or not x.isprintable() for x in encoded.decode("utf-8", "replace"))
    if bad or not name.strip() or name.startswith("."):
        raise UserError(f"{what} = {name!r}: must be one name, without '/', '\\' or a dot in front")
    if len(encoded) > LONGEST_NAME:
        raise UserError(f"{what} = {name[:20]!r}...: at most {LONGEST_NAME} characters")


@dataclass(frozen=True)
class Setting:
    """Task and training length, which key the random streams, and the model that variants start from."""

    task: Task
    train_length: int
    model: Model = None  # pyright: ignore[reportAssignmentType]
    """Default: the task's default model."""
    sizes: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    """The sizes that the spec sets; a user's model gets them, too. None: those that differ from the defaults."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", adopted(self.task, TASKS, find_task))
        self.task.check_train_length(self.train_length)
        if self.model is None:
            object.__setattr__(self, "model", usual_model(self.task))
        object.__setattr__(self, "model", adopted(self.model, MODELS, find_model))
        check_fits(self.task, self.model)
        if self.sizes is None:
            usual = type(self.model).usual(self.task.vocabulary)
            names = [size.name for size in fields(self.model)]  # pyright: ignore[reportArgumentType]
            object.__setattr__(self, "sizes", tuple(x for x in names if getattr(usual, x) != getattr(self.model, x)))

    @property
    def name(self) -> str:
        return setting_name(self.task, self.train_length)

    def model_of(self, variant: Variant) -> Model:
        assert self.sizes is not None
        change, base = variant.model, self.model
        model = change.apply(base, self.task.vocabulary, self.sizes) if change else base
        check_fits(self.task, model)
        return model

    def parts_of(self, variant: Variant) -> Parts:
        """The parts of a variant; UserError if the model cannot use one of them."""
        return variant.parts(self.model_of(variant), self.task.longest_input)


def labels(settings: Sequence[Setting]) -> dict[str, str]:
    """Name of a setting -> short label with what distinguishes it: `s = 3`, `v = 16, s = 3` or `Tomita 3`."""
    titles = list(dict.fromkeys(setting.task.title for setting in settings))
    pieces = {title: re.split(r", (?![^(]*\))", title) for title in titles}
    shared = set.intersection(*map(set, pieces.values())) if len(titles) > 1 else set(pieces[titles[0]])
    several = len({(setting.task.title, setting.train_length) for setting in settings}) > len(titles)
    found = {}
    for setting in settings:
        differs = [piece for piece in pieces[setting.task.title] if piece not in shared]
        differs += [f"s = {setting.train_length}"] if several else []
        found[setting.name] = ", ".join(differs) or setting.task.title
    return found


def adopted(thing: Any, catalog: Mapping[str, type], find: Callable[[str], type]) -> Any:
    """A task or model, unchanged if built in. The class of a user's object is registered, and named by its reference
    from here on."""
    kind = getattr(type(thing), "kind", "")
    if catalog.get(kind) is type(thing) or (own.is_own(kind) and "kind" in vars(type(thing))):
        return thing
    found = find(objects.refer(type(thing)))
    if isinstance(thing, found):
        return thing
    return found(**{field.name: getattr(thing, field.name) for field in fields(thing)})


def usual_model(task: Task) -> Model:
    return find_model(task.usual_model).usual(task.vocabulary)


@cache
def check_own_task(task: Task, seed: int, train_length: int) -> None:
    """UserError for a user's task whose validation sets or first minibatch are invalid; once per process."""
    with own.blamed(f"task '{task.name}' failed in your own code"):
        sets = [(task, "selection"), *((task.tested(test), "report") for test in ("", *task.tests))]
        for of, use in sets:
            for piece in of.validation(seed, use).pieces(CHECKED_AT_ONCE // task.vocabulary):
                of.examples(piece)
        task.batch(streams.key(seed, setting_name(task, train_length), "batch"), 0, 0, task.usual_batch, train_length)


@cache
def check_own_module(task: Task, model: Model, seed: int, train_length: int) -> None:
    """UserError for a user's module that cannot be trained on a task, before training. Once per process."""
    from resharpen.models.adapter import ModuleModel, check_module

    assert isinstance(model, ModuleModel)
    key = streams.key(seed, setting_name(task, train_length), "batch")
    few, others = (task.batch(key, 0, step, n, train_length).inputs for step, n in ((0, 3), (1, 2)))
    with own.blamed(f"the module '{own.short(model.kind)}' failed in your own code"):
        check_module(model, few, others, longest_input(task, seed, few))


def longest_input(task: Task, seed: int, inputs: Any) -> Any:
    """One input of the longest reported length: the first of `inputs` repeated, if the task declares this length, else
    from its report set."""
    lengths = None if own.is_own(task.kind) else task.reported_lengths
    if lengths is None:
        *_, last = task.validation(seed, "report").pieces(1)
        return task.examples(last).inputs
    if isinstance(inputs, tuple):
        priority, kind, _ = (np.resize(x[:1], (1, max(lengths))) for x in inputs)
        return inputs._replace(priority=priority, kind=kind, length=np.array([max(lengths)]))  # pyright: ignore[reportAttributeAccessIssue]
    return np.resize(inputs[:1], (1, max(lengths)))


def _given(name: str, value: Any) -> Given:
    """A row of [hyperparameters] as a number, a pair or a Row."""
    if isinstance(value, Row):
        return value
    numbers = value if isinstance(value, list | tuple) else [value]
    if len(numbers) not in (1, 2) or any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        raise UserError(f"{name} = {shown(value)}: allowed are a number or [low, high]")
    low, high = (typed(name, x, float) for x in (numbers[0], numbers[-1]))
    return low if low == high else (low, high)


def check_fits(task: Task, model: Model) -> None:
    if model.reads != task.reads:
        raise UserError(f"the model '{own.short(model.kind)}' reads {model.reads}, but {task.name} has {task.reads}")
    for size in sizes_of(model):
        if getattr(model, size) is None:
            takes = ", ".join(sizes_of(model))
            name = own.short(model.kind)
            raise UserError(
                f"the model '{name}' needs {size}, as in model = {{ kind = ..., {size} = 32 }} (it takes: {takes})"
            )
    for size in OF_THE_TASK:
        given = getattr(model, size, task.vocabulary)
        if given != task.vocabulary:
            raise UserError(f"{size} = {given}: {task.name} has {task.vocabulary}")


@dataclass(frozen=True)
class Shard:
    """Consecutive draws of one group, of one setting and variant: the unit of work and of resumption."""

    setting: Setting
    variant: str
    first: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.setting.name}/{self.variant}/{self.first:05d}-{self.first + self.count - 1:05d}"

    @property
    def draw_M(self) -> np.ndarray:
        return np.arange(self.first, self.first + self.count)

    @property
    def model_ids(self) -> list[str]:
        return models_of(self.name)


def models_of(shard: str) -> list[str]:
    """Ids of the models of the shard of that name.

    >>> models_of("sct-v9-s3/peri/00016-00018")
    ['sct-v9-s3/peri/16', 'sct-v9-s3/peri/17', 'sct-v9-s3/peri/18']
    """
    cell, _, draws = shard.rpartition("/")
    first, last = map(int, draws.split("-"))
    return [f"{cell}/{i}" for i in range(first, last + 1)]


def shard_named(experiment: Experiment, name: str) -> Shard:
    """The shard of that name, of any size; ValueError if the experiment cannot have it."""
    for setting in experiment.settings:
        for variant in experiment.variants:
            draws = re.fullmatch(r"(\d{5,10})-(\d{5,10})", name.removeprefix(f"{setting.name}/{variant}/"))
            first, last = map(int, draws.groups()) if draws else (0, -1)
            shard = Shard(setting, variant, first, last - first + 1)
            if first <= last < experiment.models and shard.name == name:
                return shard
    raise ValueError(f"'{name}' is not a shard of {experiment.name}")


@dataclass(frozen=True)
class Role:
    """What a field of an experiment is for: lists of fields are derived from these."""

    kind: type[int] | type[str] | None = None
    """Its type in a TOML file; None if it has its own table there."""
    trains: bool = False
    """It changes trained models, so it is part of the identity of a shard."""
    pairs: bool = False
    """Two runs must agree on it to be compared pair by pair, or with a reference."""
    option: bool = False
    """The command line can change it."""
    shown: str = ""
    """Its name in the report, shown if it differs from the paper's protocol."""


def role(kind: type[int] | type[str] | None = None, default: Any = MISSING, **roles: Any) -> Any:
    """A field of an experiment, declared with its role."""
    return field(default=default, metadata={"role": Role(kind, **roles)})


def roles(experiment: type[Experiment] | Experiment) -> dict[str, Role]:
    return {field.name: field.metadata["role"] for field in fields(experiment)}


@dataclass(frozen=True)
class Experiment:
    name: str = role(str)
    settings: tuple[Setting, ...] = role()
    variants: Mapping[str, Variant] = role()
    """Variants by name; also accepts a list of sums such as `peri+log-n`."""
    models: int = role(int, option=True, shown="models per violin")
    steps: int = role(int, trains=True, pairs=True, option=True, shown="training steps")
    batch: int | None = role(int, default=None, trains=True, pairs=True, shown="sequences in a minibatch")
    """Default: the task's default."""
    checkpoints: int = role(int, default=100, trains=True, pairs=True, shown="checkpoints")
    seed: int = role(int, default=0, trains=True, pairs=True, option=True)
    engine: str = role(str, default="auto", option=True)
    """Not part of the identity, which has the engine of each variant, resolved when a run starts."""
    device: str = role(str, default="cpu", trains=True, option=True)
    """Device of the torch engine: cpu, cuda or mps."""
    march: str = role(str, default="native", trains=True, option=True)
    """Instruction set of native kernels: that of this machine, or one that several machines support (x86-64-v3)."""
    hyperparameters: Mapping[str, Given] = field(default_factory=dict, metadata={"role": Role(pairs=True)})
    """Rows of the hyperparameter table that differ from those of the paper or of the parts: a number, a pair (low,
    high) in the scale of each variant's row, or a Row with its scale."""
    baseline: str | None = role(str, default=None)
    """The variant that others are compared with, by default the first. It does not change training."""

    def __post_init__(self) -> None:
        if not self.settings or not self.variants:
            raise UserError("an experiment needs at least one training length and one variant")
        if self.batch is None:
            object.__setattr__(self, "batch", self.settings[0].task.usual_batch)
        check_name(self.name)
        ranges = dict.fromkeys(("models", "steps", "batch", "checkpoints"), (1, LARGEST)) | {"seed": (0, 2**63 - 1)}
        for name, (low, high) in ranges.items():
            if not low <= typed(name, value := getattr(self, name), int) <= high:
                must = f"at least {low}" if value < low else f"at most {high:,}"
                raise UserError(f"{name} = {shown(value)}: must be {must}")
        self._check_settings()
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", self.march):
            raise UserError(f"march = {self.march!r}: the name of an instruction set, such as native or x86-64-v3")
        if self.engine == "native" and self.device != "cpu":
            raise UserError(f"device = {self.device}: the native engine supports only cpu")
        object.__setattr__(self, "variants", self._named_variants())
        given = typed("hyperparameters", self.hyperparameters, Mapping, "a table")
        object.__setattr__(self, "hyperparameters", {name: _given(name, value) for name, value in given.items()})
        self._check_variants()
        object.__setattr__(self, "baseline", self._named_baseline())

    def _check_settings(self) -> None:
        if len({setting.task.kind for setting in self.settings}) > 1:
            raise UserError("all tasks of an experiment must be of one kind")
        if len({setting.model.kind for setting in self.settings}) > 1:
            raise UserError("all tasks of an experiment must have one kind of model; use a variant for another one")
        for setting in self.settings:
            check_name(setting.name, "name of a task")
            if own.is_own(setting.task.kind):
                check_own_task(setting.task, self.seed, setting.train_length)
        # some file systems ignore case
        names = [setting.name.lower() for setting in self.settings]
        if twice := {name for name, n in Counter(names).items() if n > 1}:
            raise UserError(
                f"two tasks are called '{twice.pop()}': run them separately, or make what differs a variant"
            )

    def _named_variants(self) -> dict[str, Variant]:
        """Resolved variants. A sum is named by its parts in order, so that two spellings are one variant."""
        given = self.variants if isinstance(self.variants, Mapping) else choose(self.variants, {})
        named: dict[str, Variant] = {}
        for written, variant in given.items():
            self._check_sizes(written, variant)
            whole, said = self._resolved(variant), meaning(written)
            is_sum = own.is_own(written) or (said is not None and self._same(said, whole))
            name = sum_name(whole, self.settings[0].model_of(variant)) if is_sum else written
            means = meaning(name)
            # a run that is older than a built-in part of that name stays readable
            older = variant.engine is not None and bool(variant.references())
            if means is not None and not self._same(means, whole) and not older:
                how = "in [variant.NAME], or of the function in your file"
                raise UserError(f"variant '{name}' is the name of a built-in variant: choose another name, {how}")
            if name in named:
                raise UserError(f"variant '{name}' is given twice")
            check_name(name, "name of a variant")
            if name.lower() in {other.lower() for other in named}:
                raise UserError(
                    f"variant '{name}' differs from another in capitals only: some file systems ignore case"
                )
            named[name] = whole
        return named

    def _check_sizes(self, name: str, variant: Variant) -> None:
        """UserError if a user's model would get different sizes from different tasks."""
        if variant.model is None or not own.is_own(variant.model.kind or "") or variant.model.whole:
            return
        takes = sizes_of(self.settings[0].model_of(variant))
        for size in (x for x in takes if x not in dict(variant.model.sizes)):
            if len({getattr(s.model, size) if size in (s.sizes or ()) else None for s in self.settings}) > 1:
                raise UserError(
                    f"variant '{own.short(name)}': the tasks have different sizes {size}: run them apart, or set it "
                    "in the variant's model"
                )

    def _named_baseline(self) -> str | None:
        if self.baseline is None or self.baseline in self.variants:
            return self.baseline
        said = meaning(self.baseline)
        for name, variant in self.variants.items():
            if said is not None and self._same(said, variant):
                return name
        raise unknown("baseline", self.baseline, self.variants)

    def _resolved(self, variant: Variant) -> Variant:
        return variant.resolved(self.settings[0].model_of(variant))

    def _same(self, a: Variant, b: Variant) -> bool:
        """Whether two variants have the same parts, whatever their engines."""
        return replace(self._resolved(a), engine=None) == replace(self._resolved(b), engine=None)

    def _check_variants(self) -> None:
        for name, variant in self.variants.items():
            for setting in self.settings:
                try:
                    model = setting.model_of(variant)
                    parts = setting.parts_of(variant)
                    weights = self.parameter_count(setting, name)
                    if weights > MOST_WEIGHTS:
                        raise ValueError(f"a model of {weights:,} weights is too large: at most {MOST_WEIGHTS:,}")
                except ValueError as error:
                    raise UserError(f"variant '{name}': {error}") from error
                if model.is_module:
                    check_own_module(setting.task, model, self.seed, setting.train_length)
                read, learned = parts.attention, {**parts.attention.parameters, **parts.attention.hyperparameters}
                if not read.trains and (learned or read.output):
                    what = f"has {', '.join(learned)}" if learned else "acts on the output of the heads"
                    raise UserError(f"variant '{name}': {read.name} {what}, and no model trains with it")
            find_optimizer(variant.optimizer)
            if variant.engine not in (None, "torch", "native"):
                raise unknown(f"engine of variant '{name}'", str(variant.engine), ENGINES[1:])
            self._check_columns(variant)
        known("hyperparameter", self.hyperparameters, {row for v in self.variants.values() for row in self.rows(v)})

    def _check_columns(self, variant: Variant) -> None:
        rows = self.rows(variant)
        if taken := [row for row in rows if row in RESERVED]:
            raise UserError(f"a hyperparameter cannot be called '{taken[0]}': the tables have a column of that name")
        for setting in self.settings:
            values: dict[str, Any] = {}
            for what, thing in (("task", setting.task), ("model", setting.model_of(variant))):
                for name in (f.name for f in fields(thing)):  # pyright: ignore[reportArgumentType]
                    value = getattr(thing, name)
                    if name in RESERVED or name in rows or values.setdefault(name, value) != value:
                        raise UserError(f"a {what} cannot have a field '{name}': the tables have a column of that name")
                    if what == "model":
                        typed(f"{name} of a {own.short(thing.kind)}", value, int)

    def parameter_count(self, setting: Setting, variant: str) -> int:
        """Number of parameters of a model."""
        chosen = self.variants[variant]
        parameters = setting.model_of(chosen).parameters(setting.parts_of(chosen))
        return sum(math.prod(map(int, p.shape)) for p in parameters.values())

    def usual_rows(self, variant: Variant) -> dict[str, Row]:
        """The default hyperparameter table of a variant: the paper's, and the rows of its parts."""
        parts = self.settings[0].parts_of(variant)
        schedule, optimizer = find_schedule(variant.schedule), find_optimizer(variant.optimizer)
        return {**TABLE, **optimizer.hyperparameters, **schedule.hyperparameters, **parts.hyperparameters}

    def rows(self, variant: Variant) -> dict[str, Row]:
        """The hyperparameter table of a variant."""
        rows, given = self.usual_rows(variant), self.hyperparameters
        return {name: narrowed(name, given[name], row) if name in given else row for name, row in rows.items()}

    def checkpoint_steps(self) -> list[int]:
        """Evenly spaced, the last at step T; fewer if there are fewer steps."""
        if self.checkpoints >= self.steps:
            return list(range(1, self.steps + 1))
        return sorted({round(self.steps * (i + 1) / self.checkpoints) for i in range(self.checkpoints)} - {0})

    def shards(self, extents: Iterable[int] = ()) -> list[Shard]:
        """All shards, group by group, so that a run in progress is balanced over settings and variants. Shards also end
        at `extents`, the numbers of models that the run had before it was extended."""
        cuts = sorted({*range(0, self.models, GROUP), *extents, self.models})
        return [
            Shard(setting, variant, first, end - first)
            for first, end in pairwise(cuts)
            for setting in self.settings
            for variant in self.variants
        ]

    def cells(self) -> list[Shard]:
        """The first draw of every setting and variant."""
        return [Shard(setting, variant, 0, 1) for setting in self.settings for variant in self.variants]

    def shard_sizes(self) -> dict[int, int]:
        """Models per shard -> number of such shards, for each setting and variant."""
        full, rest = divmod(self.models, GROUP)
        return {GROUP: full, rest: 1} if rest else {GROUP: full}

    def problem(self, shard: Shard) -> Problem:
        """What the models of a shard train on."""
        variant = self.variants[shard.variant]
        assert self.batch is not None
        return Problem(
            task=shard.setting.task,
            model=shard.setting.model_of(variant),
            parts=shard.setting.parts_of(variant).in_training,
            train_length=shard.setting.train_length,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            optimizer=find_optimizer(variant.optimizer),
            schedule=find_schedule(variant.schedule),
            device=self.device,
            march=self.march,
        )

    def ensemble(self, shard: Shard) -> Ensemble:
        rows = self.rows(self.variants[shard.variant])
        return Ensemble(shard.draw_M, draw(rows, self.seed, shard.setting.name, shard.draw_M))

    def references(self) -> list[str]:
        """References to user code."""
        kinds = [kind for s in self.settings for kind in (s.task.kind, s.model.kind) if own.is_own(kind)]
        metrics = [name for s in self.settings for name in s.task.own_metrics if isinstance(name, str)]
        kinds += [name for name in metrics if own.is_own(name)]
        parts = [name for variant in self.variants.values() for name in variant.references()]
        return list(dict.fromkeys([*kinds, *parts]))

    def with_changes(self, variants: Iterable[str] | None = None, **given: Any) -> Experiment:
        """The same experiment with other variants, `models`, `steps`, `seed`, `engine`, `device` or `march`; None keeps
        a field. A baseline that is not among the new variants is dropped."""
        known("field", given, [name for name, role in roles(self).items() if role.option])
        if variants is not None:
            given["variants"] = choose(variants, self.variants)
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            return self
        changed = replace(self, baseline=None, **changes)
        return changed._with(baseline=self.baseline if self.baseline in changed.variants else None)

    def with_engines(self, engines: Mapping[str, str | None], engine: str | None = None) -> Experiment:
        """The same experiment with an engine for each variant, and the requested `engine`."""
        variants = {name: replace(variant, engine=engines[name]) for name, variant in self.variants.items()}
        return self._with(variants=variants, engine=engine or self.engine)

    def _with(self, **fields: Any) -> Experiment:
        """A copy with other fields, which are not validated again: a spec is checked once on its way to a run."""
        made = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made
