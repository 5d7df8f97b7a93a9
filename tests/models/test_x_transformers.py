"""The transformer and its parts against x-transformers, with the same weights, in float64: logits and gradients."""

from __future__ import annotations

import math
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from helpers import random_theta, transformer_problem

from resharpen.models import Transformer
from resharpen.parts import ATTENTIONS
from resharpen.parts.positions.rope import BASE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it says of torch while it loads
    from x_transformers import Decoder
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

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
    "rope-half": ({"placement": "pre-final", "positions": "rope-half"}, {}),
    "rope-500k": ({"placement": "pre-final", "positions": "rope-500k"}, {}),
    "t5": ({"placement": "pre-final", "positions": "t5"}, {"rel_pos_bias": True}),
    "sink": (
        {"placement": "pre", "attention": "sink"},
        {"pre_norm_has_final_norm": False, "attn_head_learned_sink": True},
    ),
    "gated": ({"placement": "peri", "attention": "gated"}, {"sandwich_norm": True, "attn_gate_values": True}),
    "forgetting": (
        {"placement": "pre-final", "positions": "nope", "attention": "forgetting"},
        {"attn_data_dependent_alibi": True},
    ),
    "forgetting, rope": (
        {"placement": "pre-final", "attention": "forgetting"},
        {"attn_data_dependent_alibi": True},
    ),
    "top-k": ({"placement": "pre-final", "attention": "top-k"}, {"attn_sparse_topk": 3}),
    "sinusoidal": ({"placement": "peri", "positions": "sinusoidal"}, {"sandwich_norm": True}),
    "dyt": ({"placement": "pre-final", "norm": "dyt"}, {"use_dynamic_tanh": True, "use_rmsnorm": False}),
}
NORMS = {
    "block_in": "layers.{}.0.0",
    "block_out": "layers.{}.0.1",
    "residual": "layers.{}.0.2",
    "unembedding_in": "final_norm",
}
IN_NORMS = {"rms": {"g": "g"}, "dyt": {"a": "pre_tanh_scale", "g": "gamma", "b": "beta"}}


SHARED = "0.attention.b_t5"
"""What ours has in every layer, and theirs once."""


def decoder(positions: str, **options) -> Decoder:
    """Theirs, with exact numbers where it has made them in single precision."""
    turned = {"rope": MODEL.d_head, "rope-500k": MODEL.d_head, "rope-half": MODEL.d_head // 2}.get(positions)
    if turned:
        options |= {"rotary_pos_emb": True, "rotary_emb_dim": MODEL.d_head}  # as many as there are frequencies, below
    sizes = {"dim": MODEL.d, "depth": MODEL.layers, "heads": MODEL.heads, "attn_dim_head": MODEL.d_head}
    plain = {"use_rmsnorm": True, "norm_add_unit_offset": False, "ff_no_bias": True, "ff_mult": MODEL.d_mlp / MODEL.d}
    flash = positions != "t5" and not {"attn_head_learned_sink", "attn_sparse_topk"} & set(options)
    made = Decoder(**sizes, **{**plain, **options}, attn_flash=flash, verbose=False).double()
    for module in made.modules():
        if hasattr(module, "attn_fn") and "attn_sparse_topk" not in options:
            module.attn_fn = partial(torch.softmax, dim=-1)
    if turned:
        base = 500_000 if positions == "rope-500k" else BASE
        made.rotary_pos_emb.inv_freq = base ** -(torch.arange(0, turned, 2).double() / turned)
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
        if (s := f"{block}s_sink") in theta:
            named[f"layers.{i}.1.attend.head_attn_sink"] = theta[s]
        if f"{block}w_forgetting" in theta:
            theirs = f"layers.{i}.1.data_dependent_alibi.to_forget_gates.0"
            named[f"{theirs}.weight"], named[f"{theirs}.bias"] = (theta[f"{block}{x}_forgetting"] for x in "wb")
        for ours, theirs in (("g_queries", "qk_norm_q_scale"), ("g_keys", "qk_norm_k_scale")):
            if block + ours in theta:  # theirs has a gain per head, and divides by the norm where ours does by its mean
                gain = theta[block + ours].expand(MODEL.heads, 1, -1)
                gain = gain[..., HALF_TO_PAIRS[: MODEL.d_head]] if turned else gain
                named[f"layers.{i}.1.{theirs}"] = math.sqrt(MODEL.d_head) * gain
    if SHARED in theta:  # theirs is multiplied by the root of the width, to be divided again with the logits
        named["rel_pos.relative_attention_bias.weight"] = theta[SHARED].T / math.sqrt(MODEL.d_head)
    for site, where in NORMS.items():
        for ours, theirs in IN_NORMS[norm].items():
            for i, block in enumerate(MODEL.blocks if site != "unembedding_in" else [""]):
                if (name := f"{block}{ours}_{site}") in theta:
                    named[f"{where.format(i)}.{theirs}"] = theta[name]
    return named


def sinusoidal(x, s):
    """Theirs has the sines before the cosines."""
    made = ScaledSinusoidalEmbedding(MODEL.d).double()
    half = MODEL.d // 2
    made.inv_freq = BASE ** -(torch.arange(half).double() / half)
    found = torch.func.functional_call(made, {"scale": s, "inv_freq": made.inv_freq}, (x,))
    return found.unflatten(-1, (2, half)).mT.flatten(-2)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients(name, monkeypatch):
    monkeypatch.setattr(sys.modules[ATTENTIONS["top-k"].function.__module__], "KEPT", 3)
    parts, options = CASES[name]
    problem = transformer_problem(model=MODEL, **parts)
    theta = {key: torch.tensor(x).requires_grad_() for key, x in random_theta(problem, 1, scale=0.5).items()}
    positions, norm = problem.parts.positions.name, problem.parts.norm.name
    hyper = {"rms_epsilon": torch.zeros(1, dtype=torch.float64)}
    if SHARED in theta:
        del theta["1.attention.b_t5"]
    tied = {**theta, "1.attention.b_t5": theta[SHARED]} if SHARED in theta else theta
    got = MODEL.logits(tied, TOKENS, problem.parts, hyper)[0]

    one, theirs = {key: x[0] for key, x in theta.items()}, decoder(positions, **options)
    # the half of a head that rope-half turns is one pair
    named = renamed(one, norm, positions in ("rope", "rope-500k"))
    assert set(named) == {key for key, _ in theirs.named_parameters()}
    named |= dict(theirs.named_buffers())
    x = one["E"][TOKENS]
    if positions == "sinusoidal":
        x = x + sinusoidal(x, one["s_sinusoidal"])
    expected = torch.func.functional_call(theirs, named, (x,)) @ one["U"]
    assert torch.allclose(got, expected, rtol=1e-9, atol=1e-11)

    outer = torch.tensor(np.random.default_rng(0).standard_normal(got.shape))
    mine, other = (torch.autograd.grad((x * outer).sum(), list(theta.values())) for x in (got, expected))
    for key, a, b in zip(theta, mine, other, strict=True):
        assert b.abs().max() > 1e-6, key
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-9), key
