"""Train ensembles of tiny attention models and measure how they generalize to longer inputs.

import resharpen as rs

spec = rs.figure("fig1", scale="smoke").with_changes(variants=["pre", "peri+log-n"])
run = rs.run(spec, "runs/mine")
run.table("lengths")                                  # a polars DataFrame
rs.load_model(run, "sct-v9-s3/peri/0")([[2, 0, 5]])   # probabilities of the next token
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resharpen.analysis.claims import claims as claims
    from resharpen.analysis.compare import Comparison as Comparison
    from resharpen.analysis.compare import compare as compare
    from resharpen.analysis.inspection import inspect as inspect
    from resharpen.analysis.scores import scores as scores
    from resharpen.analysis.scores import tidy_results as tidy_results
    from resharpen.analysis.theory.examples import hard_coded_model as hard_coded_model
    from resharpen.errors import UserError as UserError
    from resharpen.experiments.keeping.reference import find_reference as reference  # noqa: F401
    from resharpen.experiments.keeping.store import Run as Run
    from resharpen.experiments.keeping.stored import StoredModel as StoredModel
    from resharpen.experiments.keeping.stored import load_model as load_model
    from resharpen.experiments.running.rescoring import rescore as rescore
    from resharpen.experiments.running.runner import load as load
    from resharpen.experiments.running.scoring import Scored as Scored
    from resharpen.experiments.running.scoring import score as score
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
    from resharpen.notebook import draw as draw
    from resharpen.notebook import run as run
    from resharpen.optim.hyperparameters import Row as Row
    from resharpen.optim.optimizer import optimizer as optimizer
    from resharpen.optim.schedule import progress as progress
    from resharpen.optim.schedule import schedule as schedule
    from resharpen.optim.schedule import warmed_up as warmed_up
    from resharpen.parts import PLACEMENTS as PLACEMENTS
    from resharpen.parts import Placement as Placement
    from resharpen.parts.parameter import learned as learned
    from resharpen.parts.part import attention as attention
    from resharpen.parts.part import dropout as dropout
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
    from resharpen.tasks.metrics import metric as metric


def _public() -> dict[str, tuple[str, str]]:
    """Public name -> (module, name there), from the imports above, which only type checkers execute. A module is
    imported when its name is first used, so that `resharpen --help` does not wait for torch, polars and matplotlib."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [(str(node.module), node.names) for node in imports if str(node.module).startswith("resharpen.")]
    return {alias.asname or alias.name: (module, alias.name) for module, names in ours for alias in names}


_PUBLIC = _public()
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'resharpen' has no attribute '{name}'")
    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
