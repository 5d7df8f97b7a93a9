"""Training speed on Maximum Retrieval against the usual ways to train many small models.

    python benchmarks/max_retrieval.py --cases max-peri --systems resharpen-native torch-compile --json rows.json

Everyone trains the same models on the same minibatches (128 sequences of 5 to 16 items) with per-model hyperparameters,
clipping, AdamW and the moving average. The peers compute the formula as printed on padded minibatches that are drawn
beforehand; ours draws its own. The trial of sizes and ways is made in the first case: the others differ by norms only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Benchmark, System, Work, main
from trainers import (
    BATCHES,
    NORM_EPSILON,
    Trainer,
    initial,
    jax_vmap,
    minibatches,
    ours,
    torch_ensemble,
    torch_loop,
    with_attention,
)

CASES = ("max-none", "max-pre", "max-post", "max-peri", "max-none-log-n", "max-none-ssmax", "max-peri-ssmax")
N, LONGEST, D, CLASSES = 128, 16, 128, 10


def make_problem(case: str) -> Any:
    from resharpen.engines.base import Problem
    from resharpen.models import RETRIEVER_PLACEMENTS, Retriever
    from resharpen.parts import Parts
    from resharpen.tasks import MaxRetrieval

    placement, attention = with_attention(case)
    parts = Parts(RETRIEVER_PLACEMENTS[placement.removeprefix("max-")], attention=attention)
    return Problem(MaxRetrieval(), Retriever(), parts, LONGEST, N, 100_000, seed=0)


def padded(problem: Any) -> list[tuple[np.ndarray, ...]]:
    """Features [N, L, 11], mask [N, L], one-hot labels [N, 10]."""
    one_hot = np.eye(CLASSES, dtype=np.float32)
    return [
        (
            np.concatenate([items.priority[..., None], one_hot[items.kind]], -1),
            np.arange(LONGEST) < items.length[:, None],
            one_hot[labels],
        )
        for items, labels, _ in minibatches(problem)
    ]


# ---- peers ----------------------------------------------------------------------------------------------------------


def loop(problem: Any) -> Trainer:
    import torch
    from torch import nn

    placement = problem.parts.placement

    class Norm(nn.Module):
        def __init__(self, present: bool):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(D)) if present else None

        def forward(self, x):
            return x if self.gain is None else nn.functional.rms_norm(x, (D,), self.gain, NORM_EPSILON)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.psi = nn.Sequential(nn.Linear(1 + CLASSES, D), nn.GELU(), nn.Linear(D, D))
            self.phi = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, CLASSES))
            self.key, self.value = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
            self.query = nn.Parameter(torch.zeros(D))
            self.norm_in, self.norm_out = Norm(placement.block_in), Norm(placement.block_out)

        def forward(self, x, mask, label):
            h = self.norm_in(self.psi(x))
            e = (self.key(h) @ self.query).masked_fill(~mask, -torch.inf)
            z = (e.softmax(-1)[:, None] @ self.value(h))[:, 0]
            return nn.functional.cross_entropy(self.phi(self.norm_out(z)), label)

    names = {"query": ("q",), "key.weight": ("K",), "value.weight": ("V",)}
    for i, part in enumerate(("psi.0", "psi.2", "phi.0", "phi.2"), 1):
        names |= {f"{part}.weight": (f"W_{i}",), f"{part}.bias": (f"b_{i}",)}
    names |= {"norm_in.gain": ("g_block_in",), "norm_out.gain": ("g_block_out",)}
    data = [(torch.tensor(x), torch.tensor(m), torch.tensor(y.argmax(-1))) for x, m, y in padded(problem)]
    return torch_loop(Model(), names, problem, lambda i: [data[i % BATCHES]], [data[0]])


def printed_loss(xp, gelu, softmax, log_softmax, theta, x, mask, label):
    """The formula as printed for one model (jax.vmap) or, by broadcasting, for an ensemble (torch.compile)."""

    def norm(y, gain):
        y = y / xp.sqrt((y * y).mean(-1)[..., None] + NORM_EPSILON)
        return y * theta[gain][..., *(None,) * (y.ndim - theta[gain].ndim), :]

    def linear(y, weight, bias=None):
        out = y.reshape(*y.shape[: theta[weight].ndim - 2], -1, y.shape[-1]) @ theta[weight]
        out = out.reshape(*y.shape[:-1], -1)
        return out if bias is None else out + theta[bias][..., *(None,) * (y.ndim - theta[bias].ndim), :]

    h = linear(gelu(linear(x, "W_1", "b_1")), "W_2", "b_2")
    h = norm(h, "g_block_in") if "g_block_in" in theta else h
    e = (linear(h, "K") * theta["q"][..., None, None, :]).sum(-1)
    w = softmax(xp.where(mask, e, -xp.inf))
    z = (w[..., None, :] @ linear(h, "V"))[..., 0, :]
    z = norm(z, "g_block_out") if "g_block_out" in theta else z
    log_p = log_softmax(linear(gelu(linear(z, "W_3", "b_3")), "W_4", "b_4"))
    return -(log_p * label).sum(-1).mean(-1)


def ensemble(problem: Any, n_models: int) -> Trainer:
    import torch
    from torch.nn import functional

    def loss(theta, x, mask, label):
        x = x.expand(n_models, *x.shape)
        functions = (functional.gelu, lambda y: y.softmax(-1), lambda y: y.log_softmax(-1))
        return printed_loss(torch, *functions, theta, x, mask, label).sum()

    data = [tuple(map(torch.tensor, batch)) for batch in padded(problem)]
    return torch_ensemble(loss, problem, n_models, lambda i: data[i % BATCHES], data[0])


def jax_trainer(problem: Any, n_models: int) -> Trainer:
    import jax
    import jax.numpy as jnp

    functions = (lambda x: jax.nn.gelu(x, approximate=False), jax.nn.softmax, jax.nn.log_softmax)
    data = [jnp.stack(x) for x in zip(*padded(problem), strict=True)]

    def loss(theta, batch):
        return printed_loss(jnp, *functions, theta, *batch)

    return jax_vmap(loss, problem, n_models, lambda _, t: [x[t % BATCHES] for x in data], [x[0] for x in data])


def systems(problem: Any) -> dict[str, System]:
    return {
        "resharpen-native": System(lambda n: ours("native", problem, n), BATCHES, (16,), "numpy", threads=False),
        "resharpen-torch": System(lambda n: ours("torch", problem, n), BATCHES, (4, 16), threads=False),
        "torch-loop": System(lambda _: loop(problem), BATCHES),
        "torch-compile": System(lambda n: ensemble(problem, n), BATCHES, (4, 16), quick=False),
        "jax-vmap": System(lambda n: jax_trainer(problem, n), BATCHES, (4, 1, 16), "jax"),
    }


# ---- operations -----------------------------------------------------------------------------------------------------


def work(problem: Any) -> Work:
    """The kernel computes both layers and the values at a few points of each class's curve, five where weights are as
    small as in the beginning (up to sixteen later), and of an item its shares of them, about 40 operations a point.
    """
    items = sum(batch.inputs.length.sum() for batch in minibatches(problem)) / BATCHES
    update = 20 * sum(x.size for x in initial(problem, 1).values())
    head, nodes = N * (D * D + D * CLASSES), 5 * CLASSES
    printed = 3 * 2 * (items * ((1 + CLASSES) * D + 3 * D * D + 2 * D) + head) + update
    native = 3 * 2 * (nodes * 2 * D * D + N * nodes * D + head) + 65 * D * nodes + 40 * 16 * items + update
    return Work(items, printed, native)


if __name__ == "__main__":
    main(Benchmark(__doc__, CASES, "max-none", make_problem, systems, work, alike=lambda _: "all"))
