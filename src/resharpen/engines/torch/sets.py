"""Prefixes of distinct tokens as states (last token, set of tokens), equal ones counted once.

Shapes: M models, N sequences, L positions, V tokens, P states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resharpen.models import Model
from resharpen.models.layers import Tensors
from resharpen.parts import Parts
from resharpen.tasks import Batch

if TYPE_CHECKING:
    from torch import Tensor

MOST_BITS = 48
"""The largest vocabulary whose sets are kept as the bits of one number."""


class States(NamedTuple):
    last: NDArray[np.int64]
    """[P]"""
    present: NDArray[np.bool_]
    """[V, P]: the states are the long axis, and lie side by side."""
    counts: NDArray[np.float64]
    """How often each token was the target, [V, P]."""


PADDED_TO = 128
"""Numbers of states come in multiples of this, so that there are few shapes to compile for."""


def merged(batch: Batch, vocabulary: int) -> States:
    """The distinct states of a minibatch and their targets; at the end some that nothing followed, to fill up."""
    inputs, targets = batch.inputs[batch.mask], batch.targets[batch.mask]
    set_NxL = np.bitwise_or.accumulate(np.left_shift(1, batch.inputs), axis=1)
    key, where = np.unique(set_NxL[batch.mask] * vocabulary + inputs, return_inverse=True)
    set_P, last_P = np.divmod(np.pad(key, (0, -len(key) % PADDED_TO), mode="edge"), vocabulary)
    counts = np.bincount(targets * len(set_P) + where, minlength=vocabulary * len(set_P)).astype(float)
    present = np.right_shift(set_P, np.arange(vocabulary)[:, None]) & 1
    return States(last_P, present.astype(bool), counts.reshape(vocabulary, -1))


TRIED = (0.3, 1.5)
"""Standard deviations of the weights of a trial: attention that is nearly even, and attention to a few."""
ORDERS = 4
"""Of the tokens, in a trial."""


def are_enough(model: Model, parts: Parts, hyper: Tensors, vocabulary: int) -> bool:
    """Whether the models compute the same from states as from sequences, whatever the weights.

    Found by trial, on the very functions that train and score, so that it holds for any part of the user's: in double,
    with random weights, after every prefix of some orders of the tokens, read at every length.
    """
    import torch
    from torch.nn.functional import one_hot

    if model.sees_order(parts):
        return False
    random = torch.Generator().manual_seed(0)
    hyper = {name: x.detach().cpu().double() for name, x in hyper.items()}
    models = len(next(iter(hyper.values())))
    tokens_NxL = torch.stack([torch.randperm(vocabulary, generator=random) for _ in range(ORDERS)])
    states = tokens_NxL.flatten(), (one_hot(tokens_NxL, vocabulary).cumsum(1) > 0).flatten(0, 1)

    def agree(deviation: float) -> bool:
        def drawn(shape: tuple[int, ...]) -> Tensor:
            return deviation * torch.randn(models, *shape, generator=random, dtype=torch.float64)

        theta = {name: drawn(tuple(map(int, p.shape))) for name, p in model.parameters(parts).items()}
        of_sets = model.logits_of_sets(theta, *states, parts, hyper).unflatten(1, tokens_NxL.shape)
        of_sequences = (model.logits(theta, tokens_NxL[:, :n], parts, hyper) for n in range(1, vocabulary + 1))
        return all(torch.allclose(x, of_sets[:, :, : x.shape[2]], rtol=1e-9, atol=1e-9) for x in of_sequences)

    try:
        with torch.no_grad():
            return all(agree(deviation) for deviation in TRIED)
    except Exception:
        return False  # what cannot be tried goes the long way, and there says what is wrong with it
