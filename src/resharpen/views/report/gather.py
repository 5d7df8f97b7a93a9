"""The data of a report about the models of a run, as arrays.

Models are ordered by setting, variant and draw, so that the models of a violin are a slice, a `cell`.

Shapes: M models, H hyperparameters, K metrics, W kinds of weights, L lengths, C checkpoints, V cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.scores import lengths_of, scored_lengths, scores, task_of
from resharpen.experiments.keeping.opening import RunOrReference
from resharpen.experiments.keeping.store import Run
from resharpen.lazy import pl
from resharpen.state import WEIGHTS
from resharpen.views.violins import POINTS, half_violin

CURVE_POINTS = 640_000
"""Limit on checkpoints of all models together; beyond it some are left out, because curves make up most of the file."""
FINEST = 255
MISSING = 2**16 - 1


@dataclass(frozen=True, eq=False)
class Gathered:
    """The tables of a run; `at` is the index of a model."""

    run: RunOrReference
    tell: Callable[[str], None] = lambda _: None
    """Called with the current stage and counts: many models take minutes."""
    test: str = ""
    """The further test distribution of the values; empty for the task itself."""

    @cached_property
    def models(self) -> pl.DataFrame:
        settings = [setting.name for setting in self.run.experiment.settings]
        order = {"setting": settings, "variant": list(self.run.experiment.variants)}
        ranks = [pl.col(name).cast(pl.Enum(names)) for name, names in order.items()]
        return self.run.table("models").sort(*ranks, "draw").with_row_index("at")

    @cached_property
    def lengths(self) -> pl.DataFrame:
        found = scored_lengths(self.run, lengths=lengths_of(self.run, self.test))
        return found.join(self.models.select("model", "at"), on="model", maintain_order="left")

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        """One per setting and variant: the models of a violin."""
        settings = [setting.name for setting in self.run.experiment.settings]
        variants = list(self.run.experiment.variants)
        return [
            {
                "setting": settings.index(str(setting)),
                "variant": variants.index(str(variant)),
                "start": int(rows["at"][0]),
                "count": len(rows),
                "diverged": int(rows["diverged_at"].is_not_null().sum()),
            }
            for (setting, variant), rows in self.models.group_by("setting", "variant", maintain_order=True)
        ]

    @cached_property
    def metrics(self) -> list[str]:
        return [name for name in task_of(self.run).metrics if name in set(self.lengths["metric"])]

    @cached_property
    def lengths_of(self) -> dict[str, list[int]]:
        """The measured lengths of every setting."""
        known = self.lengths.filter(self.lengths["metric"].is_in(self.metrics)).drop_nulls("value")
        names = [setting.name for setting in self.run.experiment.settings]
        return {name: known.filter(setting=name)["length"].unique().sort().to_list() for name in names}

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:
        """Rows of the hyperparameter table by name, over all variants, for which any model has a value."""
        experiment, there = self.run.experiment, {column.name for column in self.models if column.count()}
        rows = {name: row for variant in experiment.variants.values() for name, row in experiment.rows(variant).items()}
        return {name: row for name, row in rows.items() if name in there}

    def arrays(self) -> dict[str, NDArray]:
        """`draw`, `diverged`, `kept` [W, M], `hyper` [H, M]; `mean`, `new` [K, W, M], `value` [K, W, M, L]; the violins
        (see `_violins`); `score` [W, M, C], `loss` [M, C] in sixteen bits, and the ends of each curve."""
        self.tell(f"values of {len(self.models):,} models")
        steps = [self.models[f"{which}_best_step"].fill_null(-1).to_numpy() for which in WEIGHTS]
        hyper = [self.models[name].cast(pl.Float32).fill_null(np.nan).to_numpy() for name in self.hyperparameters]
        values = self._values()
        return {
            "draw": self.models["draw"].to_numpy().astype(np.int32),
            "diverged": self.models["diverged_at"].fill_null(-1).to_numpy().astype(np.int32),
            "kept": np.stack(steps).astype(np.int32),
            "hyper": np.stack(hyper).astype(np.float32),
            **{name: array.astype(np.float32) for name, array in values.items()},
            **self._violins(np.concatenate([values["mean"][..., None], values["new"][..., None], values["value"]], -1)),
            **self._curves(),
        }

    def _values(self) -> dict[str, NDArray[np.float64]]:
        shape = len(self.metrics), len(WEIGHTS), len(self.models)
        mean, new = np.full(shape, np.nan), np.full(shape, np.nan)
        value = np.full((*shape, max(map(len, self.lengths_of.values()))), np.nan)
        column = {(s, x): i for s, lengths in self.lengths_of.items() for i, x in enumerate(lengths)}
        for k, metric in enumerate(self.metrics):
            placed = scores(self.run, metric=metric, test=self.test).join(self.models.select("model", "at"), on="model")
            for w, weights in enumerate(WEIGHTS):
                rows = placed.filter(weights=weights)
                mean[k, w, rows["at"]], new[k, w, rows["at"]] = (_numbers(rows[c]) for c in ("score", "score_new"))
                rows = self.lengths.filter(metric=metric, weights=weights).drop_nulls("value")
                columns = [column[key] for key in rows.select("setting", "length").iter_rows()]
                value[k, w, rows["at"], columns] = rows["value"]
        return {"mean": mean, "new": new, "value": value}

    def _violins(self, every_KxWxMxX: NDArray) -> dict[str, NDArray]:
        """Violins over all lengths, over new lengths and at each length, X = 2 + L: their widths, at most 255, `violin`
        [K, V, W, X, points], and `ends` [K, V, W, X, 4]: smallest and largest value, median, best quantile."""
        shape = len(self.metrics), len(self.cells), len(WEIGHTS), every_KxWxMxX.shape[-1]
        width, ends = np.zeros((*shape, POINTS), np.uint8), np.full((*shape, 4), np.nan, np.float32)
        metrics = task_of(self.run).metrics
        for k, v, w, x in np.ndindex(shape):
            cell = self.cells[v]
            if w == x == 0:
                self.tell(f"densities, {k * len(self.cells) + v:,} of {len(self.metrics) * len(self.cells):,} groups")
            values = every_KxWxMxX[k, w, cell["start"] : cell["start"] + cell["count"], x]
            if half := half_violin(values, metrics[self.metrics[k]]):
                density = half.stats["vals"]
                width[k, v, w, x] = np.rint(FINEST * density / density.max())
                ends[k, v, w, x] = half.stats["min"], half.stats["max"], half.median, half.best
        return {"violin": width, "ends": ends}

    @cached_property
    def checkpoints(self) -> list[int]:
        """The steps of the curves: all, or an even sample that ends with the last if there are too many models; none
        for a reference, which has no curves."""
        if not isinstance(self.run, Run):
            return []
        steps = np.array(self.run.experiment.checkpoint_steps())
        most = max(2, CURVE_POINTS // max(1, len(self.models)))
        every = -(-len(steps) // most)
        return [int(step) for step in steps[::-1][::every][::-1]]

    def _curves(self) -> dict[str, NDArray]:
        if not self.checkpoints:
            return {}
        self.tell(f"curves of {len(self.models):,} models, {len(self.checkpoints)} checkpoints")
        rows = self.run.table("curves").filter(pl.col("step").is_in(self.checkpoints))
        rows = rows.join(self.models.select("model", "at"), on="model", maintain_order="left")
        shape = len(self.models), len(self.checkpoints)
        score, loss = np.full((len(WEIGHTS), *shape), np.nan), np.full(shape, np.nan)
        for w, weights in enumerate(WEIGHTS):
            of = rows.filter(weights=weights)
            at = of["at"].to_numpy(), np.searchsorted(self.checkpoints, of["step"].to_numpy())
            score[w][at] = _numbers(of["score"])
            loss[at] = _numbers(of["loss"])
        packed = {}
        for name, values in (("score", score), ("loss", loss)):
            packed[name], packed[f"{name}-ends"] = sixteen_bits(values)
        return packed


def sixteen_bits(values: NDArray[np.float64]) -> tuple[NDArray[np.uint16], NDArray[np.float32]]:
    """Curves, along the last axis, as (codes, [lowest, highest]): 0 is the lowest value of a curve, 65,534 the highest,
    65,535 none. So the resolution is relative to the range of each curve.

    >>> codes, ends = sixteen_bits(np.array([[2.0, 2.25, np.nan]]))
    >>> codes.tolist(), ends.tolist()
    ([[0, 65534, 65535]], [[2.0, 2.25]])
    """
    known = np.isfinite(values)
    low = np.where(known, values, np.inf).min(-1, keepdims=True)
    high = np.where(known, values, -np.inf).max(-1, keepdims=True)
    low, high = (np.where(np.isfinite(low), end, 0.0) for end in (low, high))
    share = np.where(known, values - low, 0.0) / np.where(high > low, high - low, 1.0)
    codes = np.where(known, np.rint(share * (MISSING - 1)), MISSING).astype(np.uint16)
    return codes, np.concatenate([low, high], -1).astype(np.float32)


def _numbers(column: pl.Series) -> NDArray[np.float64]:
    return column.fill_null(np.nan).to_numpy()
