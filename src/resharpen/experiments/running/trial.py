"""Trial of user code: a few sequences and one training step, before anything is written.

The logits of a model must depend only on the tokens so far: not on later tokens, padding, other sequences of the
minibatch or other models; and they must be deterministic. A task must sample from its p*. Code that fails is refused
with one line that says what changed first.

Shapes: M models, N sequences, L positions, V tokens, P places.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen import guard, own, streams
from resharpen.engines.base import Ensemble, Problem, weights_of
from resharpen.errors import UserError
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.experiments.specs.variant import DEFAULTS, Variant
from resharpen.tasks import Examples, Items, TokenTask, ValidationSet
from resharpen.tasks.task import NOTHING, ROUNDING

MODELS, SEQUENCES, LENGTH = 3, 4, 24
"""Tokens per sequence in a trial; fewer if the sequences of the task are shorter."""
TOLERANCE = 1e-4
"""How much logits may change, relative to the largest of their model: far above float32 rounding, and far below the
effect of a token with the weights of a trial."""
SAMPLED = 4096
"""Sequences that are compared with p*."""
FALSE_ALARMS = 1e-6
"""Probability that a correct task is refused: the level of all chi-square tests together."""
EXPECTED = 5.0
"""The smallest expected count of a cell of a chi-square test; rarer tokens are pooled."""

VALUES = 2**21
"""Limit on the number of values of p* that are checked."""
KINDS = 61
"""Number of classes into which pairs of tokens are hashed."""

Floats = NDArray[np.floating]
Logits = Callable[..., Floats]
"""Inputs, and which models -> logits: [M, N, L, V] of tokens, [M, N, C] of items."""


def try_own_code(experiment: Experiment) -> None:
    """UserError for user code that fails its trial: one trial per task, model and variant that contains user code."""
    tried: set[tuple[Any, ...]] = set()
    for shard in experiment.cells():
        task, variant = shard.setting.task, experiment.variants[shard.variant]
        if own.is_own(task.kind) and isinstance(task, TokenTask) and task not in tried:
            tried.add(task)  # pyright: ignore[reportArgumentType]
            with own.blamed(f"task '{task.name}' failed in your own code"):
                check_samples(task, experiment.seed)
        kinds = (task.kind, shard.setting.model_of(variant).kind, *variant.references())
        what = task, shard.setting.model, shard.variant
        if any(map(own.is_own, kinds)) and what not in tried:
            tried.add(what)
            with own.blamed(f"variant '{shard.variant}' failed in your own code"):
                try_variant(experiment, shard, variant)


# ---- models and parts ------------------------------------------------------------------------------------------------


def try_variant(experiment: Experiment, shard: Shard, variant: Variant) -> None:
    """UserError if the logits of a variant depend on anything but the tokens so far, or if it does not use a part."""
    first = replace(shard, count=min(MODELS, experiment.models))
    problem = replace(experiment.problem(first), batch=SEQUENCES, device="cpu", steps=max(2, experiment.steps))
    problem = replace(problem, parts=shard.setting.parts_of(variant))  # also what is only scored with
    before, failed = guard.arithmetic(), None
    try:
        trial = _Trial(problem, experiment.ensemble(first))
        with contextlib.ExitStack() as calls:
            called = [(name, calls.enter_context(_counted(*where))) for name, where in _declared(problem, variant)]
            trial.step()
            # randomized positions of a prefix depend on the length of the input by design
            by_length = problem.parts.positions.by_length and not own.is_own(str(variant.positions))
            check_model(trial.logits, trial.inputs, problem.task.vocabulary, by_length)
        if never := [name for name, times in called if not times]:
            raise UserError(f"{never[0]} is never called: it would have no effect on this variant")
        check_softmax(problem, trial)
    except Exception as error:
        failed = error
    if name := guard.changed(before):  # this may be why it failed
        what = f"your code calls {name} and does not restore it, which affects other code: restore it"
        raise UserError(f"variant '{shard.variant}': {what}") from failed
    if isinstance(failed, UserError) and not isinstance(failed, own.OwnCodeError):
        raise UserError(f"variant '{shard.variant}': {failed}") from failed
    if failed is not None:
        raise failed


class _Trial:
    """A few models of a problem, with weights at which every parameter has an effect, and their input sequences."""

    def __init__(self, problem: Problem, ensemble: Ensemble):
        from resharpen.engines.torch.definition import Definition

        self._ensemble = ensemble
        self._engine = Definition(replace(problem, task=_Probe(problem.task)), ensemble)
        self.weights = self._engine.dump()
        self.inputs = _inputs(problem)

    def step(self) -> None:
        """One training step, then perturb the weights: a parameter that is zero would hide what it depends on."""
        self._engine.advance(1)
        random = np.random.default_rng(0)
        theta = weights_of(self._engine.dump(), self._ensemble, "train")
        moved = {
            name: (x + random.normal(0, 1 / np.sqrt(x.shape[-2]) if x.ndim > 2 else 0.2, x.shape)).astype(x.dtype)
            for name, x in theta.items()
        }
        initial = {name.removeprefix("theta_0."): x for name, x in self.weights.items() if name.startswith("theta_0.")}
        for weights in (moved, initial):
            self.weights = weights
            if np.isfinite(self.logits(self.inputs)).all():
                return
        if not any(np.isfinite(x).all() for x in self.logits(self.inputs)):
            raise UserError("the logits of all models are not finite at the initial weights")

    def logits(self, inputs: Any, models: slice = slice(None), **parts: Any) -> NDArray[np.float32]:
        """Logits of some of the models, in scoring mode."""
        from resharpen.engines.torch.definition import Definition

        engine = self._engine
        if parts or models != slice(None):
            of_these = {name: x[models] for name, x in self._ensemble.hyperparameters.items()}
            problem = replace(engine.problem, parts=replace(engine.problem.parts, **parts))
            engine = Definition(problem, Ensemble(self._ensemble.draw_M[models], of_these))
        weights = {name: x[models] for name, x in self.weights.items()}
        found = engine.measure(weights, inputs)["logits"]
        return found if isinstance(inputs, Items) else found.reshape(len(found), *inputs.shape, -1)


class _Probe:
    """A task whose examples are the given inputs, all of them scored, and whose score is the logits."""

    metric, measures = "logits", ("logits",)

    def __init__(self, task: Any):
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def examples(self, inputs: Any) -> Examples:
        shape = inputs.length.shape if isinstance(inputs, Items) else inputs.shape
        return Examples(inputs, np.ones(shape, bool), {})

    def score(self, logits_MxPxV: Any, truth: Any) -> dict[str, Any]:
        return {"logits": logits_MxPxV}


def _inputs(problem: Problem) -> Any:
    """The first sequences of the selection set, which every model must be able to read."""
    pieces = problem.task.validation(problem.seed, "selection").pieces(1)
    read = [problem.task.examples(piece).inputs for piece in islice(pieces, SEQUENCES)]
    if isinstance(read[0], Items):
        return Items(*(np.concatenate(arrays) for arrays in zip(*read, strict=True)))
    return np.concatenate(read)[:SEQUENCES, :LENGTH]


def check_model(logits: Logits, inputs: Any, vocabulary: int, by_length: bool = False) -> None:
    """UserError for logits that depend on anything but their model and the tokens so far; `by_length` also allows the
    length of the whole input."""
    base, again = logits(inputs), logits(inputs)
    if not np.array_equal(base, again, equal_nan=True):
        raise UserError(
            "the logits differ between two calls with the same sequences: scoring must be deterministic and stateless"
        )
    if isinstance(inputs, Items):
        pad = [(0, 0), (0, 3)]
        longer = Items(np.pad(inputs.priority, pad, constant_values=0.99), np.pad(inputs.kind, pad), inputs.length)
        _refuse_moved(base, logits(longer), "the padding behind its items")
    else:
        for cut in sorted({1, inputs.shape[1] // 2, inputs.shape[1] - 1} - {0}):
            later = inputs.copy()
            later[:, cut:] = (later[:, cut:] + 1) % vocabulary
            _refuse_moved(base[:, :, :cut], logits(later)[:, :, :cut], "later tokens")
            if not by_length:
                _refuse_moved(base[:, :, :cut], logits(inputs[:, :cut]), "the amount of padding")
    some = inputs._make(x[:1] for x in inputs) if isinstance(inputs, Items) else inputs[:1]
    _refuse_moved(base[:, :1], logits(some), "the other sequences of a minibatch")
    _refuse_moved(base[:1], logits(inputs, slice(1)), "the other models of an ensemble")


def _refuse_moved(before: Floats, after: Floats, what: str) -> None:
    """UserError if logits changed by more than TOLERANCE, with the first number of tokens at which they did."""
    if before.shape != after.shape:
        raise UserError(f"the logits have the shape {list(after.shape)}, not {list(before.shape)}")
    moved = _moved(before, after)
    if (far := moved > TOLERANCE).any():
        place = f" after {np.nonzero(far)[2].min() + 1} tokens" if far.ndim == 4 else ""
        raise UserError(f"the logits{place} depend on {what}: they change by {moved.max():.1g} of the largest logit")


def _moved(before: Floats, after: Floats) -> Floats:
    """Differences of logits, relative to the largest of their model; 1 where only one of the two is finite."""
    known, still = np.isfinite(before), np.isfinite(after)
    scale = np.where(known, np.abs(before), 0).max(axis=tuple(range(1, before.ndim)), keepdims=True)
    distance = np.abs(np.where(known, before, 0) - np.where(still, after, 0))
    return np.where(known == still, distance / np.maximum(scale, np.finfo(np.float32).tiny), 1.0)


def _declared(problem: Problem, variant: Variant) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Functions of a variant that its model must call: the user's parts, and the parts that a user's model accepts."""
    parts, usual = problem.parts, {*DEFAULTS.values(), type(problem.model).positions, "nope"}
    kinds = ("norm", "attention", "positions", "dropout")
    named = [(str(getattr(variant, kind)), getattr(parts, kind)) for kind in kinds]
    named += [(name, part) for (_, name), (_, part) in zip(variant.norm_at, parts.norm_at, strict=True)]
    for name, part in named:
        if not own.is_own(name) and (not own.is_own(problem.model.kind) or name in usual):
            continue
        if not getattr(part, "softmax", False):  # otherwise torch's attention is used instead: see `check_softmax`
            yield f"the function of '{part.name}'", (part, "function")
        for further in ("scale", "output"):
            if getattr(part, further, None) is not None:
                yield f"{further} of '{part.name}'", (part, further)


