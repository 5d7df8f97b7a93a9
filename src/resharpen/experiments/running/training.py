"""Training of one shard: train to the next checkpoint, score, store the best weights, save; at the end, report.

A shard that is killed continues from its last saved state and ends with the same bits.

Shapes: M models, C checkpoints.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Engine, weights_of
from resharpen.engines.choose import make_engine, make_reader, measure_all, on_task
from resharpen.errors import UserError
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.checks import check_arrays, check_state
from resharpen.experiments.keeping.longer import same_rates
from resharpen.experiments.keeping.reading import Reader
from resharpen.experiments.keeping.shard import FINAL, ShardFiles
from resharpen.experiments.keeping.store import engine_of
from resharpen.experiments.keeping.tables import curves_table, lengths_table, models_table
from resharpen.experiments.specs.schema import SLOTS
from resharpen.experiments.specs.spec import Experiment, Shard
from resharpen.lazy import pl
from resharpen.metrics import ByLength
from resharpen.state import SELECTIONS, WEIGHTS, Arrays, arrays_of
from resharpen.tasks.blocks import by_length_without

SCORES = tuple(name for which in WEIGHTS for name in (which, f"{which}.trained"))

SAVE_EVERY = 10.0
"""Seconds between saved states: the most that a kill loses."""
CHUNK_SECONDS = 0.5
"""Seconds that an engine runs between progress reports and checks for requests."""


@dataclass(frozen=True)
class Asked:
    """Requests to a trainer."""

    stop: bool = False
    """Save and return."""
    saves: int = 0
    """Number of requests so far to save now and continue."""


@dataclass(frozen=True)
class Progress:
    """Progress of a shard."""

    shard: str
    setting: str
    variant: str
    models: int
    step: int
    steps: int
    best: float
    """The best score so far, over models and weights; nan before the first checkpoint."""
    lower_is_better: bool
    diverged: int
    checkpoint: bool


@dataclass
class Kept:
    """Scores at every checkpoint, and the weights of the selected checkpoints."""

    score: dict[str, NDArray[np.float64]]
    """`train` and `bema`: score over all lengths, `train.trained` and `bema.trained`: over trained ones; [C, M]."""
    loss: NDArray[np.float64]
    """The training loss, summed over all steps up to a checkpoint; [C, M]."""
    step: dict[str, NDArray[np.int64]]
    """WEIGHTS.SELECTION -> the step of the checkpoint, -1 for none; [M]."""
    weights: Arrays = field(default_factory=dict)
    """WEIGHTS.SELECTION.NAME -> [M, ...]."""

    @classmethod
    def empty(cls, checkpoints: int, theta: Arrays) -> Kept:
        models = len(next(iter(theta.values())))
        return cls(
            {name: np.full((checkpoints, models), np.nan) for name in SCORES},
            np.full((checkpoints, models), np.nan),
            {slot: np.full(models, -1, np.int64) for slot in SLOTS},
            {f"{slot}.{name}": np.full_like(array, np.nan) for slot in SLOTS for name, array in theta.items()},
        )

    def dump(self) -> Arrays:
        named = {"score": self.score, "kept_step": self.step, "kept": self.weights}
        flat = {f"{prefix}.{name}": array for prefix, arrays in named.items() for name, array in arrays.items()}
        return {"kept_loss": self.loss, **flat}

    @classmethod
    def load(cls, arrays: Arrays) -> Kept:
        """From the arrays of a saved state, with names in the order of the tables."""
        score, step = arrays_of(arrays, "score"), arrays_of(arrays, "kept_step")
        scores, steps = {name: score[name] for name in SCORES}, {slot: step[slot] for slot in SLOTS}
        return cls(scores, arrays["kept_loss"], steps, arrays_of(arrays, "kept"))

    def check(self, checkpoints: Sequence[int], step: int) -> None:
        """ValueError for steps that are not checkpoints up to this step, or for scores of later checkpoints."""
        taken = np.concatenate(list(self.step.values()))
        if not np.isin(taken, [-1, *(c for c in checkpoints if c <= step)]).all():
            raise ValueError(f"weights from steps that are not checkpoints before {step}")
        later = [i for i, checkpoint in enumerate(checkpoints) if checkpoint > step]
        if any(not np.isnan(values[later]).all() for values in (self.loss, *self.score.values())):
            raise ValueError(f"scores of checkpoints after step {step}")
        if any(np.isinf(values).any() for values in self.score.values()):
            raise ValueError("scores that are not finite")

    def mean_loss(self, checkpoints: Sequence[int]) -> NDArray[np.float64]:
        """The mean training loss since the previous checkpoint, [C, M]."""
        steps_C = np.diff(checkpoints, prepend=0)
        return np.diff(self.loss, axis=0, prepend=0.0) / steps_C[:, None]

    def best(self, lower_is_better: bool) -> float:
        scores = np.concatenate([self.score[which].ravel() for which in WEIGHTS])
        known = scores[~np.isnan(scores)]
        return float(known.min() if lower_is_better else known.max()) if len(known) else float("nan")


class Trainer:
    """Trains one shard of an experiment in its directory."""

    def __init__(
        self,
        experiment: Experiment,
        shard: Shard,
        shard_files: ShardFiles,
        report: Callable[[Progress], None] = lambda progress: None,
        asked: Callable[[], Asked] = Asked,
        clock: Callable[[], float] = time.monotonic,
        rounding: str = "",
    ):
        """`rounding` is the build that the run was created with, if recorded: other builds are refused."""
        self._experiment, self._shard, self._files = experiment, shard, shard_files
        self._report, self._asked, self._clock, self._rounding = report, asked, clock, rounding
        self._checkpoints = experiment.checkpoint_steps()
        self._task = shard.setting.task
        self._selection = self._task.validation(experiment.seed, "selection")
        self._engine = engine_of(experiment, shard.variant)
        self._seconds, self._mixed = 0.0, False

    def run(self) -> bool:
        """Train to the end; False if stopped before, with the state saved."""
        engine = make_engine(
            self._engine, self._experiment.problem(self._shard), self._experiment.ensemble(self._shard)
        )
        if self._rounding and engine.built.partition("@")[2] != self._rounding:
            raise UserError(f"this run was created with build {self._rounding}; this machine has {engine.built}")
        kept = self._resume(engine)
        self._report(self._progress(engine, kept, checkpoint=False))
        chunk, saved_at, saves = 1, self._clock(), self._asked().saves
        while (step := engine.step) < self._experiment.steps:
            started = self._clock()
            n = min(chunk, min(c for c in self._checkpoints if c > step) - step)
            engine.advance(n)
            at_checkpoint = step + n in self._checkpoints
            if at_checkpoint:
                self._keep(engine, kept)
            now = self._clock()
            self._seconds += now - started
            if n == chunk:
                chunk = next_chunk(chunk, now - started)
            self._report(self._progress(engine, kept, at_checkpoint))
            asked = self._asked()
            if asked.stop or asked.saves != saves or now - saved_at >= SAVE_EVERY:
                self._files.save(self._state(engine, kept))
                saved_at, saves = now, asked.saves
            if asked.stop:
                return False
        self._finish(engine, kept)
        return True

    def _resume(self, engine: Engine) -> Kept:
        """Continue from the saved state of this shard if there is a valid one, else start."""
        fresh = Kept.empty(len(self._checkpoints), arrays_of(engine.dump(), "theta"))
        try:
            arrays = self._files.saved()
            if arrays is None:
                return fresh
            check_arrays(arrays, self._state(engine, fresh))
            check_state(arrays_of(arrays, "state"), self._experiment.steps)
            kept = Kept.load(arrays)
            kept.check(self._checkpoints, int(arrays["state.step"][0]))
        except (files.TornFile, ValueError) as error:
            what = error if isinstance(error, files.TornFile) else f"{self._files.state} is invalid: {error}"
            warnings.warn(f"{what}; this shard starts from the beginning", stacklevel=2)
            return fresh
        engine.load(arrays_of(arrays, "state"))
        self._seconds = float(arrays["seconds"][0])
        other_build = not np.array_equal(arrays["built"], _digest(engine.built))
        if other_build:
            warnings.warn(
                f"{self._shard.name} was started by another build of its engine: the last digits may differ, "
                "and its manifest records this",
                stacklevel=2,
            )
        self._mixed = other_build or bool(arrays["mixed"][0])
        return kept

    def _state(self, engine: Engine, kept: Kept) -> Arrays:
        engine_state = {f"state.{name}": array for name, array in engine.dump().items()}
        made = {"seconds": np.array([self._seconds]), "built": _digest(engine.built), "mixed": np.array([self._mixed])}
        return engine_state | kept.dump() | made

    def _keep(self, engine: Engine, kept: Kept) -> None:
        """Score both kinds of weights; store those of models that improved. A diverged model is not scored."""
        state, step = engine.dump(), engine.step
        alive_M = state["diverged_at"] < 0
        row = self._checkpoints.index(step)
        kept.loss[row] = np.where(alive_M, state["loss"], np.nan)
        for which in WEIGHTS:
            weights = weights_of(state, engine.ensemble, which)
            measured = engine.measure(weights, self._selection)
            length_S, value_MxS, n_S = self._task.by_length(measured, self._selection)[self._task.metric]
            value_MxS = _with_worst(value_MxS, self._task.metrics[self._task.metric].worst)
            trained_S = length_S <= self._shard.setting.train_length
            scores = {"": _mean(value_MxS[:, n_S > 0]), ".trained": _mean(value_MxS[:, trained_S & (n_S > 0)])}
            better_M = {"last": alive_M if step == self._experiment.steps else np.zeros_like(alive_M)}
            for suffix, selection in (("", "best"), (".trained", "best-trained")):
                score_CxM = kept.score[which + suffix]
                score_CxM[row] = np.where(alive_M, scores[suffix], np.nan)
                cost_CxM = score_CxM if self._task.lower_is_better else -score_CxM
                earlier_M = np.fmin.reduce(cost_CxM[:row], axis=0, initial=np.inf)
                better_M[selection] = cost_CxM[row] < earlier_M
            for selection, better in better_M.items():
                kept.step[f"{which}.{selection}"][better] = step
                for name, array in weights.items():
                    kept.weights[f"{which}.{selection}.{name}"][better] = array[better]

    def _progress(self, engine: Engine, kept: Kept, checkpoint: bool) -> Progress:
        shard = self._shard
        return Progress(
            shard=shard.name,
            setting=shard.setting.name,
            variant=shard.variant,
            models=shard.count,
            step=engine.step,
            steps=self._experiment.steps,
            best=kept.best(self._task.lower_is_better),
            lower_is_better=self._task.lower_is_better,
            diverged=int((engine.diverged_at >= 0).sum()),
            checkpoint=checkpoint,
        )

    def _finish(self, engine: Engine, kept: Kept) -> None:
        """Score the stored weights on the report set and on the further tests, and write the results."""
        reader = self._reader(engine)
        lengths = [self._reported(reader, kept, test) for test in ("", *self._task.tests)]
        tables = {
            "models": models_table(
                self._experiment, self._shard, engine.ensemble.hyperparameters, engine.diverged_at, kept.step
            ),
            "curves": curves_table(self._shard, self._checkpoints, kept.score, kept.mean_loss(self._checkpoints)),
            "lengths": pl.concat(lengths),
        }
        self._check(tables)
        seconds = round(self._seconds, 3)
        built = f"{engine.built}, begun by another build" if self._mixed else engine.built
        facts = {"shard": self._shard.name, "engine": self._engine, "built": built, "seconds": seconds}
        problem = engine.problem
        if same_rates(problem, engine.ensemble.hyperparameters, 2 * problem.steps, problem.steps):
            self._files.save(self._state(engine, kept), FINAL)
        self._files.finish(tables, kept.weights, facts)

    def _reader(self, engine: Engine) -> Engine:
        """What scores the kept weights: another engine if the attention is one to read trained models with."""
        parts = self._shard.setting.parts_of(self._experiment.variants[self._shard.variant])
        if parts.attention.trains:
            return engine
        return make_reader(self._engine, replace(engine.problem, parts=parts), engine.ensemble)

    def _reported(self, engine: Engine, kept: Kept, test: str) -> pl.DataFrame:
        """Rows of `lengths` on one test distribution."""
        task = self._task.tested(test)
        engine, report = on_task(engine, task), task.validation(self._experiment.seed, "report")
        by_length: dict[tuple[str, str], ByLength] = {}
        without: dict[tuple[str, str], NDArray[np.floating]] = {}
        for which in WEIGHTS:
            slots = [f"{which}.{selection}" for selection in SELECTIONS]
            for i, slot in enumerate(slots):
                step_M, weights = kept.step[slot], arrays_of(kept.weights, slot)
                # If an earlier slot has the same weights, its scores are reused: nan marks models not to score.
                same = {earlier: kept.step[earlier] == step_M for earlier in slots[:i]}
                for same_M in same.values():
                    weights = {
                        name: np.where(same_M.reshape(-1, *[1] * (x.ndim - 1)), np.float32(np.nan), x)
                        for name, x in weights.items()
                    }
                measured = measure_all(engine, weights, report)
                for metric, (length_S, value_MxS, n_S) in task.by_length(measured, report).items():
                    value_MxS[step_M < 0] = np.nan
                    for earlier, same_M in same.items():
                        value_MxS[same_M] = by_length[earlier, metric][1][same_M]
                    by_length[slot, metric] = length_S, value_MxS, n_S
                for metric, value_MxSxK in by_length_without(task, measured, report).items():
                    value_MxSxK[step_M < 0] = np.nan
                    for earlier, same_M in same.items():
                        value_MxSxK[same_M] = without[earlier, metric][same_M]
                    without[slot, metric] = value_MxSxK
        return lengths_table(self._shard, by_length, without, test)

    def _check(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """UserError for tables that readers would reject: the shard would be trained again forever."""
        reader = Reader(self._experiment)
        for name, table in tables.items():
            try:
                reader.check(name, table, [self._shard])
            except ValueError as error:
                what = f"{self._shard.name}: its table '{name}' is invalid and is not written"
                raise UserError(f"{what}: {error}") from error


def _digest(built: str) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.blake2b(built.encode(), digest_size=16).digest(), np.uint8)


def _with_worst(value_MxS: NDArray[np.floating], worst: float) -> NDArray[np.floating]:
    """Give models that have values, but not at this length, the worst value there, as in `analysis/scores.py`."""
    known_MxS = ~np.isnan(value_MxS)
    return np.where(known_MxS.any(1, keepdims=True) & ~known_MxS, worst, value_MxS)


def _mean(value_MxS: NDArray[np.floating]) -> NDArray[np.float64]:
    """Mean over lengths; nan if there are none."""
    return value_MxS.sum(1) / (value_MxS.shape[1] or np.nan)


def next_chunk(chunk: int, seconds: float) -> int:
    """Grow or shrink the chunk towards CHUNK_SECONDS, by a factor of at most four. Chunks never change results."""
    factor = min(4.0, max(0.25, CHUNK_SECONDS / max(seconds, 1e-9)))
    return max(1, int(chunk * factor))
