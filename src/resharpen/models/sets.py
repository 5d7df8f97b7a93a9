"""Whether the logits of a model depend only on the last token and the set of tokens, not on their order.

Shapes: M models, N sequences, L positions, V tokens.
"""

from __future__ import annotations

from dataclasses import replace

from resharpen.lazy import Tensor
from resharpen.models.layers import Tensors
from resharpen.models.model import Model
from resharpen.parts.moment import Moment
from resharpen.parts.parts import Parts

TRIED = (0.3, 1.5)
"""Standard deviations of the weights in a trial: nearly uniform attention, and sharp attention."""
ORDERS = 4
"""Number of orders of the tokens in a trial."""


def are_enough(model: Model, parts: Parts, hyper: Tensors, vocabulary: int) -> bool:
    """Whether the models compute the same from states as from sequences, whatever the weights.

    Tested numerically with the functions that train and score, so that it holds for any user's part: in double
    precision, with random weights, after every prefix of some orders of the tokens, at every length.
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

    # in training mode, because random numbers per sequence cannot be computed from states
    key_Mx2 = torch.randint(2**32, (models, 2), generator=random)
    parts = replace(parts, moment=Moment(torch.tensor(1.0, dtype=torch.float64), 1, key_Mx2))

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
        return False  # the error is reported later, by the computation on sequences
