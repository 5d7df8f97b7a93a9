"""Parts against Hugging Face's models, with the same weights, in float64: logits and gradients."""

from __future__ import annotations

import numpy as np
import torch
from helpers import random_theta, transformer_problem
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Model

from resharpen.models import Transformer

MODEL = Transformer(6, layers=2, d=16, heads=4, d_mlp=24)
TOKENS = torch.tensor([[4, 0, 1, 3, 2, 2, 5], [4, 1, 1, 3, 3, 0, 0]])
EPSILON = 1e-3


def gpt2(longest: int) -> GPT2Model:
    sizes = {"n_embd": MODEL.d, "n_layer": MODEL.layers, "n_head": MODEL.heads, "n_inner": MODEL.d_mlp}
    config = GPT2Config(
        vocab_size=MODEL.vocabulary,
        n_positions=longest,
        **sizes,
        activation_function="gelu",
        layer_norm_epsilon=EPSILON,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    return GPT2Model(config).double()


def renamed(theta):
    """Our weights of one model under their names; ours has no biases, except in norms."""
    named = {"wte.weight": theta["E"], "wpe.weight": theta["P_learned"]}
    named |= {"ln_f.weight": theta["g_unembedding_in"], "ln_f.bias": theta["b_unembedding_in"]}
    for i in range(MODEL.layers):
        attention, mlp = f"{i}.attention.", f"{i}.mlp."
        matrices = {
            "attn.c_attn": torch.cat([theta[attention + name] for name in ("W_Q", "W_K", "W_V")], dim=-1),
            "attn.c_proj": theta[f"{attention}W_O"],
            "mlp.c_fc": theta[f"{mlp}W_1"],
            "mlp.c_proj": theta[f"{mlp}W_2"],
        }
        for name, W in matrices.items():
            named |= {f"h.{i}.{name}.weight": W, f"h.{i}.{name}.bias": torch.zeros(W.shape[-1]).double()}
        for theirs, block in (("ln_1", attention), ("ln_2", mlp)):
            named[f"h.{i}.{theirs}.weight"] = theta[f"{block}g_block_in"]
            named[f"h.{i}.{theirs}.bias"] = theta[f"{block}b_block_in"]
    return named


def test_pre_final_with_layer_norm_and_learned_positions_is_gpt_2():
    problem = transformer_problem("pre-final", model=MODEL, norm="layer", positions="learned")
    theta = {key: torch.tensor(x).requires_grad_() for key, x in random_theta(problem, 1, scale=0.5).items()}
    got = MODEL.logits(theta, TOKENS, problem.parts, {"rms_epsilon": torch.full((1,), EPSILON).double()})[0]

    one, theirs = {key: x[0] for key, x in theta.items()}, gpt2(problem.parts.longest)
    named = renamed(one)
    assert set(named) == {key for key, _ in theirs.named_parameters()}
    named |= dict(theirs.named_buffers())
    expected = torch.func.functional_call(theirs, named, (TOKENS,)).last_hidden_state @ one["U"]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)

    outer = torch.tensor(np.random.default_rng(0).standard_normal(got.shape))
    mine, other = (torch.autograd.grad((x * outer).sum(), list(theta.values())) for x in (got, expected))
    for key, a, b in zip(theta, mine, other, strict=True):
        assert b.abs().max() > 1e-6, key
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
