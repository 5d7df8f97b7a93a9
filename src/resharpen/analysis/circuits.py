"""Circuits of trained minimal transformers: decomposition of the logits, for many models at once, in float64.

A minimal transformer has no positions, so a prefix is a state (last token t, set S), and

    logits = r_B E'[t] diag(g_final) U  +  r_D sum_{i in S} a(t, i) N_in(E'[i]) W_V W_O diag(g_out) diag(g_final) U
           = r_B B[t]                   +  r_D sum_{i in S} a(t, i) D[i]

E' is the embedding after its norm, if it has one; a gain that the placement lacks is left out; g_final is the gain of
the norm that follows the residual sum, `residual` or `unembedding_in` (the product, if both are there). r_B and r_D
are the data-dependent scales of the norms after attention: 1 without such norms. The theory (`analysis/theory`) is
about (B, D) with constant attention a = 1/s.

Shapes: M models, V tokens, D width, P states of one length, S lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, softmax

from resharpen.analysis.theory.examples import plain_gap, resharpened_gap
from resharpen.analysis.theory.normal_form import fit_normal_form, merged_pairs, state_gaps
from resharpen.lazy import Tensor
from resharpen.metrics import total_variation
from resharpen.models import Minimal
from resharpen.parts import Parts
from resharpen.parts.norms.rms import rms
from resharpen.parts.placement import SITES
from resharpen.tasks import SetComplement, ValidationSet
from resharpen.tasks.set_complement import ENUMERATED_UP_TO

Array = NDArray[np.float64]
Table = dict[str, NDArray]
Weights = Mapping[str, NDArray]

IN_FORM = 0.1
"""A model is in normal form if the relative residual of the fit is below this."""
MODELS_AT_ONCE = 16
"""Models per batch: few enough that the activations of one length stay in cache."""
SAMPLED_SEQUENCES = 256
"""Number of states if they are sampled, not enumerated: means are accurate to a few percent, in seconds."""


@dataclass(frozen=True, eq=False)
class Circuit:
    """Models, and the tables that depend on one token or a pair of tokens, not on the prefix."""

    theta: Mapping[str, Tensor]
    """Weights in float64, with a model axis."""
    parts: Parts
    hyper: Mapping[str, Array]
    """Hyperparameters by name, [M] each."""
    x_MxVxD: Array
    """The residual stream before attention, E'."""
    y_MxVxD: Array
    """Values after the output projection: N_in(E') W_V W_O."""
    attention_MxVxV: Array
    """Attention logits Q K^T / sqrt(d_k): the row is the last token, the column the token attended to."""

    def gain(self, site: str) -> Array | float:
        return self.theta[f"g_{site}"].numpy()[:, None, :] if getattr(self.parts.placement, site) else 1.0

    def matrices(self) -> tuple[Array, Array]:
        """(B, D), each [M, V, V]; the scales of the norms after attention are left out."""
        U_MxDxV, final = self.theta["U"].numpy(), self.gain("residual") * self.gain("unembedding_in")
        return (self.x_MxVxD * final) @ U_MxDxV, (self.y_MxVxD * self.gain("block_out") * final) @ U_MxDxV

    def shares(self) -> Array:
        """The rows of attention over all v tokens, each summing to 1, [M, V, V]."""
        return softmax(self.attention_MxVxV, axis=-1)


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass over P states of equal length."""

    attention_MxPxV: Array
    """Attention weights; zero on absent tokens."""
    before_MxPxD: Array
    """Attention output, after W_O."""
    after_MxPxD: Array
    """The same after the block-out norm; unchanged if there is none."""
    read_MxPxD: Array
    """The same as input of the unembedding, after all later norms."""
    scale_B_MxP: Array
    scale_D_MxP: Array
    logits_MxPxV: Array


def is_inspectable(parts: Parts) -> bool:
    """Whether B and D describe such models: RMSNorms, and attention to a set whose output only passes W_O."""
    plain = not (parts.attention.reads_order or parts.attention.output or parts.placement.heads_out)
    return parts.norm is rms and parts.positions.on == "nothing" and plain


def circuit(weights: Weights, parts: Parts, hyper: Mapping[str, NDArray]) -> Circuit:
    """The per-token tables of minimal transformers; weights and hyperparameters have a model axis."""
    import torch

    assert is_inspectable(parts)
    theta = {name: torch.tensor(w, dtype=torch.float64) for name, w in weights.items()}
    hyper = {name: x.astype(np.float64) for name, x in hyper.items()}
    v = theta["E"].shape[1]
    _, record = _forward(theta, parts, hyper, np.arange(v), np.ones((v, v), bool))
    x = record["embedding_out"][1] if "embedding_out" in record else theta["E"]
    h = record["block_in"][1] if "block_in" in record else x
    y = h @ theta["W_V"] @ theta["W_O"]
    return Circuit(theta, parts, hyper, x.numpy(), y.numpy(), record["logits"][:, :, 0, 0].numpy())


def _forward(
    theta: Mapping[str, Tensor], parts: Parts, hyper: Mapping[str, Array], last_P: NDArray, present_PxV: NDArray
) -> tuple[Tensor, dict[str, Any]]:
    """The model's logits at states, and the recorded activations."""
    import torch

    _, v, d = theta["E"].shape
    model = Minimal(v, d, theta["W_Q"].shape[-1], theta["W_V"].shape[-1])
    record: dict[str, Any] = {}
    with torch.no_grad():
        states = torch.from_numpy(last_P), torch.from_numpy(present_PxV)
        numbers = {name: torch.from_numpy(x) for name, x in hyper.items()}
        return model.logits_of_sets(theta, *states, parts, numbers, record), record


