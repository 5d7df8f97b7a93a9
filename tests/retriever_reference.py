"""The retriever once more, in float64 NumPy, one sequence at a time. Written from the formula as printed, not from the
package."""

from __future__ import annotations

import math

import numpy as np

HAS = {"none": "", "pre": "h", "post": "z", "peri": "hz"}


def gelu(x):
    return np.array([0.5 * value * math.erfc(-value / math.sqrt(2)) for value in x])


def attention_and_logits(theta, priority, kinds, placement, epsilon, factor=lambda e: 1.0):
    """Attention weights over the items of one sequence, and class logits; e is multiplied with factor(e)."""

    def norm(where, x, gain):
        if where not in HAS[placement]:
            return x
        return x / math.sqrt(sum(x * x) / len(x) + epsilon) * theta[gain]

    h = []
    for p, kind in zip(priority, kinds, strict=True):
        x = np.zeros(len(theta["W_1"]))
        x[0], x[1 + kind] = p, 1.0
        hidden = gelu(x @ theta["W_1"] + theta["b_1"])
        h.append(norm("h", hidden @ theta["W_2"] + theta["b_2"], "g_block_in"))
    e = np.array([(row @ theta["K"]) @ theta["q"] for row in h])
    e = e * factor(e)
    w = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
    z = norm("z", sum(weight * (row @ theta["V"]) for weight, row in zip(w, h, strict=True)), "g_block_out")
    return w, gelu(z @ theta["W_3"] + theta["b_3"]) @ theta["W_4"] + theta["b_4"]


def loss(theta, batch, placement, epsilon, factor=lambda e: 1.0):
    """Mean negative log likelihood of the labels of a minibatch, ((priority, kinds, length), label, ...)."""
    total = 0.0
    for priority, kinds, length, label in zip(*batch[0], batch[1], strict=True):
        _, z = attention_and_logits(theta, priority[:length], kinds[:length], placement, epsilon, factor)
        total += np.log(np.exp(z - z.max()).sum()) + z.max() - z[label]
    return total / len(batch[1])


def entropy(w):
    return -sum(x * math.log(x) for x in w if x > 0)
