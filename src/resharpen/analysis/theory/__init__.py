"""The theory of Set Complement under constant attention, made checkable."""

from resharpen.analysis.theory.checks import Check, check_all
from resharpen.analysis.theory.examples import hard_coded_model, hard_coded_weights, simplex_weights
from resharpen.analysis.theory.merging import merged_pairs
from resharpen.analysis.theory.normal_form import NormalForm, fit_normal_form
from resharpen.analysis.theory.precision import enumerated_precision, model_precision, worst_gap, worst_spread
from resharpen.analysis.theory.resharpening import plain_gap, resharpened_gap

__all__ = [
    "Check",
    "NormalForm",
    "check_all",
    "enumerated_precision",
    "fit_normal_form",
    "hard_coded_model",
    "hard_coded_weights",
    "merged_pairs",
    "model_precision",
    "plain_gap",
    "resharpened_gap",
    "simplex_weights",
    "worst_gap",
    "worst_spread",
]