def trace(circuit: Circuit, last_P: NDArray[np.int64], present_PxV: NDArray[np.bool_]) -> Trace:
    """Forward pass over states given as last token and set."""
    logits, record = _forward(circuit.theta, circuit.parts, circuit.hyper, last_P, present_PxV)
    before = record["update"].numpy()
    epsilon = circuit.hyper["rms_epsilon"][:, None, None]
    after, read = before, before
    scale_B, scale_D = np.ones((2, *before.shape[:2], 1))
    for site in SITES[SITES.index("block_out") :]:  # the norms that attention's output goes through
        if site in record:
            scale = ((record[site][0].numpy() ** 2).mean(-1, keepdims=True) + epsilon) ** -0.5  # as RMSNorm scales
            read, scale_D = read * scale * circuit.gain(site), scale_D * scale
            if site == "block_out":
                after = record[site][1].numpy()
            else:
                scale_B = scale_B * scale
    a_MxPxV = record["weights"][:, :, 0, 0].numpy()
    return Trace(a_MxPxV, before, after, read, scale_B[..., 0], scale_D[..., 0], logits.numpy())


def circuit_table(weights: Weights, parts: Parts, hyper: Mapping[str, NDArray], task: SetComplement) -> Table:
    """All circuit measurements, as arrays with the model axis first; not finite where the weights are not.

        B, D                     the matrices above                                                         [M, V, V]
        attention_logits, A      the table a'/sqrt(d_k) and its exponential                                 [M, V, V]
        A_normalized             its rows over all v tokens, each summing to 1                              [M, V, V]
        attention_distance       mean over rows of the TVD between A_normalized and 1/v; 0 is constant      [M]
        delta, eps               the fitted normal form                                                     [M, V]
        residual, in_form        its relative Frobenius residual, and whether that is below 0.1             [M]
        gauged_residual          the residual relative to the part of (B, D) that affects the output        [M]
        merged                   number of pairs of tokens that attention does not distinguish              [M]
        scaled_residual          the residual of (scale_B B, scale_D D), the scales averaged over lengths   [M]
        entropy                  of the attention weights, in nats; log s if constant                       [M, S]
        amplitude_before, _after root mean square over coordinates of the attention output, around its norm [M, S]
        amplitude_read           the same at the input of the unembedding, after all later norms            [M, S]
        scale_B, scale_D         the data-dependent scales                                                  [M, S]
        gap_mean, gap_min        over the states of a length                                                [M, S]
        gap_bound                2C/s, C the smallest gap at lengths 1 and 2; NaN unless C > 0              [M, S]
        gap_plain                kappa v / ((v-1) s): dispersion, with the scale fixed at that of length 1  [M, S]
        gap_resharpened          kappa v / sqrt(s (v-s)): the closed form                                   [M, S]
        tvd                      mean over the states of a length                                           [M, S]
        lengths, states          1 .. v-1, and the number of states visited                                 [S]

    The scaled residual weighs B and D as the logits do: if a norm follows W_O, B can have an arbitrary form without any
    effect on the output, because D is scaled up.

    Both kappas are computed from the weights, not fitted to the gaps: they make the closed form equal to mean(delta)
    times scale_D at length 1. All states are used if the task enumerates them (v <= 9), else part of its report set.
    """
    states = task.validation(seed=0, use="report")
    if task.v > ENUMERATED_UP_TO:
        states = ValidationSet(states.inputs_NxL[:SAMPLED_SEQUENCES], states.scored_NxL[:SAMPLED_SEQUENCES])
    lengths, counts = np.unique(states.length_P, return_counts=True)
    pieces = []
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a diverged model is NaN, its neighbors not
        for m in range(0, len(weights["E"]), MODELS_AT_ONCE):
            some, numbers = (
                {name: x[m : m + MODELS_AT_ONCE] for name, x in arrays.items()} for arrays in (weights, hyper)
            )
            models = circuit(some, parts, numbers)
            table = _static_part(models) | _by_length(models, task, states)
            pieces.append(table | _theory_part(table, task.v, lengths))
    table = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return table | {"lengths": lengths, "states": counts}