@contextlib.contextmanager
def _counted(part: Any, name: str) -> Iterator[list[bool]]:
    """A list that gets an entry for every call of a function of a part."""
    times, function = list[bool](), getattr(part, name)

    def counted(*arguments: Any) -> Any:
        times.append(True)
        return function(*arguments)

    object.__setattr__(part, name, counted)  # in place, because some parts are compared by identity
    try:
        yield times
    finally:
        object.__setattr__(part, name, function)


def check_softmax(problem: Problem, trial: _Trial) -> None:
    """UserError for an attention declared with `softmax=True`, which torch then computes, that is not a softmax."""
    part = problem.parts.attention
    if part.softmax:
        apart = trial.logits(trial.inputs, attention=replace(part, softmax=False))
        if (_moved(trial.logits(trial.inputs), apart) > TOLERANCE).any():
            raise UserError(f"'{part.name}' is declared with softmax=True and is not rs.masked_softmax(e, mask)")


# ---- tasks -----------------------------------------------------------------------------------------------------------


def check_samples(task: TokenTask, seed: int) -> None:
    """UserError for a task that does not sample from its p*, at places that are trained or scored."""
    length = min(task.longest, LENGTH)
    count = min(SAMPLED, max(64, VALUES // (length * task.vocabulary)))
    key = streams.key(seed, task.name, "trial")
    tokens_NxL = task._drawn(key, count, length)

    def wrong(what: str) -> UserError:
        return UserError(f"task '{task.name}': {what}")

    if not np.array_equal(tokens_NxL, task._drawn(key, count, length)):
        raise wrong("sample returns different tokens for the same random words: it must depend on them only")
    if not np.array_equal(tokens_NxL[:1], task._drawn(key, 1, length)):
        raise wrong("a sequence of sample depends on the other sequences: it must depend on its own random words only")
    if task.sets and any(len(set(row)) < length for row in tokens_NxL.tolist()):
        raise wrong("it declares sets = True, but sample returns a token twice in one sequence")
    inputs_NxL, next_NxL = tokens_NxL[:, :-1].clip(0), tokens_NxL[:, 1:]
    used_NxL = (task.trained_places(inputs_NxL) | task.scored_places(inputs_NxL)) & (next_NxL != NOTHING)
    if not used_NxL.any():
        return
    p_NxLxV = _p_star(task, inputs_NxL, used_NxL)
    for cut in sorted({1, length // 2} - {0}):
        short = _p_star(task, inputs_NxL[:, :cut], used_NxL[:, :cut])
        if (np.abs(short - p_NxLxV[:, : short.shape[1]]) > ROUNDING).any():
            raise wrong("p_star depends on later tokens: it must be the distribution after a prefix")
    p_NxL = np.take_along_axis(p_NxLxV, next_NxL[:, :, None], axis=2)[:, :, 0]
    if (never_NxL := used_NxL & (p_NxL <= 0)).any():
        n, i = np.argwhere(never_NxL)[0]
        prefix = ", ".join(map(str, inputs_NxL[n, : i + 1]))
        raise wrong(f"sample returns token {next_NxL[n, i]} after [{prefix}], which has p_star = 0")
    if said := _unlike(p_NxLxV, inputs_NxL, next_NxL, used_NxL):
        raise wrong(f"sample does not follow p_star: {said}")


def _p_star(task: TokenTask, inputs_NxL: NDArray[np.int64], used_NxL: NDArray[np.bool_]) -> Floats:
    """p* of every prefix that is used, [N, L, V], checked to be probabilities; elsewhere zero."""
    p_NxLxV = np.zeros((*inputs_NxL.shape, task.vocabulary))
    p_NxLxV[used_NxL] = task.examples(ValidationSet(inputs_NxL, used_NxL)).truth["p_star"]
    return p_NxLxV


def _unlike(
    p_NxLxV: Floats, inputs_NxL: NDArray[np.int64], next_NxL: NDArray[np.int64], used_NxL: NDArray[np.bool_]
) -> str:
    """The first class of prefixes in which token counts deviate from p*; empty if there is none.

    Pearson's chi-square over classes of prefixes and tokens. Counts over different prefixes vary less than those of one
    multinomial, so the test is conservative.
    """
    from scipy.special import gammaincc

    V, place_NxL = p_NxLxV.shape[-1], np.broadcast_to(np.arange(inputs_NxL.shape[1]), inputs_NxL.shape)
    before_NxL = np.roll(inputs_NxL, 1, axis=1) * (place_NxL > 0)
    first_NxL = np.broadcast_to(inputs_NxL[:, :1], inputs_NxL.shape)
    kinds = {
        "after {} tokens": place_NxL + 1,
        "where the last token is {}": inputs_NxL,
        "where the last token but one is {}": before_NxL,
        "where the first token is {}": first_NxL,
        "where the last two tokens are of kind {}": (inputs_NxL * 7 + before_NxL) % KINDS,
    }
    for name, kind_NxL in kinds.items():
        groups = int(kind_NxL.max()) + 1
        expected, found = np.zeros((groups, V)), np.zeros((groups, V))
        np.add.at(expected, kind_NxL[used_NxL], p_NxLxV[used_NxL])
        np.add.at(found, (kind_NxL[used_NxL], next_NxL[used_NxL]), 1)
        rare = expected < EXPECTED
        cells_E = np.append(expected[~rare], expected[rare].sum())
        cells_O = np.append(found[~rare], found[rare].sum())
        enough = cells_E >= EXPECTED
        square = ((cells_O - cells_E) ** 2 / np.maximum(cells_E, EXPECTED))[enough].sum()
        if gammaincc(enough.sum() / 2, square / 2) < FALSE_ALARMS / len(kinds):
            distance = np.where(rare, 0, (found - expected) ** 2 / np.maximum(expected, EXPECTED))
            group, token = np.unravel_index(distance.argmax(), distance.shape)
            often = f"{found[group, token]:.0f} times, expected from p_star: {expected[group, token]:.1f}"
            return f"{name.format(group)} token {token} occurred {often}"
    return ""
