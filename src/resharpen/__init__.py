"""Ensembles of tiny attention models that show what carries over to longer inputs.

import resharpen as rs

spec = rs.figure("fig1", scale="smoke").with_changes(variants=["pre", "peri+log-n"])
run = rs.run(spec, "runs/mine")
run.table("lengths")                                  # a polars DataFrame
rs.load_model(run, "sct-v9-s3/peri/0")([[2, 0, 5]])   # probabilities of the next token
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resharpen.analysis.claims import claims as claims
    from resharpen.analysis.compare import Comparison as Comparison
    from resharpen.analysis.compare import compare as compare
    from resharpen.analysis.inspection import inspect as inspect
    from resharpen.analysis.scores import scores as scores
    from resharpen.analysis.scores import tidy_results as tidy_results
    from resharpen.analysis.theory import hard_coded_model as hard_coded_model
    from resharpen.errors import UserError as UserError
    from resharpen.experiments.keeping.reference import find_reference as reference  # noqa: F401
    from resharpen.experiments.keeping.store import Run as Run
    from resharpen.experiments.keeping.stored import StoredModel as StoredModel
    from resharpen.experiments.keeping.stored import load_model as load_model
    from resharpen.experiments.running.rescoring import rescore as rescore
    from resharpen.experiments.running.runner import load as load
    from resharpen.experiments.specs.shelf import take as figure  # noqa: F401
    from resharpen.experiments.specs.spec import Experiment as Experiment
    from resharpen.experiments.specs.spec import Setting as Setting
    from resharpen.experiments.specs.toml import read_toml as read_toml
    from resharpen.experiments.specs.variant import ModelChange as ModelChange
    from resharpen.experiments.specs.variant import Variant as Variant
    from resharpen.models import Minimal as Minimal
    from resharpen.models import Model as Model
    from resharpen.models import Retriever as Retriever
    from resharpen.models import Transformer as Transformer
    from resharpen.models.layers import Bound as Bound
    from resharpen.models.layers import embedding as embedding
    from resharpen.models.layers import linear as linear
    from resharpen.notebook import run as run
    from resharpen.optim.hyperparameters import Row as Row
    from resharpen.optim.optimizer import optimizer as optimizer
    from resharpen.parts import PLACEMENTS as PLACEMENTS
    from resharpen.parts import Placement as Placement
    from resharpen.parts.parameter import learned as learned
    from resharpen.parts.part import attention as attention
    from resharpen.parts.part import masked_softmax as masked_softmax
    from resharpen.parts.part import norm as norm
    from resharpen.parts.part import positions as positions
    from resharpen.streams import below as below
    from resharpen.tasks import Batch as Batch
    from resharpen.tasks import Dyck as Dyck
    from resharpen.tasks import MaxRetrieval as MaxRetrieval
    from resharpen.tasks import Metric as Metric
    from resharpen.tasks import SetComplement as SetComplement
    from resharpen.tasks import Task as Task
    from resharpen.tasks import TokenTask as TokenTask
    from resharpen.tasks import Tomita as Tomita
    from resharpen.views.figures import draw as draw

# Loaded when asked for, so that `resharpen --help` need not wait for torch, polars and matplotlib.
_WHERE = {
    "claims": "analysis.claims",
    "Comparison": "analysis.compare",
    "compare": "analysis.compare",
    "inspect": "analysis.inspection",
    "scores": "analysis.scores",
    "tidy_results": "analysis.scores",
    "hard_coded_model": "analysis.theory",
    "UserError": "errors",
    "load": "experiments.running.runner",
    "run": "notebook",
    "rescore": "experiments.running.rescoring",
    "figure": "experiments.specs.shelf:take",
    "Experiment": "experiments.specs.spec",
    "Setting": "experiments.specs.spec",
    "Variant": "experiments.specs.variant",
    "ModelChange": "experiments.specs.variant",
    "read_toml": "experiments.specs.toml",
    "reference": "experiments.keeping.reference:find_reference",
    "Run": "experiments.keeping.store",
    "StoredModel": "experiments.keeping.stored",
    "load_model": "experiments.keeping.stored",
    "Minimal": "models",
    "Model": "models",
    "Retriever": "models",
    "Transformer": "models",
    "Bound": "models.layers",
    "embedding": "models.layers",
    "linear": "models.layers",
    "Row": "optim.hyperparameters",
    "optimizer": "optim.optimizer",
    "PLACEMENTS": "parts",
    "Placement": "parts",
    "attention": "parts.part",
    "norm": "parts.part",
    "positions": "parts.part",
    "masked_softmax": "parts.part",
    "learned": "parts.parameter",
    "below": "streams",
    "Dyck": "tasks",
    "MaxRetrieval": "tasks",
    "SetComplement": "tasks",
    "Task": "tasks",
    "TokenTask": "tasks",
    "Tomita": "tasks",
    "Batch": "tasks",
    "Metric": "tasks",
    "draw": "views.figures",
}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'resharpen' has no attribute '{name}'")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(importlib.import_module(f"resharpen.{module}"), attribute or name)


def __dir__() -> list[str]:
    return __all__
