"""Inside the models of a run: circuits of minimal transformers, attention maps of full ones.

Shapes: M models; A layers, H heads, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from resharpen import streams
from resharpen.analysis.circuits import IN_FORM, Table, circuit_table, is_inspectable
from resharpen.analysis.scores import scores, task_of
from resharpen.errors import UserError, unknown
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.stored import StoredModel, find_shard
from resharpen.experiments.specs.spec import Setting
from resharpen.lazy import pl, scipy
from resharpen.models import Minimal, Transformer
from resharpen.models.sets import are_enough
from resharpen.parts import Parts
from resharpen.state import Weights, arrays_of
from resharpen.tasks import Language, SetComplement

CIRCUITS = "circuits need a minimal transformer with RMSNorm, no positions and attention that sees a set"


@dataclass(frozen=True, eq=False)
class Inspection:
    """The circuits of a setting: by variant, the circuit table, and the rows of `models` in the same order."""

    setting: Setting
    tables: dict[str, Table]
    models: dict[str, pl.DataFrame]

    def find(self, model_id: str) -> tuple[Table, int]:
        """The table of a model's variant, and the row of the model in it."""
        variant = model_id.split("/")[1]
        if variant not in self.tables:
            raise UserError(f"{model_id}: {CIRCUITS}")
        return self.tables[variant], self.models[variant]["model"].to_list().index(model_id)

    def summary(self) -> pl.DataFrame:
        """Per variant: shares of models in normal form and of models that merge two tokens, distance of attention from
        constant, and correlations: Spearman's, over models with finite weights, null for fewer than three."""
        rows = []
        for variant, table in self.tables.items():
            sound = np.isfinite(table["residual"])
            tvd = table["tvd"][sound].mean(-1)
            decay = self.models[variant]["weight_decay"].to_numpy()[sound]
            distance, merged = table["attention_distance"][sound], table["merged"][sound] > 0
            rows.append(
                {
                    "variant": variant,
                    "models": len(sound),
                    "without weights": int((~sound).sum()),
                    "in form": pl.Series(table["residual"][sound] < IN_FORM).mean(),
                    "in form, norm scales included": pl.Series(table["scaled_residual"][sound] < IN_FORM).mean(),
                    "attention from constant (median)": pl.Series(distance).median(),
                    "its correlation with weight decay": _rank_correlation(distance, decay),
                    "correlation of residual and TVD": _rank_correlation(table["residual"][sound], tvd),
                    "two tokens merged": pl.Series(merged).mean(),
                    "mean TVD, none merged (median)": pl.Series(tvd[~merged]).median(),
                    "mean TVD, some merged (median)": pl.Series(tvd[merged]).median(),
                    "smallest mean TVD": pl.Series(tvd).min(),
                }
            )
        return pl.DataFrame(rows)


@dataclass(frozen=True, eq=False)
class Opened:
    """The weights of all finished models of one setting and variant."""

    variant: str
    theta: dict[str, np.ndarray]
    parts: Parts
    models: pl.DataFrame
    """Their rows of `models`, in the same order."""
    hyper: dict[str, np.ndarray]
    """Every hyperparameter, [M]."""


def opened(run: Run, settings: Iterable[Setting], weights: Weights = "train") -> Iterator[Opened]:
    """Every cell of these settings that has circuits, at the best checkpoints."""
    import torch

    rows, done = run.table("models"), run.done()
    for setting, (name, variant) in product(settings, run.experiment.variants.items()):
        model = setting.model_of(variant)
        shards = [s for s in done if s.setting == setting and s.variant == name]
        parts = setting.parts_of(variant)
        # a user's class derived from Minimal may compute something else
        if not shards or type(model) is not Minimal or not is_inspectable(parts):
            continue
        ids = pl.DataFrame({"model": [model for shard in shards for model in shard.model_ids]})
        models = ids.join(rows, on="model", maintain_order="left")
        hyper = {row: models[row].to_numpy() for row in run.experiment.rows(variant)}
        some = {row: torch.tensor(x[: streams.GROUP], dtype=torch.float64) for row, x in hyper.items()}
        if not are_enough(model, parts, some, model.vocabulary):  # circuits hold for functions of sets only
            continue
        kept = [arrays_of(run.weights(shard), f"{weights}.best") for shard in shards]
        theta = {key: np.concatenate([arrays[key] for arrays in kept]) for key in kept[0]}
        yield Opened(name, theta, parts, models, hyper)


def inspect(run: Run, setting: Setting, weights: Weights = "train") -> Inspection:
    """Measure every model of a setting at its best checkpoint."""
    if not isinstance(setting.task, SetComplement):
        raise UserError(f"{setting.name}: circuits need a minimal transformer on Set Complement")
    tables, models = {}, {}
    for of in opened(run, [setting], weights):
        models[of.variant] = of.models
        tables[of.variant] = circuit_table(of.theta, of.parts, of.hyper, setting.task)
    if not tables:
        raise UserError(f"{run.directory} has no finished model of {setting.name} to inspect: {CIRCUITS}")
    return Inspection(setting, tables, models)


def choose_model(run: Run, model: str, weights: Weights) -> tuple[str, Setting]:
    """The id and setting of a model; `best` has the best mean score on new lengths, or on all if there are none."""
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


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2 or np.isnan(y).any():
        return None
    return float(np.corrcoef(scipy.stats.rankdata(x), scipy.stats.rankdata(y))[0, 1])


def attention_of(model: StoredModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Attention weights after every prefix of a sequence, [A, H, L, L]; the row is the token that attends."""
    import torch

    if not isinstance(model.model, Transformer):
        raise UserError(f"{model.id} is not a transformer: it has no layers of attention maps")
    record = {}
    with torch.no_grad():
        model.module()(model.read(list(tokens)), record)
    layers = [record[f"{block}weights"] for block in model.model.blocks if block.endswith("attention.")]
    return np.stack([layer[0, 0].double().numpy() for layer in layers])


def entropy_by_length(weights_AxHxLxL: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats of each row of attention, [A, H, L]; the log of the length for uniform attention."""
    return entr(weights_AxHxLxL).sum(-1)


def read_prefix(setting: Setting, text: str | None) -> list[int]:
    """Tokens from names or numbers separated by commas; for None a sequence of the task, longer than in training."""
    task, names = setting.task, list(setting.task.token_names)
    if text is None:
        if isinstance(task, Language):
            return task.validation(0, "selection", sequences=2).inputs_NxL[0].tolist()
        examples = task.examples(next(iter(task.validation(0, "selection").pieces(10**9))))
        return examples.inputs[-1].tolist()
    tokens = []
    for word in (word.strip() for word in text.split(",")):
        if word.isdecimal() and word not in names and int(word) < len(names):
            word = names[int(word)]
        if word not in names:
            raise unknown("token", word, names)
        tokens.append(names.index(word))
    return tokens
