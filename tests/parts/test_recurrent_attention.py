"""Attentions that depend on order or on pairs of heads, against the recurrences and sums of their authors in float64
NumPy: outputs and, through the outputs, weights."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from resharpen.models.layers import Bound
from resharpen.parts import ATTENTIONS, PLACEMENTS, Parts

M, N, H, L, K, D = 2, 3, 4, 9, 3, 5
RNG = np.random.default_rng(0)
Q, KEYS, V = RNG.standard_normal((3, M, N, H, L, K))
X = RNG.standard_normal((M, N, L, D))
W, B = RNG.standard_normal((M, H, D)), RNG.standard_normal((M, H))


def gathered(name, **learned):
    """What the heads gather with a part of ours, [M, N, H, L, K]."""
    theta = {f"{key}_{name}": torch.tensor(x) for key, x in learned.items()}
    bound = Bound(Parts(PLACEMENTS["none"], attention=ATTENTIONS[name]), theta, {})
    e = torch.tensor(Q @ np.swapaxes(KEYS, -1, -2) / np.sqrt(K))
    n = torch.arange(1, L + 1)[:, None]
    weights = bound.weights(e, torch.arange(L) < n, n, torch.tensor(X))
    assert (weights.triu(1) == 0).all()
    return (weights @ torch.tensor(V)).numpy()


def recurrent(g):
    """S_t = g_t S_{t-1} + k_t v_t^T, o_t = q_t S_t / sqrt(K), with a decay per model, sequence, head and token: the
    recurrent form of RetNet (Sun et al., 2023, equation 3) and of Mamba-2's scalar decay (Dao and Gu, 2024)."""
    out = np.zeros_like(V)
    for m, b, h in np.ndindex(M, N, H):
        S = np.zeros((K, K))
        for t in range(L):
            S = g[m, b, h, t] * S + np.outer(KEYS[m, b, h, t], V[m, b, h, t])
            out[m, b, h, t] = Q[m, b, h, t] @ S / np.sqrt(K)
    return out


def sigma(x):
    return 1 / (1 + np.exp(-x))


def test_retention_is_its_recurrence():
    g = np.array([1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128, 1 - 1 / 256])
    expected = recurrent(np.broadcast_to(g[None, None, :, None], (M, N, H, L)))
    np.testing.assert_allclose(gathered("retention"), expected, rtol=1e-11, atol=1e-12)


def test_gated_retention_is_its_recurrence():
    gates = sigma(np.einsum("mnld,mhd->mnhl", X, W) + B[:, None, :, None])
    np.testing.assert_allclose(gathered("gated-retention", w=W, b=B), recurrent(gates), rtol=1e-10, atol=1e-12)


def test_gated_retention_starts_as_retention():
    part = ATTENTIONS["gated-retention"].parameters["b"]
    np.testing.assert_allclose(
        gathered("gated-retention", w=0 * W, b=np.tile(part.start(H), (M, 1))), gathered("retention")
    )


def test_forgetting_is_lin_et_al_s():
    """o_i = sum_j F_ij exp(q_i.k_j / sqrt(K)) v_j / sum_j F_ij exp(...), F_ij = prod over j < k <= i of f_k."""
    f = sigma(np.einsum("mnld,mhd->mnhl", X, W) + B[:, None, :, None])
    expected = np.zeros_like(V)
    for m, b, h, i in np.ndindex(M, N, H, L):
        F = np.array([np.prod(f[m, b, h, j + 1 : i + 1]) for j in range(i + 1)])
        weights = F * np.exp(KEYS[m, b, h, : i + 1] @ Q[m, b, h, i] / np.sqrt(K))
        expected[m, b, h, i] = weights @ V[m, b, h, : i + 1] / weights.sum()
    np.testing.assert_allclose(gathered("forgetting", w=W, b=B), expected, rtol=1e-11, atol=1e-12)


def test_differential_is_ye_et_al_s():
    """(softmax(q_1 k_1) - l softmax(q_2 k_2)) [v_1, v_2], pair by pair, side by side."""
    less = RNG.standard_normal((M, H // 2))
    expected = np.zeros_like(V)
    for m, b, pair, i in np.ndindex(M, N, H // 2, L):
        weights = []
        for h in (2 * pair, 2 * pair + 1):
            w = np.exp(KEYS[m, b, h, : i + 1] @ Q[m, b, h, i] / np.sqrt(K))
            weights.append(w / w.sum())
        both = np.concatenate(V[m, b, 2 * pair : 2 * pair + 2, : i + 1], axis=-1)
        expected[m, b, 2 * pair : 2 * pair + 2, i] = ((weights[0] - less[m, pair] * weights[1]) @ both).reshape(2, K)
    np.testing.assert_allclose(gathered("differential", l=less), expected, rtol=1e-11, atol=1e-12)
    assert ATTENTIONS["differential"].parameters["l"].start == 0.8


@pytest.mark.parametrize("name", ["forgetting", "gated-retention"])
def test_many_tokens_neither_underflow_nor_overflow(name):
    """In single precision, with gates near 0: what is forgotten has no weight, and the gradient is finite."""
    length = 600
    x = torch.ones(1, 1, length, 1, requires_grad=True)
    p = SimpleNamespace(w=torch.full((1, 1, 1, 1, 1), -3.0), b=torch.zeros(1, 1, 1, 1, 1), x=x)
    e = torch.zeros(1, 1, 1, length, length) + 1
    weights = ATTENTIONS[name](e, torch.ones(length, length, dtype=torch.bool).tril(), p)
    weights[..., -1, :].sum().backward()
    assert weights.isfinite().all()
    assert x.grad.isfinite().all()
    assert weights[0, 0, 0, -1, 0] == 0
    assert weights[0, 0, 0, -1, -1] > 0.9
