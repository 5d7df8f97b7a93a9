"""Circuits of minimal transformers against the package's own forward pass and against models known in closed form."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from resharpen.analysis import circuits
from resharpen.analysis.theory.examples import (
    hard_coded_tvd,
    hard_coded_weights,
    plain_gap,
    resharpened_gap,
    simplex_weights,
    with_gains,
)
from resharpen.analysis.theory.normal_form import exchange_gaps, fit_normal_form, least_merged_tvd, merged_pairs
from resharpen.models import Minimal
from resharpen.parts import ATTENTIONS, PLACEMENTS, POSITIONS, STUDIED_PLACEMENTS, Parts, Placement
from resharpen.parts.part import Norm
from resharpen.tasks import SetComplement
from resharpen.views.circuits import draw_dispersion, draw_model, draw_run

ALL = {name: Parts(PLACEMENTS[name]) for name in STUDIED_PLACEMENTS}
ALL |= {"everything": Parts(Placement(True, True, True, True, True))}
LOG_N = {f"{name}+log-n": Parts(PLACEMENTS[name], attention=ATTENTIONS["log-n"]) for name in ("none", "peri")}


def random_weights(parts: Parts, v: int = 5, models: int = 3, seed: int = 0) -> dict:
    model, rng = Minimal(v, d=4, d_k=2, d_v=3), np.random.default_rng(seed)
    drawn = {
        name: rng.normal(size=(models, *p.shape)) if p.start is None else rng.uniform(0.5, 2, (models, *p.shape))
        for name, p in model.parameters(parts).items()
    }
    assert sum(name.startswith("g_") for name in drawn) == sum(vars(parts.placement).values())
    return drawn


def reference_logits(weights: dict, parts: Parts, epsilon_M: np.ndarray, task: SetComplement) -> np.ndarray:
    validation = task.validation(0, "report")
    theta = {name: torch.tensor(array) for name, array in weights.items()}
    model = Minimal(task.v, d=4, d_k=2, d_v=3)
    hyper = {"rms_epsilon": torch.tensor(epsilon_M)}
    logits = model.logits(theta, torch.as_tensor(validation.inputs_NxL), parts, hyper)
    return logits.numpy()[:, validation.scored_NxL]


def every_state(task: SetComplement) -> tuple:
    validation = task.validation(0, "report")
    present = task.p_star(validation.inputs_NxL)[validation.scored_NxL] == 0
    return validation.inputs_NxL[validation.scored_NxL], present, validation.length_P


@pytest.mark.parametrize("name", ALL | LOG_N)
def test_trace_is_the_forward_pass_of_the_package(name: str) -> None:
    task, epsilon_M = SetComplement(5), np.array([0.0, 1e-3, 0.5])
    parts = (ALL | LOG_N)[name]
    weights = random_weights(parts)
    last, present, _ = every_state(task)
    found = circuits.trace(circuits.circuit(weights, parts, {"rms_epsilon": epsilon_M}), last, present)
    np.testing.assert_allclose(found.logits_MxPxV, reference_logits(weights, parts, epsilon_M, task), atol=1e-11)


@pytest.mark.parametrize("name", ALL | LOG_N)
def test_logits_are_made_of_B_and_D(name: str) -> None:
    """logits = r_B B[t] + r_D sum_i a_i D[i], for every placement."""
    task = SetComplement(5)
    parts = (ALL | LOG_N)[name]
    circuit = circuits.circuit(random_weights(parts), parts, {"rms_epsilon": np.full(3, 0.01)})
    last, present, _ = every_state(task)
    found = circuits.trace(circuit, last, present)
    B, D = circuit.matrices()
    rebuilt = found.scale_B_MxP[..., None] * B[:, last] + found.scale_D_MxP[..., None] * (found.attention_MxPxV @ D)
    np.testing.assert_allclose(found.logits_MxPxV, rebuilt, atol=1e-11)
    attended = found.scale_D_MxP[..., None] * (found.attention_MxPxV @ D)
    np.testing.assert_allclose(found.read_MxPxD @ circuit.theta["U"].numpy(), attended, atol=1e-11)


@pytest.mark.parametrize("name", ["pre", "peri", "post"])
def test_table_agrees_with_precision_of_the_model(name: str) -> None:
    task, weights = SetComplement(5), random_weights(ALL[name])
    table = circuits.circuit_table(weights, ALL[name], {"rms_epsilon": np.full(3, 0.01)}, task)
    logits, (_, present, length) = reference_logits(weights, ALL[name], np.full(3, 0.01), task), every_state(task)
    states = list(zip(present, length, strict=True))
    gap = [[f[~here].min() - f[here].max() for f, (here, _) in zip(of, states, strict=True)] for of in logits]
    least = [[min(g for g, (_, s) in zip(of, states, strict=True) if s == at) for at in range(1, 5)] for of in gap]
    np.testing.assert_allclose(table["gap_min"], least, atol=1e-11)
    assert (table["gap_mean"] >= table["gap_min"]).all()
    assert table["lengths"].tolist() == [1, 2, 3, 4]
    assert table["states"].tolist() == [5 * math.comb(4, s - 1) for s in range(1, 5)]


def test_the_hard_coded_model_is_in_form_with_constant_attention() -> None:
    v, s = 6, np.arange(1, 6)
    table = circuits.circuit_table(hard_coded_weights(v), ALL["none"], {"rms_epsilon": np.zeros(1)}, SetComplement(v))
    np.testing.assert_allclose(table["delta"], v)
    np.testing.assert_allclose(table["eps"], 1)
    assert table["residual"][0] < 1e-12
    assert table["in_form"].tolist() == [True]
    assert table["attention_distance"][0] < 1e-15
    np.testing.assert_array_equal(table["A"], 1)
    np.testing.assert_allclose(table["A_normalized"], 1 / v)
    np.testing.assert_allclose(table["entropy"][0], np.log(s), atol=1e-15)
    np.testing.assert_allclose(table["gap_mean"][0], np.where(s == 1, 1 + v, v / s))
    np.testing.assert_allclose(table["gap_min"][0], table["gap_mean"][0])
    np.testing.assert_allclose(table["gap_plain"][0], v / s)
    np.testing.assert_allclose(table["gap_bound"][0], v / s)  # C = v/2, the gap at length 2
    np.testing.assert_allclose(table["tvd"][0], [hard_coded_tvd(v, i) for i in s])


@pytest.mark.parametrize("kappa", [1.0, 4.0])
def test_the_simplex_model_shows_dispersion_and_what_a_norm_restores(kappa: float) -> None:
    v, s, model = 7, np.arange(1, 7), Minimal.usual(7)
    weights = simplex_weights(v, kappa, residual=0.5)
    none = circuits.circuit_table(weights, ALL["none"], {"rms_epsilon": np.zeros(1)}, SetComplement(v))
    out = circuits.circuit_table(
        with_gains(weights, model, ALL["out"]), ALL["out"], {"rms_epsilon": np.zeros(1)}, SetComplement(v)
    )
    amplitude = np.sqrt((v - s) / (s * (v - 1))) / np.sqrt(v - 1)
    np.testing.assert_allclose(none["amplitude_before"][0], amplitude)
    np.testing.assert_allclose(none["amplitude_read"][0], amplitude)
    np.testing.assert_allclose(out["amplitude_before"][0], amplitude)
    np.testing.assert_allclose(out["amplitude_after"][0], 1)
    np.testing.assert_allclose(out["scale_D"][0], 1 / amplitude)
    np.testing.assert_allclose(none["gap_plain"][0], plain_gap(v, s, kappa))
    np.testing.assert_allclose(out["gap_resharpened"][0], resharpened_gap(v, s, kappa))
    np.testing.assert_allclose(out["gap_mean"][0, 1:], out["gap_resharpened"][0, 1:])


def test_scaled_residual_weighs_the_matrices_as_the_logits_do() -> None:
    """Behind a norm, tiny values give a tiny D: what B is then decides the plain residual, not what the model does."""
    v, rng = 5, np.random.default_rng(0)
    weights = with_gains(simplex_weights(v), Minimal.usual(v), ALL["out"])
    weights["W_V"] = 1e-4 * weights["W_V"]
    weights["E"] = weights["E"] + 1e-2 * rng.normal(size=weights["E"].shape)
    table = circuits.circuit_table(weights, ALL["out"], {"rms_epsilon": np.zeros(1)}, SetComplement(v))
    r_B, r_D = 1, table["scale_D"].mean()
    expected = fit_normal_form(r_B * table["B"], r_D * table["D"]).residual
    np.testing.assert_allclose(table["scaled_residual"], expected)
    weights["U"] = weights["U"] + 0.5 * rng.normal(size=weights["U"].shape)
    wrong = circuits.circuit_table(weights, ALL["out"], {"rms_epsilon": np.zeros(1)}, SetComplement(v))
    assert wrong["scaled_residual"][0] > 0.1 > table["scaled_residual"][0]


def test_merged_tokens_are_counted() -> None:
    """Tokens with one embedding and one unembedding, and nothing else, whatever the norms and the gauge."""
    v, parts = 7, ALL["peri"]
    model = Minimal.usual(v)
    plain = with_gains(simplex_weights(v, 3.0), model, parts)
    each = []
    for alike in ((), (0, 1), (0, 1, 2), (0, 1, 2, 3), range(v)):
        weights = {name: w.copy() for name, w in plain.items()}
        for token in alike:
            weights["E"][:, token], weights["U"][..., token] = plain["E"][:, 0], plain["U"][..., 0]
        each.append(weights)
    weights = {name: np.concatenate([w[name] for w in each]) for name in plain}
    table = circuits.circuit_table(weights, parts, {"rms_epsilon": np.full(5, 1e-9)}, SetComplement(v))
    assert table["merged"].tolist() == [0, 1, 3, 6, 21]
    gauge = np.random.default_rng(0).normal(size=(5, v, 1))
    np.testing.assert_array_equal(merged_pairs(table["D"] + gauge), table["merged"])
    assert merged_pairs(np.full((1, v, v), np.nan)) == 0
    least = np.array([float(least_merged_tvd(v, s)) for s in range(1, v)])
    assert (table["tvd"][1] >= least).all()


def test_the_exchange_gap_is_what_a_state_shows() -> None:
    """s times logit j less logit i with i in place of j, and the other way round; no norms, B = 0."""
    rng, v = np.random.default_rng(1), 5
    D = rng.normal(size=(v, v))
    for at, (i, j) in enumerate(combinations(range(v), 2)):
        context = [k for k in range(v) if k not in (i, j)][:2]
        with_i, with_j = (D[[*context, token]].sum(0) for token in (i, j))
        assert exchange_gaps(D)[at] == pytest.approx(with_i[j] - with_i[i] + with_j[i] - with_j[j])


def test_attention_that_is_not_constant() -> None:
    v, rng = 5, np.random.default_rng(0)
    weights = hard_coded_weights(v)
    weights["W_Q"], weights["W_K"] = 2 * rng.normal(size=(2, 1, v - 1, 1))
    e = (weights["E"] @ weights["W_Q"] @ (weights["E"] @ weights["W_K"]).swapaxes(1, 2))[0]
    table = circuits.circuit_table(weights, ALL["none"], {"rms_epsilon": np.zeros(1)}, SetComplement(v))
    rows = np.exp(e) / np.exp(e).sum(1, keepdims=True)
    np.testing.assert_allclose(table["A"][0], np.exp(e))
    np.testing.assert_allclose(table["A_normalized"][0], rows)
    np.testing.assert_allclose(table["attention_distance"], (np.abs(rows - 1 / v).sum(1) / 2).mean())
    pairs = [np.exp(e[t, [t, u]]) / np.exp(e[t, [t, u]]).sum() for t in range(v) for u in range(v) if u != t]
    np.testing.assert_allclose(table["entropy"][0, 1], np.mean([-(p * np.log(p)).sum() for p in pairs]))


def test_models_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = random_weights(ALL["peri"])
    whole = circuits.circuit_table(weights, ALL["peri"], {"rms_epsilon": np.full(3, 1e-3)}, SetComplement(5))
    monkeypatch.setattr(circuits, "MODELS_AT_ONCE", 2)
    pieces = circuits.circuit_table(weights, ALL["peri"], {"rms_epsilon": np.full(3, 1e-3)}, SetComplement(5))
    for name, array in whole.items():
        np.testing.assert_allclose(pieces[name], array, rtol=1e-12)


def test_a_diverged_model_leaves_its_neighbors_alone() -> None:
    weights = random_weights(ALL["pre"])
    sound = circuits.circuit_table(weights, ALL["pre"], {"rms_epsilon": np.full(3, 1e-3)}, SetComplement(5))
    weights["W_V"][1] = np.inf
    table = circuits.circuit_table(weights, ALL["pre"], {"rms_epsilon": np.full(3, 1e-3)}, SetComplement(5))
    assert np.isnan(table["residual"][1])
    assert not table["in_form"][1]
    for name in ("gap_mean", "tvd", "entropy", "residual"):
        np.testing.assert_array_equal(table[name][[0, 2]], sound[name][[0, 2]])


def test_circuits_are_those_of_rms_norm_without_positions() -> None:
    assert circuits.is_inspectable(LOG_N["peri+log-n"])
    for name in ("other", "rms"):  # a part is itself, whatever it is called
        assert not circuits.is_inspectable(Parts(PLACEMENTS["peri"], norm=Norm(name, lambda x, p: x)))
    assert not circuits.is_inspectable(Parts(PLACEMENTS["peri"], positions=POSITIONS["rope"]))
    for part in ("gated", "stick-breaking"):
        assert not circuits.is_inspectable(Parts(PLACEMENTS["peri"], attention=ATTENTIONS[part]))
    assert not circuits.is_inspectable(Parts(PLACEMENTS["heads-out"]))


def test_large_v_is_sampled() -> None:
    v = 12
    table = circuits.circuit_table(hard_coded_weights(v), ALL["none"], {"rms_epsilon": np.zeros(1)}, SetComplement(v))
    assert table["states"].tolist() == [circuits.SAMPLED_SEQUENCES] * (v - 1)
    np.testing.assert_allclose(table["gap_min"][0, 1:], v / np.arange(2, v))


@pytest.fixture(scope="module")
def tables() -> dict[str, circuits.Table]:
    task = SetComplement(5)
    names = ("pre", "peri", "out")
    found = {}
    for seed, name in enumerate(names):
        weights = random_weights(ALL[name], models=6, seed=seed)
        weights["E"][2] = np.nan
        found[name] = circuits.circuit_table(weights, ALL[name], {"rms_epsilon": np.full(6, 1e-6)}, task)
    return found


def labels(figure: Figure) -> list[str]:
    return [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())]


def test_picture_of_a_model(tables: dict[str, circuits.Table]) -> None:
    figure = draw_model(tables["peri"], 0, "peri/0")
    assert "peri/0" in figure.get_suptitle()
    assert {"length s (tokens)", "gap (logits)"} <= set(labels(figure))
    heat = next(axes for axes in figure.axes if axes.get_title().startswith("D"))
    np.testing.assert_array_equal(heat.get_images()[0].get_array(), tables["peri"]["D"][0])


def test_picture_of_a_run_counts_the_diverged(tables: dict[str, circuits.Table]) -> None:
    decay = {name: np.logspace(-6, 0, 6) for name in tables}
    figure = draw_run(tables, decay)
    caption = "\n".join(text.get_text() for text in figure.texts)
    assert "15 models" in caption
    assert "3 diverged" in caption
    assert {"weight decay", "share of models"} <= set(labels(figure))
    assert "pairs of tokens that attention does not distinguish" in labels(figure)
    shares = [bar.get_height() for bar in figure.axes[1].patches]
    keys = ("residual", "scaled_residual")
    assert shares == [float((tables[name][key] < 0.1).sum() / 5) for name in tables for key in keys]


def test_picture_of_a_run_tells_variants_apart(tables: dict[str, circuits.Table]) -> None:
    """Also those that are no placements, and where models merge tokens they are drawn at their number of pairs."""
    merging = {key: np.full(6, 9) if key == "merged" else x for key, x in tables["pre"].items()}
    named = {"pre": tables["pre"], "mine": merging, "yours": tables["pre"]}
    axes = draw_run(named, {name: np.logspace(-6, 0, 6) for name in named}).axes[3]
    assert len({tuple(dots.get_facecolor()[0]) for dots in axes.collections}) == 3
    at = [np.asarray(dots.get_offsets())[:, 0].round() for dots in axes.collections]
    np.testing.assert_array_equal(at[0], np.minimum(tables["pre"]["merged"][np.isfinite(tables["pre"]["residual"])], 4))
    np.testing.assert_array_equal(at[1], 4)


def solving_table(kappa: float, placement: str, models: int = 4) -> circuits.Table:
    """Simplex models of growing kappa that solve short lengths, a random one that does not, and a diverged one."""
    v, parts = 5, ALL[placement]
    each = [with_gains(simplex_weights(v, kappa * (1 + m)), Minimal.usual(v), parts) for m in range(models)]
    each += [{name: scale * w for name, w in each[0].items()} for scale in (0.1, np.nan)]
    weights = {name: np.concatenate([w[name] for w in each]) for name in each[0]}
    return circuits.circuit_table(weights, parts, {"rms_epsilon": np.full(models + 2, 1e-12)}, SetComplement(v))


def test_picture_of_dispersion_shows_models_that_solved_their_task() -> None:
    tables = {"none": solving_table(20, "none"), "out": solving_table(10, "out")}
    figure = draw_dispersion(tables, train_length=2)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["none: 4 of 6 models", "out: 4 of 6 models", "", ""]
    assert "2 diverged" in "\n".join(text.get_text() for text in figure.texts)
    for axes, table in zip(figure.axes[2:], tables.values(), strict=True):
        drawn = np.asarray(axes.get_lines()[0].get_ydata(), dtype=float)
        np.testing.assert_allclose(drawn, np.median(table["gap_mean"][:4], axis=0))


def test_picture_of_dispersion_without_any_solved_model(tables: dict[str, circuits.Table]) -> None:
    figure = draw_dispersion(tables, train_length=3)
    assert figure.axes[0].get_title() == "pre: 0 of 6 models"


def test_a_picture_needs_a_sound_model(tables: dict[str, circuits.Table]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        draw_model(tables["peri"], 2, "peri/2")
