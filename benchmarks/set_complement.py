"""Training speed on Set Complement against the usual ways to train many small models.

    python benchmarks/set_complement.py --cases sct-v9-s8 --systems resharpen-native jax-vmap --json rows.json

Everyone does the whole work of a step with minibatches of 256 sequences, placement peri, d = d_v = v - 1, d_k = 1:
draw a minibatch, forward, backward, clip each model's gradient, AdamW with its schedule, moving average. Ours share a
minibatch among sixteen models, as the random streams of the search have it. `jax-vmap` is the plain vmap of one model's
training, each model with a key of its own; drawing is a good part of its time, so `jax-vmap-shared` shares minibatches
as ours do. The torch peers share them among all models of an ensemble. Peers draw by their own generator. The trial of
sizes and ways is made at the smallest v for each s.

Cases that name an attention are for our engines alone, those that name a placement for native, and those that end in
`-late` are timed from step 15,000 on, where attention logits of some models lie far apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import NATIVE, Benchmark, System, Work, main
from trainers import NORM_EPSILON, Trainer, jax_vmap, minibatches, ours, torch_loop, torch_vmap, with_attention

from resharpen.engines.base import Problem
from resharpen.parts import PLACEMENTS, Parts

CASES = ("sct-v9-s2", "sct-v9-s8", "sct-v16-s2", "sct-v16-s8", "sct-v25-s2", "sct-v25-s8")
OURS = tuple(f"sct-v{v}-s8-{p}{late}" for v in (9, 16, 25) for p in ("pre", "out", "post") for late in ("", "-late"))
OURS += tuple(f"sct-v{v}-s8-peri-late" for v in (9, 16, 25))
OURS += tuple(f"sct-v9-s{s}-{attention}" for s in (2, 8) for attention in ("log-n", "ssmax"))
N, LATE = 256, 15_000


class Late(Problem):
    """A problem that is timed from step LATE on."""


def make_problem(case: str) -> Any:
    from resharpen.models import Minimal
    from resharpen.tasks import SetComplement

    case, attention = with_attention(case)
    size, length, *rest = case.removeprefix("sct-v").removesuffix("-late").split("-", 2)
    kind, v, placement = Late if case.endswith("-late") else Problem, int(size), PLACEMENTS[rest[0] if rest else "peri"]
    return kind(
        SetComplement(v), Minimal.usual(v), Parts(placement, attention=attention), int(length[1:]), N, 100_000, seed=0
    )


def first_tokens(problem: Any) -> np.ndarray:
    """The first minibatch, [N, s + 1]."""
    inputs, targets, _ = minibatches(problem)[0]
    return np.concatenate([inputs, targets[:, -1:]], 1)


# ---- peers ----------------------------------------------------------------------------------------------------------


def loop(problem: Any) -> Trainer:
    import torch
    from torch import nn

    v, s, d = problem.task.v, problem.train_length, problem.model.d

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(v, d)
            self.norm_in, self.norm_out, self.norm_final = (nn.RMSNorm(d, NORM_EPSILON) for _ in range(3))
            self.query, self.key = nn.Linear(d, 1, bias=False), nn.Linear(d, 1, bias=False)
            self.value, self.output = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
            self.unembedding = nn.Linear(d, v, bias=False)

        def forward(self, tokens):
            x = self.embedding(tokens[:, :-1])
            h = self.norm_in(x)
            attended = nn.functional.scaled_dot_product_attention(
                self.query(h), self.key(h), self.value(h), is_causal=True
            )
            logits = self.unembedding(self.norm_final(x + self.norm_out(self.output(attended))))
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    parts = {"embedding": "E", "query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O", "unembedding": "U"}
    parts |= {"norm_in": "g_block_in", "norm_out": "g_block_out", "norm_final": "g_unembedding_in"}
    names = {f"{part}.weight": (name,) for part, name in parts.items()}
    batch = [torch.tensor(first_tokens(problem))]
    return torch_loop(Model(), names, problem, lambda _: [[torch.rand(N, v).argsort(1)[:, : s + 1]]], [batch])


def printed_loss(xp, softmax, log_softmax, theta, one_hot, future):
    """The loss of one model on sequences [N, s + 1, V] given as one-hot rows."""

    def norm(x, gain):
        return x / xp.sqrt((x * x).mean(-1)[..., None] + NORM_EPSILON) * gain

    x = one_hot[:, :-1] @ theta["E"]
    h = norm(x, theta["g_block_in"])
    logits = (h @ theta["W_Q"]) * (h @ theta["W_K"])[..., 0][:, None, :]
    attention = softmax(xp.where(future, -1e30, logits))
    y = norm(attention @ (h @ theta["W_V"]) @ theta["W_O"], theta["g_block_out"])
    log_p = log_softmax(norm(x + y, theta["g_unembedding_in"]) @ theta["U"])
    return -(log_p * one_hot[:, 1:]).sum(-1).mean()


def functional(problem: Any, n_models: int, compiled: bool = False) -> Trainer:
    import torch
    from torch.nn.functional import one_hot

    v, s = problem.task.v, problem.train_length
    future = torch.ones(s, s).triu(1).bool()

    def loss(theta, sequences):
        return printed_loss(torch, lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), theta, sequences, future)

    def draw():
        return one_hot(torch.rand(N, v).argsort(1)[:, : s + 1], v).float()

    batch = one_hot(torch.tensor(first_tokens(problem)), v).float()
    return torch_vmap(loss, problem, n_models, draw, batch, compiled)


def jax_trainer(problem: Any, n_models: int, sharing: int = 1) -> Trainer:
    import jax
    import jax.numpy as jnp

    v, s = problem.task.v, problem.train_length
    future = jnp.triu(jnp.ones((s, s), bool), 1)

    def loss(theta, sequences):
        return printed_loss(jnp, jax.nn.softmax, jax.nn.log_softmax, theta, sequences, future)

    def draw(key, t):
        uniform = jax.random.uniform(jax.random.fold_in(key, t), (N, v))
        return jax.nn.one_hot(uniform.argsort(1)[:, : s + 1], v)

    return jax_vmap(loss, problem, n_models, draw, jax.nn.one_hot(first_tokens(problem), v), sharing)


def systems(problem: Any) -> dict[str, System]:
    after = LATE if isinstance(problem, Late) else 0
    native = System(lambda n: ours("native", problem, n, after=after), 40, (16,), "numpy", threads=False)
    if after or problem.parts.placement != PLACEMENTS["peri"]:
        return {NATIVE: native}
    return {
        NATIVE: native,
        "resharpen-torch": System(lambda n: ours("torch", problem, n), 5, (16,), threads=False),
        "torch-loop": System(lambda _: loop(problem), 5, threads=False),
        "torch-vmap": System(lambda n: functional(problem, n), 5, (16, 64)),
        "torch-compile": System(lambda n: functional(problem, n, compiled=True), 5, (16, 64), quick=False),
        "jax-vmap": System(lambda n: jax_trainer(problem, n), 5, (64, 16), "jax"),
        "jax-vmap-shared": System(lambda n: jax_trainer(problem, n, sharing=16), 5, (64, 16), "jax", quick=False),
    }


# ---- operations -----------------------------------------------------------------------------------------------------


def work(problem: Any) -> Work:
    """The kernel merges equal prefixes and has tables of what depends on a token alone; the formula is computed at
    every position of every sequence.
    """
    v, s, d = problem.task.v, problem.train_length, problem.model.d
    states = tokens = pairs = 0.0
    for inputs, *_ in minibatches(problem):
        sets = np.bitwise_or.accumulate(np.int64(1) << inputs, axis=1)
        for i in range(s):
            keys = np.stack([inputs[:, i], sets[:, i]], axis=1)
            n = len(np.unique(keys, axis=0)) if v <= 10 or i < 2 else len(keys)
            states, tokens, pairs = states + n / 4, tokens + n * (i + 1) / 4, pairs + n * (i + 1) * (i + 2) / 8
    placement = problem.parts.placement
    norms = placement.block_out + (placement.residual or placement.unembedding_in)
    forms, vectors = norms * (v >= 10), d * (norms > 0) * (v < 10)
    columns = v + 1 + vectors + (forms > 0)
    subsets = v <= 9 and s >= 5
    attention = (states if subsets else tokens) * 3 * columns + 5 * v * v * columns
    attention += forms * (2 * pairs + 5 * v * v * v)
    per_token = 3 * 2 * (2 * v * d + 2 * v * d * d + 2 * v * d * v + v * v) + 2 * 2 * v * d * v * forms
    weights = 2 * v * d + 2 * d * d + 2 * d + 3 * d
    kernel = attention + states * (26 * v + 17 * vectors) + per_token + 20 * weights
    positions = N * s
    printed = 3 * 2 * (positions * (2 * d + 2 * d * d + d * v) + N * s * (s + 1) / 2 * (1 + d)) + 20 * weights
    return Work(positions, printed, kernel)


if __name__ == "__main__":
    main(
        Benchmark(
            __doc__, CASES + OURS, "sct-v9-s8", make_problem, systems, work, alike=lambda case: case.split("-")[2]
        )
    )
