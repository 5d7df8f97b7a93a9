"""A trained model of a run, as a function or as a torch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import UserError
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.specs.schema import step_column
from resharpen.experiments.specs.spec import Setting, Shard
from resharpen.models import Model
from resharpen.parts import Parts
from resharpen.state import Arrays, Weights, arrays_of
from resharpen.tasks import Items

if TYPE_CHECKING:
    from torch import nn


READ = ("rms_epsilon",)
"""Hyperparameters that the logits of every model depend on; parts have their own."""


@dataclass(frozen=True)
class StoredModel:
    """One model with the weights of a selected checkpoint.

    model = rs.load_model(rs.load("runs/demo"), "sct-v9-s3/peri/0")
    model([[2, 0, 5]])        # probabilities of the next token, [1, 9]
    model.module()            # a torch.nn.Module: tokens [N, L] -> logits [N, L, V]
    """

    id: str
    setting: Setting
    model: Model
    parts: Parts
    hyperparameters: Mapping[str, float]
    weights: Arrays
    """Name -> array, without a model axis."""
    step: int
    """The step of the checkpoint."""
    seed: int = 0
    """Seed of the run; with the setting and the draw it determines the constants of the user's modules."""

    def __call__(self, sequences: Sequence[Any] | NDArray) -> NDArray[np.float32]:
        """Probabilities of the next token after each sequence of tokens, [N, V]; sequences may differ in length.

        A model of items takes sequences of (priority, class) pairs and returns the probability of each class.
        """
        import torch

        module, rows = self.module(), []
        for sequence in sequences:
            with torch.no_grad():
                logits = module(self.read(sequence)).flatten(0, -2)[-1]  # the last position, if there are several
            rows.append(logits.softmax(-1).numpy())
        return np.stack(rows) if rows else np.empty((0, self.setting.task.vocabulary), np.float32)

    def trace(self, sequence: Any) -> dict[str, NDArray[np.float32]]:
        """All activations for one sequence of tokens or items, by name. BLOCK is empty in models of one block, else
        `0.attention.`, `0.mlp.` and so on:

            embedding, BLOCKstream      the residual stream before the first block and after each, [L, D]
            BLOCKlogits, BLOCKweights   attention before and after its softmax, [H, Q, K]
            BLOCKupdate                 output of a block, before its norm, [L, D]
            BLOCKblock_in.before, .after and so on      input and output of each norm
            output                      logits of the next token after every prefix, [L, V]
        """
        import torch

        record: dict[str, Any] = {}
        with torch.no_grad():
            recorded = () if self.model.is_module else (record,)
            record["output"] = self.module()(self.read(sequence), *recorded)[None]
        named = {name: x for name, x in record.items() if not isinstance(x, tuple)}
        for name, around in record.items():
            if isinstance(around, tuple):
                named |= {f"{name}.{side}": x for side, x in zip(("before", "after"), around, strict=True)}
        # drop the axes of models and sequences; features of items have no axis of sequences
        return {name: (x[0, 0] if x.ndim > 3 else x[0]).numpy() for name, x in named.items()}

    def read(self, sequence: Any) -> Any:
        """One sequence, validated, as input of the module."""
        import torch

        array, vocabulary, pairs = np.asarray(sequence), self.setting.task.vocabulary, self.model.reads == "items"
        kinds, shape = ("iuf", (2,)) if pairs else ("iu", ())
        if not array.size or array.ndim != 1 + pairs or array.shape[1:] != shape or array.dtype.kind not in kinds:
            wanted = "(priority, class) pairs" if pairs else "tokens"
            raise UserError(f"sequences are non-empty lists of {wanted}, not {sequence!r}")
        tokens = array[:, 1] if pairs else array
        if (tokens % 1).any():
            raise UserError(f"classes are whole numbers, got {tokens.tolist()}")
        tokens = tokens.astype(np.int64)
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise UserError(f"{'classes' if pairs else 'tokens'} are 0..{vocabulary - 1}, got {tokens.tolist()}")
        read = torch.as_tensor(tokens)[None]
        return Items(torch.tensor(array[None, :, 0]).float(), read, torch.tensor([len(array)])) if pairs else read  # pyright: ignore[reportArgumentType]

    def module(self) -> nn.Module:
        """The model as a plain torch module, to evaluate or to train further: tokens [N, L] of any integer type ->
        logits [N, L, V]; or items -> logits [N, C]. For a user's module this is the module itself."""
        from resharpen.models.adapter import ModuleModel, init_key, with_weights
        from resharpen.models.module import SingleModel

        if isinstance(self.model, ModuleModel):
            made = self.model.make(init_key(self.seed, self.setting.name), int(self.id.rpartition("/")[2]))
            return with_weights(made, self.weights)

        return SingleModel(self.model, self.parts, self.hyperparameters, self.weights)


def load_model(run: Run, model_id: str, weights: Weights = "train", selection: str = "best") -> StoredModel:
    """Model `SETTING/VARIANT/DRAW` of a run, with its `train` or `bema` weights of a selection."""
    shard = find_shard(run, model_id)
    index = shard.model_ids.index(model_id)
    kept = {name: array[index] for name, array in arrays_of(run.weights(shard), f"{weights}.{selection}").items()}
    if not kept:
        raise UserError(
            f"no weights '{weights}' of selection '{selection}': allowed are train, bema and best, best-trained, last"
        )
    if any(np.isnan(array).any() for array in kept.values()):
        raise UserError(f"model '{model_id}' diverged before its first checkpoint, so it has no weights")
    row = run.table("models").filter(model=model_id).row(0, named=True)
    step = row[step_column(f"{weights}.{selection}")]
    variant = run.experiment.variants[shard.variant]
    model = shard.setting.model_of(variant)
    parts = shard.setting.parts_of(variant)
    # an older run may lack hyperparameters that were added later: that matters only if the model reads them
    hyperparameters = {name: row[name] for name in run.experiment.rows(variant) if row[name] is not None}
    if missing := [name for name in (*READ, *parts.hyperparameters) if name not in hyperparameters]:
        raise UserError(f"model '{model_id}' cannot be loaded: its {missing[0]} is not recorded in {run.directory}")
    return StoredModel(model_id, shard.setting, model, parts, hyperparameters, kept, step, run.experiment.seed)


def find_shard(run: Run, model_id: str) -> Shard:
    """The shard that holds a model."""
    shards = run.shards()
    for shard in shards:
        if model_id in shard.model_ids:
            return shard
    example = shards[0].model_ids[0]
    raise UserError(f"no model '{model_id}' in {run.directory}: ids are SETTING/VARIANT/DRAW, such as {example}")
