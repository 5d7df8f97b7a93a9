"""Ensembles of tiny attention models that show what carries over to longer inputs.

import resharpen as rs

spec = rs.figure("fig1", scale="smoke").with_changes(norms=["pre", "peri"])
run = rs.run(spec, "runs/mine")
run.table("lengths")                                  # a polars DataFrame
rs.load_model(run, "sct-v9-s3/peri/0")([[2, 0, 5]])   # probabilities of the next token
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resharpen.analysis.claims import claims as claims
    from resharpen.analysis.inspection import inspect as inspect
    from resharpen.analysis.scores import scores as scores
    from resharpen.analysis.scores import tidy_results as tidy_results
    from resharpen.analysis.theory import hard_coded_model as hard_coded_model
    from resharpen.errors import UserError as UserError
    from resharpen.experiments.runner import load as load
    from resharpen.experiments.runner import run as run
    from resharpen.experiments.shelf import take as figure  # noqa: F401
    from resharpen.experiments.spec import Experiment as Experiment
    from resharpen.experiments.spec import Setting as Setting
    from resharpen.experiments.store import Run as Run
    from resharpen.experiments.stored import StoredModel as StoredModel
    from resharpen.experiments.stored import load_model as load_model
    from resharpen.experiments.toml import read_toml as read_toml
    from resharpen.models import PLACEMENTS as PLACEMENTS
    from resharpen.models import Minimal as Minimal
    from resharpen.models import Placement as Placement
    from resharpen.models import Retriever as Retriever
    from resharpen.models import Transformer as Transformer
    from resharpen.tasks import Dyck as Dyck
    from resharpen.tasks import MaxRetrieval as MaxRetrieval
    from resharpen.tasks import SetComplement as SetComplement
    from resharpen.tasks import Tomita as Tomita
    from resharpen.views.figures import draw as draw

# Loaded when asked for, so that `resharpen --help` need not wait for torch, polars and matplotlib.
_WHERE = {
    "claims": "analysis.claims",
    "inspect": "analysis.inspection",
    "hard_coded_model": "analysis.theory",
    "scores": "analysis.scores",
    "tidy_results": "analysis.scores",
    "UserError": "errors",
    "load": "experiments.runner",
    "run": "experiments.runner",
    "figure": "experiments.shelf:take",
    "Experiment": "experiments.spec",
    "Setting": "experiments.spec",
    "Run": "experiments.store",
    "StoredModel": "experiments.stored",
    "load_model": "experiments.stored",
    "read_toml": "experiments.toml",
    "PLACEMENTS": "models",
    "Minimal": "models",
    "Placement": "models",
    "SetComplement": "tasks",
    "draw": "views.figures",
    "MaxRetrieval": "tasks",
    "Dyck": "tasks",
    "Tomita": "tasks",
    "Transformer": "models",
    "Retriever": "models",
}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'resharpen' has no attribute '{name}'")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(importlib.import_module(f"resharpen.{module}"), attribute or name)


def __dir__() -> list[str]:
    return __all__
