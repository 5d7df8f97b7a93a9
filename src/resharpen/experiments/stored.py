"""A trained model, taken out of a run: to call, or as a plain torch module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Arrays, Weights, part
from resharpen.errors import UserError
from resharpen.experiments.spec import Setting, Shard
from resharpen.experiments.store import Run
from resharpen.models import Placement, Retriever

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class StoredModel:
    """One model with the weights that were kept of it.

    model = rs.load("runs/demo").model("sct-v9-s3/peri/0")
    model([[2, 0, 5]])        # probabilities of the next token, [1, 9]
    model.module()            # a torch.nn.Module: tokens [N, L] -> logits [N, L, V]
    """

    id: str
    setting: Setting
    placement: Placement
    rms_epsilon: float
    weights: Arrays
    """Name -> array, without a model axis."""
    step: int
    """The checkpoint that was kept."""

    def __call__(self, sequences: Sequence[Any] | NDArray) -> NDArray[np.float32]:
        """Probabilities of the next token after each sequence of tokens, [N, V]; sequences may differ in length.

        A retriever takes sequences of (priority, class) pairs and gives the probability of each class.
        """
        import torch

        module, rows = self.module(), []
        for sequence in sequences:
            with torch.no_grad():
                logits = module(self._inputs(sequence)).flatten(0, -2)[-1]  # the last position, where there are several
            rows.append(logits.softmax(-1).numpy())
        return np.stack(rows) if rows else np.empty((0, self.setting.task.vocabulary), np.float32)

    def _inputs(self, sequence: Any) -> Any:
        """One sequence, checked, as the module takes it."""
        import torch

        retrieves = isinstance(self.setting.model, Retriever)
        array, vocabulary = np.asarray(sequence), self.setting.task.vocabulary
        if not array.size or array.ndim != (2 if retrieves else 1) or (not retrieves and array.dtype.kind not in "iu"):
            wanted = "(priority, class) pairs" if retrieves else "tokens"
            raise UserError(f"sequences are non-empty lists of {wanted}, not {sequence!r}")
        tokens = array[:, 1].astype(np.int64) if retrieves else array
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            what = "classes" if retrieves else "tokens"
            raise UserError(f"{what} are 0..{vocabulary - 1}, got {tokens.tolist()}")
        if not retrieves:
            return torch.as_tensor(tokens)[None]
        return torch.tensor(array[None, :, 0]).float(), torch.as_tensor(tokens)[None], torch.tensor([len(array)])

    def module(self) -> nn.Module:
        from resharpen.models.module import SingleModel

        return SingleModel(self.setting.model, self.placement, self.rms_epsilon, self.weights)


def load_model(run: Run, model_id: str, weights: Weights = "train", selection: str = "best") -> StoredModel:
    """Model `SETTING/PLACEMENT/DRAW` of a run, with its `train` or `bema` weights of a selection."""
    shard = find_shard(run, model_id)
    index = shard.model_ids.index(model_id)
    kept = {name: array[index] for name, array in part(run.weights(shard), f"{weights}.{selection}").items()}
    if not kept:
        raise UserError(
            f"no weights '{weights}' of selection '{selection}': allowed are train, bema and best, best-trained, last"
        )
    if any(np.isnan(array).any() for array in kept.values()):
        raise UserError(f"model '{model_id}' diverged before a checkpoint could be kept")
    row = run.table("models").filter(model=model_id).row(0, named=True)
    step = row[f"{weights}_{selection.replace('-', '_')}_step"]
    experiment = run.experiment
    return StoredModel(model_id, shard.setting, experiment.placements[shard.placement], row["rms_epsilon"], kept, step)


def find_shard(run: Run, model_id: str) -> Shard:
    """The shard that holds a model."""
    for shard in run.shards():
        if model_id in shard.model_ids:
            return shard
    example = run.shards()[0].model_ids[0]
    raise UserError(f"no model '{model_id}' in {run.directory}: ids are SETTING/PLACEMENT/DRAW, such as {example}")