def _static_part(circuit: Circuit) -> Table:
    B, D = circuit.matrices()
    form = fit_normal_form(B, D)
    rows = circuit.shares()
    return {
        "B": B,
        "D": D,
        "attention_logits": circuit.attention_MxVxV,
        "A": np.exp(circuit.attention_MxVxV),
        "A_normalized": rows,
        "attention_distance": total_variation(rows, np.full_like(rows, 1 / rows.shape[-1])).mean(-1),
        "delta": form.delta,
        "eps": form.eps,
        "residual": form.residual,
        "gauged_residual": form.gauged_residual,
        "in_form": form.residual < IN_FORM,  # NaN compares as false: a diverged model is not in form
        "merged": merged_pairs(D),
    }


def _by_length(circuit: Circuit, task: SetComplement, validation: ValidationSet) -> Table:
    """Means (for gap_min the minimum) over the states of each length, [M, S]."""
    p_star_PxV = task.p_star(validation.inputs_NxL)[validation.scored_NxL]
    last_P = validation.inputs_NxL[validation.scored_NxL]
    columns = []
    for length in np.unique(validation.length_P):
        here = validation.length_P == length
        at = trace(circuit, last_P[here], p_star_PxV[here] == 0)
        gap_MxP = state_gaps(at.logits_MxPxV, p_star_PxV[here] == 0)
        per_state = {
            "entropy": entr(at.attention_MxPxV).sum(-1),
            "amplitude_before": _rms(at.before_MxPxD),
            "amplitude_after": _rms(at.after_MxPxD),
            "amplitude_read": _rms(at.read_MxPxD),
            "scale_B": at.scale_B_MxP,
            "scale_D": at.scale_D_MxP,
            "gap_mean": gap_MxP,
            "tvd": total_variation(softmax(at.logits_MxPxV, axis=-1), p_star_PxV[here]),
        }
        columns.append({name: x.mean(-1) for name, x in per_state.items()} | {"gap_min": gap_MxP.min(-1)})
    return {name: np.stack([column[name] for column in columns], axis=1) for name in columns[0]}


def _rms(x: Array) -> Array:
    return np.sqrt((x**2).mean(-1))


def _theory_part(table: Table, v: int, lengths: NDArray[np.int64]) -> Table:
    C_M = table["gap_min"][:, :2].min(-1)
    r_B, r_D = (table[key].mean(-1)[:, None, None] for key in ("scale_B", "scale_D"))
    first_M = (table["delta"].mean(-1) * table["scale_D"][:, 0])[:, None]
    return {
        "scaled_residual": fit_normal_form(r_B * table["B"], r_D * table["D"]).residual,
        "gap_bound": 2 * np.where(C_M > 0, C_M, np.nan)[:, None] / lengths,
        "gap_plain": plain_gap(v, lengths, first_M * (v - 1) / v),
        "gap_resharpened": resharpened_gap(v, lengths, first_M * np.sqrt(v - 1) / v),
    }
