"""Circuits of the models of a run: the kept weights of every model, measured, beside its hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from resharpen import streams
from resharpen.analysis.circuits import IN_FORM, Table, circuit_table, is_inspectable
from resharpen.analysis.scores import scores, task_of
from resharpen.errors import UserError
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.stored import find_shard
from resharpen.experiments.specs.spec import Setting
from resharpen.models import Minimal
from resharpen.models.sets import are_enough
from resharpen.parts import Parts
from resharpen.state import Weights, arrays_of
from resharpen.tasks import SetComplement

if TYPE_CHECKING:
    import polars as pl

CIRCUITS = "circuits are those of minimal transformers with RMSNorm, no positions and attention that sees a set"


@dataclass(frozen=True, eq=False)
class Inspection:
    """One setting of a run, opened: by variant, the circuit table and the rows of `models` in the same order."""

    setting: Setting
    tables: dict[str, Table]
    models: dict[str, pl.DataFrame]

    def find(self, model_id: str) -> tuple[Table, int]:
        """Where a model is: its variant's table and its row there."""
        variant = model_id.split("/")[1]
        if variant not in self.tables:
            raise UserError(f"{model_id}: {CIRCUITS}")
        return self.tables[variant], self.models[variant]["model"].to_list().index(model_id)

    def summary(self) -> pl.DataFrame:
        """By variant: how many models are in normal form, how far attention is from constant, how many take two tokens
        for one another, and what goes with it.

        Correlations are Spearman's, over models that have weights; null where there are fewer than three.
        """
        import polars as pl

        rows = []
        for variant, table in self.tables.items():
            sound = np.isfinite(table["residual"])
            tvd = table["tvd"][sound].mean(-1)
            decay = self.models[variant]["weight_decay"].to_numpy()[sound]
            distance = table["attention_distance"][sound]
            rows.append(
                {
                    "variant": variant,
                    "models": len(sound),
                    "without weights": int((~sound).sum()),
                    "in form": _share(table["residual"][sound] < IN_FORM),
                    "in form, norm scales included": _share(table["scaled_residual"][sound] < IN_FORM),
                    "attention from constant (median)": _median(distance),
                    "its correlation with weight decay": _rank_correlation(distance, decay),
                    "correlation of residual and TVD": _rank_correlation(table["residual"][sound], tvd),
                    "two tokens merged": _share(table["merged"][sound] > 0),
                    "mean TVD, none merged (median)": _median(tvd[table["merged"][sound] == 0]),
                    "mean TVD, some merged (median)": _median(tvd[table["merged"][sound] > 0]),
                    "smallest mean TVD": float(tvd.min()) if len(tvd) else None,
                }
            )
        return pl.DataFrame(rows)


@dataclass(frozen=True, eq=False)
class Opened:
    """The kept weights of every finished minimal transformer of one setting and variant."""

    setting: Setting
    variant: str
    theta: dict[str, np.ndarray]
    parts: Parts
    models: pl.DataFrame
    """Their rows of `models`, in the same order."""
    hyper: dict[str, np.ndarray]
    """Every hyperparameter, [M]."""


def opened(run: Run, settings: Iterable[Setting], weights: Weights = "train") -> Iterator[Opened]:
    """One after the other all that can be opened, at the best checkpoints."""
    import polars as pl

    rows, done = run.table("models"), run.done()
    for setting, (name, variant) in product(settings, run.experiment.variants.items()):
        model = setting.model_of(variant)
        shards = [s for s in done if s.setting == setting and s.variant == name]
        parts = variant.parts(model)
        # a class of the user's may be derived from Minimal and compute something else
        if not shards or type(model) is not Minimal or not is_inspectable(parts):
            continue
        ids = pl.DataFrame({"model": [model for shard in shards for model in shard.model_ids]})
        models = ids.join(rows, on="model", maintain_order="left")
        hyper = {row: models[row].to_numpy() for row in run.experiment.rows(variant)}
        if not _sees_sets(model, parts, hyper):
            continue
        kept = [arrays_of(run.weights(shard), f"{weights}.best") for shard in shards]
        theta = {key: np.concatenate([arrays[key] for arrays in kept]) for key in kept[0]}
        yield Opened(setting, name, theta, parts, models, hyper)


def _sees_sets(model: Minimal, parts: Parts, hyper: dict[str, np.ndarray]) -> bool:
    """Whether the models are what circuits take them for, functions of sets: tried with some of their numbers."""
    import torch

    some = {name: torch.tensor(x[: streams.GROUP], dtype=torch.float64) for name, x in hyper.items()}
    return are_enough(model, parts, some, model.vocabulary)


def inspect(run: Run, setting: Setting, weights: Weights = "train") -> Inspection:
    """Measure every model of a setting at its best checkpoint."""
    if not isinstance(setting.task, SetComplement):
        raise UserError(f"{setting.name}: circuits are those of minimal transformers on Set Complement")
    tables, models = {}, {}
    for of in opened(run, [setting], weights):
        models[of.variant] = of.models
        tables[of.variant] = circuit_table(of.theta, of.parts, of.hyper, setting.task)
    if not tables:
        raise UserError(f"{run.directory} has none of {setting.name} that is finished: {CIRCUITS}")
    return Inspection(setting, tables, models)


def choose_model(run: Run, model: str, weights: Weights) -> tuple[str, Setting]:
    """The id and setting of a model: `best` has the best mean score over lengths it never saw, if there are any."""
    if model == "best":
        ranked = (
            scores(run)
            .filter(weights=weights)
            .drop_nulls("score")
            .sort("score_new", "score", descending=not task_of(run).lower_is_better, nulls_last=True)
        )
        if ranked.is_empty():
            raise UserError(f"every model of {run.directory} diverged before its first checkpoint")
        model = ranked["model"][0]
    return model, find_shard(run, model).setting


def _share(which: np.ndarray) -> float | None:
    return float(which.mean()) if len(which) else None


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    from scipy.stats import rankdata

    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2 or np.isnan(y).any():
        return None
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])
