"""Training speed of the transformer on token tasks against the usual ways to train many small models.

    python benchmarks/languages.py --cases tomita3 --systems resharpen-native jax-vmap --json rows.json

Every system trains models of two layers, d = 64 (placement peri), on the same four minibatches of 64 sequences, with
clipping, AdamW and the moving average; ours draws its minibatches itself. `full100` is 64 sequences of 100 tokens, so
without anything to pad, and so are `flip-flop` (64 tokens, drawn by the kernel) and `othello` (28 moves, drawn in
Python). `recall` has questions of 1 to 16 pairs, drawn in Python, and a loss at their answers only. Otherwise the peers
pad: the plain loop to the longest sequence of a minibatch, what is compiled for fixed shapes (torch.compile, JAX) to
the maximum training length. At length 700 JAX trains one model per process: more do not fit. The sorted peers do what a
skilled user would: a minibatch is sorted by length and trained in four or eight pieces, each padded to its own longest
sequence, whose gradients add up; as a plain loop, or compiled once for all shapes. Cases that name an attention, a
position encoding or dropout are for our engines alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Benchmark, System, Work, main
from trainers import BATCHES, NORM_EPSILON, Trainer, jax_vmap, minibatches, ours, torch_loop, with_attention

from resharpen import streams
from resharpen.tasks import Batch, Dyck, FlipFlop, Othello, Recall, Tomita

ENCODINGS = ("alibi", "t5", "kerple", "rope-half", "rope-500k", "sinusoidal", "learned")
TASKS = {
    "full100": lambda: Full(3),
    "tomita3": lambda: Tomita(3),
    "tomita7": lambda: Tomita(7),
    "dyck8-10": lambda: Dyck(8, 10),
    "flip-flop": FlipFlop,
    "recall": Recall,
    "othello": Othello,
}
CASES = (
    *TASKS,
    "tomita3-log-n",
    "tomita3-ssmax",
    "tomita3-window",
    "tomita3-sink",
    "tomita3-dropout",
    "flip-flop-dropout",
)
CASES += tuple(f"tomita3-{positions}" for positions in ENCODINGS)
LAYERS, D, HEADS = 2, 64, 4


class Full(Tomita):
    """Random sequences that never end, so all have the same length."""

    def batch(self, key: streams.Key, group: int, step: int, n: int, train_length: int) -> Batch:
        targets = streams.below(streams.words(key, n * train_length, group, step), 2).reshape(n, train_length)
        inputs = np.concatenate([np.full((n, 1), self.automaton.bos), targets[:, :-1]], axis=1)
        return Batch(inputs, targets, np.ones(inputs.shape, bool))


def make_problem(case: str) -> Any:
    from resharpen.engines.base import Problem
    from resharpen.models import Transformer
    from resharpen.parts import DROPOUTS, PLACEMENTS, POSITIONS, Parts

    case, dropout = case.removesuffix("-dropout"), "dropout" if case.endswith("-dropout") else "no-dropout"
    positions = next((name for name in ENCODINGS if case.endswith(f"-{name}")), "rope")
    language, attention = with_attention(case.removesuffix(f"-{positions}"))
    task = TASKS[language]()
    named = {"attention": attention, "positions": POSITIONS[positions], "dropout": DROPOUTS[dropout]}
    parts = Parts(PLACEMENTS["peri"], **named, longest=task.longest_input)
    return Problem(task, Transformer(task.vocabulary), parts, task.usual_train_length, 64, 100_000, seed=0)


def longest(problem: Any) -> int:
    """Input tokens of the longest sequence in training."""
    return problem.task.input_tokens(problem.train_length)


def token_counts(batch: Batch) -> np.ndarray:
    """Number of input tokens of each sequence up to its last trained position."""
    return batch.mask.shape[1] - batch.mask[:, ::-1].argmax(1)


def padded(problem: Any) -> list[tuple[np.ndarray, ...]]:
    """The minibatches padded to the maximum training length."""
    length = longest(problem)
    return [tuple(np.pad(x, ((0, 0), (0, length - x.shape[1]))) for x in batch) for batch in minibatches(problem)]


def rotation(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of every position and frequency, [L, d_head / 2]."""
    angle = np.arange(length)[:, None] * 10_000.0 ** (-2 * np.arange(D // HEADS // 2) / (D // HEADS))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


# ---- peers ----------------------------------------------------------------------------------------------------------


def sorted_pieces(batch: Batch, n: int) -> list[tuple[np.ndarray, ...]]:
    """Sort a minibatch by length and split it into n equal pieces, each padded to its longest sequence only."""
    length_N = token_counts(batch)
    pieces = np.array_split(np.argsort(length_N, kind="stable"), n)
    return [tuple(x[rows, : length_N[rows].max()] for x in batch) for rows in pieces]


def loop(problem: Any, data: list[list[tuple[np.ndarray, ...]]], **compiled: Any) -> Trainer:
    """A plain loop over minibatches, each a list of pieces. `compiled`: arguments of torch.compile, if any."""
    import torch
    from torch import nn
    from torch.nn import functional

    vocabulary = problem.task.vocabulary
    cosine, sine = map(torch.tensor, rotation(longest(problem)))

    def rotate(x):
        a, b = x.chunk(2, -1)
        c, s = cosine[: x.shape[-2]], sine[: x.shape[-2]]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def linear(i, o):
        return nn.Linear(i, o, bias=False)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out, self.up, self.down = linear(D, 3 * D), linear(D, D), linear(D, 4 * D), linear(4 * D, D)
            self.norms = nn.ModuleList([nn.RMSNorm(D, NORM_EPSILON) for _ in range(4)])

        def forward(self, x):
            q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
            y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + self.norms[1](self.out(y.transpose(1, 2).flatten(-2)))
            return x + self.norms[3](self.down(functional.gelu(self.up(self.norms[2](x)))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.layers = nn.Embedding(vocabulary, D), nn.Sequential(*(Layer() for _ in range(LAYERS)))
            self.norm, self.unembedding = nn.RMSNorm(D, NORM_EPSILON), linear(D, vocabulary)

        def forward(self, inputs, targets, real, n_real):
            logits = self.unembedding(self.norm(self.layers(self.embedding(inputs))))
            nll = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            return (nll * real.flatten()).sum() / n_real

    names = {"embedding.weight": ("E",), "norm.weight": ("g_unembedding_in",), "unembedding.weight": ("U",)}
    for i in range(LAYERS):
        a, m = f"{i}.attention.", f"{i}.mlp."
        parts = {"qkv": (a + "W_Q", a + "W_K", a + "W_V"), "out": (a + "W_O",)}
        parts |= {"up": (m + "W_1",), "down": (m + "W_2",)}
        gains = (a + "g_block_in", a + "g_block_out", m + "g_block_in", m + "g_block_out")
        parts |= {f"norms.{j}": (gain,) for j, gain in enumerate(gains)}
        names |= {f"layers.{i}.{part}.weight": tensors for part, tensors in parts.items()}
    n_real = [torch.tensor(float(sum(piece[-1].sum() for piece in pieces))) for pieces in data]
    tensors = [[(*map(torch.tensor, piece), n) for piece in pieces] for pieces, n in zip(data, n_real, strict=True)]

    def compile(model):
        return torch.compile(model, **compiled) if compiled else model

    return torch_loop(Model(), names, problem, lambda i: tensors[i % BATCHES], tensors[0], compile)


def jax_trainer(problem: Any, n_models: int) -> Trainer:
    import jax
    import jax.numpy as jnp

    data = [jnp.stack(x) for x in zip(*padded(problem), strict=True)]
    cosine, sine = (jnp.asarray(x)[:, None] for x in rotation(longest(problem)))

    def norm(x, gain):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + NORM_EPSILON) * gain

    def rotate(x):
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    def loss(theta, batch):
        inputs, targets, real = batch
        x = theta["E"][inputs]
        for i in range(LAYERS):
            a, m = f"{i}.attention.", f"{i}.mlp."
            h = norm(x, theta[a + "g_block_in"])
            q, k, v = ((h @ theta[a + w]).reshape(*h.shape[:-1], HEADS, -1) for w in ("W_Q", "W_K", "W_V"))
            y = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True).reshape(x.shape)
            x = x + norm(y @ theta[a + "W_O"], theta[a + "g_block_out"])
            h = jax.nn.gelu(norm(x, theta[m + "g_block_in"]) @ theta[m + "W_1"], approximate=False)
            x = x + norm(h @ theta[m + "W_2"], theta[m + "g_block_out"])
        log_p = jax.nn.log_softmax(norm(x, theta["g_unembedding_in"]) @ theta["U"])
        nll = -jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]
        return (nll * real).sum() / real.sum()

    return jax_vmap(loss, problem, n_models, lambda _, t: [x[t % BATCHES] for x in data], [x[0] for x in data])


def systems(problem: Any) -> dict[str, System]:
    def engine(name: str, n: int) -> Trainer:
        """Every call uses the same four minibatches, because lengths differ. The kernel cannot draw those of `Full`."""
        given = minibatches(problem) if isinstance(problem.task, Full) else None
        return ours(name, problem, n, restart=True, given=given)

    def in_pieces(n: int, **compiled: Any) -> Trainer:
        return loop(problem, [sorted_pieces(batch, n) for batch in minibatches(problem)], **compiled)

    def at_full_length() -> Trainer:
        return loop(problem, [[batch] for batch in padded(problem)], dynamic=False)

    fit = (1,) if longest(problem) == 700 else (1, 4)
    return {
        "resharpen-native": System(lambda n: engine("native", n), BATCHES, (4,), "numpy", threads=False),
        "resharpen-torch": System(lambda n: engine("torch", n), BATCHES, (4,), threads=False),
        "torch-loop": System(lambda _: in_pieces(1), BATCHES),
        "torch-sorted-4": System(lambda _: in_pieces(4), BATCHES),
        "torch-sorted-8": System(lambda _: in_pieces(8), BATCHES),
        "torch-compile": System(lambda _: at_full_length(), BATCHES, quick=False),
        "compile-sorted-4": System(lambda _: in_pieces(4, dynamic=True), BATCHES, quick=False),
        "compile-sorted-8": System(lambda _: in_pieces(8, dynamic=True), BATCHES, quick=False),
        "jax-vmap": System(lambda n: jax_trainer(problem, n), BATCHES, fit, "jax"),
    }


# ---- operations -----------------------------------------------------------------------------------------------------


def work(problem: Any) -> Work:
    """Operations of the formula without padding; the kernel performs the same."""
    length = np.concatenate([token_counts(batch) for batch in minibatches(problem)]).astype(float)
    matrices = LAYERS * 12 * D * D + D * problem.task.vocabulary
    attention = LAYERS * 2 * 2 * D * length * (length + 1) / 2
    operations = float(3 * (2 * matrices * length + attention).sum() / BATCHES)
    return Work(length.sum() / BATCHES, operations, operations)


if __name__ == "__main__":
    main(Benchmark(__doc__, CASES, "tomita3", make_problem, systems, work))
