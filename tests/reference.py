"""The model and one training step once more, in float64 NumPy, one prefix at a time. Written from the formulas, not
from the package."""

from __future__ import annotations

import math

import numpy as np

HAS = {
    "pre": {"in"},
    "post": {"residual"},
    "peri": {"in", "out", "final"},
    "peri-init": {"embedding", "in", "out", "final"},
    "none": set(),
    "out": {"out"},
    "pre-final": {"in", "final"},
    "heads-out": {"heads"},
    "olmo2": {"out", "final", "queries", "keys"},
    "qwen3": {"in", "final", "queries", "keys"},
    "gemma3": {"in", "out", "final", "queries", "keys"},
}
GAIN = {
    "embedding": "g_embedding_out",
    "in": "g_block_in",
    "out": "g_block_out",
    "residual": "g_residual",
    "final": "g_unembedding_in",
    "heads": "g_heads_out",
    "queries": "g_queries",
    "keys": "g_keys",
}


def logits(theta, tokens, placement, epsilon):
    """Next-token logits of one model after one sequence."""

    def norm(name, x):
        if name not in HAS[placement]:
            return x
        return x / math.sqrt(sum(x * x) / len(x) + epsilon) * theta[GAIN[name]]

    x = [norm("embedding", theta["E"][t]) for t in tokens]
    h = [norm("in", row) for row in x]
    query = norm("queries", h[-1] @ theta["W_Q"])
    scores = np.array([query @ norm("keys", row @ theta["W_K"]) for row in h]) / math.sqrt(theta["W_Q"].shape[1])
    a = np.exp(scores - scores.max())
    a /= a.sum()
    attended = sum(weight * (row @ theta["W_V"]) for weight, row in zip(a, h, strict=True))
    y = norm("out", norm("heads", attended) @ theta["W_O"])
    return norm("final", norm("residual", x[-1] + y)) @ theta["U"]


def loss(theta, inputs, targets, placement, epsilon):
    """Mean negative log likelihood over all prefixes of a minibatch."""
    total = 0.0
    for row, wanted in zip(inputs, targets, strict=True):
        for end, target in enumerate(wanted):
            z = logits(theta, row[: end + 1], placement, epsilon)
            total += np.log(np.exp(z - z.max()).sum()) + z.max() - z[target]
    return total / inputs.size


def gradient(theta, inputs, targets, placement, epsilon, h=1e-5):
    """Central finite differences of the loss."""
    out = {}
    for name, array in theta.items():
        g = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            side = []
            for sign in (1, -1):
                moved = {key: value.copy() for key, value in theta.items()}
                moved[name][index] += sign * h
                side.append(loss(moved, inputs, targets, placement, epsilon))
            g[index] = (side[0] - side[1]) / (2 * h)
        out[name] = g
    return out


def learning_rate(n, steps, hyper):
    peak, warmup, end = hyper["peak_learning_rate"], hyper["warmup_steps"], hyper["end_multiplier"]
    if n < warmup:
        return peak * (n + 1) / warmup
    return peak * (1 - (1 - end) * (n - warmup) / max(1, steps - 1 - warmup))


def train_step(state, g, n, steps, hyper):
    """Clip, AdamW with decoupled decay, EMA: step n of one model; `state` is (theta, m, v, ema), changed in place."""
    theta, m, v, ema = state
    norm = math.sqrt(sum((x * x).sum() for x in g.values()))
    scale = min(1.0, hyper["max_gradient_norm"] / norm) if norm > 0 else 1.0
    lr, t = learning_rate(n, steps, hyper), n + 1
    beta1, beta2 = 1 - hyper["one_minus_beta1"], 1 - hyper["one_minus_beta2"]
    for name in theta:
        clipped = g[name] * scale
        m[name] = beta1 * m[name] + (1 - beta1) * clipped
        v[name] = beta2 * v[name] + (1 - beta2) * clipped**2
        m_hat, v_hat = m[name] / (1 - beta1**t), v[name] / (1 - beta2**t)
        decay = 0.0 if name == "E" or name.startswith("g_") else hyper["weight_decay"]
        theta[name] = theta[name] - lr * decay * theta[name] - lr * m_hat / (np.sqrt(v_hat) + hyper["adam_epsilon"])
        b = (hyper["ema_lag"] + n) ** -hyper["ema_power"]
        ema[name] = (1 - b) * ema[name] + b * theta[name]
