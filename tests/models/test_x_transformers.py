"""The transformer and its parts against x-transformers, with the same weights, in float64: logits and gradients."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from helpers import random_theta, transformer_problem

from resharpen.models import Transformer
from resharpen.parts.positions.rope import BASE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it says of torch while it loads
    from x_transformers import Decoder

MODEL = Transformer(6, layers=2, d=16, heads=4, d_mlp=24)
TOKENS = torch.tensor([[4, 0, 1, 3, 2, 2, 5], [4, 1, 1, 3, 3, 0, 0]])
HALF_TO_PAIRS = torch.arange(MODEL.d).view(MODEL.heads, 2, -1).mT.flatten()
"""Where the features of a head that rope turns together stand in theirs: side by side."""

CASES = {
    "pre": ({"placement": "pre"}, {"pre_norm_has_final_norm": False}),
    "pre-final": ({"placement": "pre-final"}, {}),
    "post": ({"placement": "post"}, {"pre_norm": False}),
    "sandwich": ({"placement": "peri"}, {"sandwich_norm": True}),
    "queries and keys": ({"placement": "qwen3"}, {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True}),
    "sandwich, queries and keys": (
        {"placement": "gemma3"},
        {"sandwich_norm": True, "attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    ),
    "nope": ({"placement": "peri", "positions": "nope"}, {"sandwich_norm": True}),
    "alibi": ({"placement": "pre-final", "positions": "alibi"}, {"alibi_pos_bias": True}),
    "nape": ({"placement": "pre-final", "positions": "nape"}, {"alibi_pos_bias": True, "alibi_num_heads": 2}),
    "gated": ({"placement": "peri", "attention": "gated"}, {"sandwich_norm": True, "attn_gate_values": True}),
    "dyt": ({"placement": "pre-final", "norm": "dyt"}, {"use_dynamic_tanh": True, "use_rmsnorm": False}),
}
NORMS = {
    "block_in": "layers.{}.0.0",
    "block_out": "layers.{}.0.1",
    "residual": "layers.{}.0.2",
    "unembedding_in": "final_norm",
}
IN_NORMS = {"rms": {"g": "g"}, "dyt": {"a": "pre_tanh_scale", "g": "gamma", "b": "beta"}}


def decoder(positions: str, **options) -> Decoder:
    """Theirs, with exact numbers where it has made them in single precision."""
    if positions == "rope":
        options |= {"rotary_pos_emb": True, "rotary_emb_dim": MODEL.d_head}
    sizes = {"dim": MODEL.d, "depth": MODEL.layers, "heads": MODEL.heads, "attn_dim_head": MODEL.d_head}
    plain = {"use_rmsnorm": True, "norm_add_unit_offset": False, "ff_no_bias": True, "ff_mult": MODEL.d_mlp / MODEL.d}
    made = Decoder(**sizes, **{**plain, **options}, attn_flash=True, verbose=False).double()
    if positions == "rope":
        made.rotary_pos_emb.inv_freq = BASE ** -(torch.arange(0, MODEL.d_head, 2).double() / MODEL.d_head)
    if positions == "nape":  # theirs for half of the heads, with the slopes of ours
        made.rel_pos.slopes = torch.tensor([1.0, 0.5], dtype=torch.float64)[:, None, None]
    return made


def renamed(theta, norm: str, turned: bool):
    """Our weights of one model under their names: theirs are [out, in]."""
    named = {}
    for i, block in enumerate(MODEL.blocks):
        matrices = {"W_Q": "to_q", "W_K": "to_k", "W_V": "to_v", "W_O": "to_out", "W_g_gated": "to_v_gate"}
        matrices |= {"W_1": "ff.0.0", "W_2": "ff.2"}
        for ours, theirs in matrices.items():
            if block + ours in theta:
                W = theta[block + ours].mT
                named[f"layers.{i}.1.{theirs}.weight"] = W[HALF_TO_PAIRS] if turned and ours in ("W_Q", "W_K") else W
        for ours, theirs in (("g_queries", "qk_norm_q_scale"), ("g_keys", "qk_norm_k_scale")):
            if block + ours in theta:  # theirs has a gain per head, and divides by the norm where ours does by its mean
                gain = theta[block + ours].expand(MODEL.heads, 1, -1)
                gain = gain[..., HALF_TO_PAIRS[: MODEL.d_head]] if turned else gain
                named[f"layers.{i}.1.{theirs}"] = math.sqrt(MODEL.d_head) * gain
    for site, where in NORMS.items():
        for ours, theirs in IN_NORMS[norm].items():
            for i, block in enumerate(MODEL.blocks if site != "unembedding_in" else [""]):
                if (name := f"{block}{ours}_{site}") in theta:
                    named[f"{where.format(i)}.{theirs}"] = theta[name]
    return named


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients(name):
    parts, options = CASES[name]
    problem = transformer_problem(model=MODEL, **parts)
    theta = {key: torch.tensor(x).requires_grad_() for key, x in random_theta(problem, 1, scale=0.5).items()}
    positions, norm = problem.parts.positions.name, problem.parts.norm.name
    hyper = {"rms_epsilon": torch.zeros(1, dtype=torch.float64)}
    got = MODEL.logits(theta, TOKENS, problem.parts, hyper)[0]

    one, theirs = {key: x[0] for key, x in theta.items()}, decoder(positions, **options)
    named = renamed(one, norm, positions == "rope")
    assert set(named) == {key for key, _ in theirs.named_parameters()}
    named |= dict(theirs.named_buffers())
    expected = torch.func.functional_call(theirs, named, (one["E"][TOKENS],)) @ one["U"]
    assert torch.allclose(got, expected, rtol=1e-9, atol=1e-11)

    outer = torch.tensor(np.random.default_rng(0).standard_normal(got.shape))
    mine, other = (torch.autograd.grad((x * outer).sum(), list(theta.values())) for x in (got, expected))
    for key, a, b in zip(theta, mine, other, strict=True):
        assert b.abs().max() > 1e-6, key
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-9), key
