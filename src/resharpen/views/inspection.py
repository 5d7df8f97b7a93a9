"""`resharpen inspect`: the pictures of what is inside trained models, whichever suits the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from resharpen.analysis.inspection import attention_of, choose_model, inspect, read_prefix
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.keeping.stored import load_model
from resharpen.models import Transformer
from resharpen.state import Weights
from resharpen.views import circuits
from resharpen.views.attention import draw_attention
from resharpen.views.tables import print_inspection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = ("pre", "peri", "out")
"""The variants whose dispersion is shown side by side, where a run has any of them."""


def draw_inspection(run: Run, model: str, weights: Weights, prefix: str | None, console: Console) -> dict[str, Figure]:
    """Attention maps of a transformer on a prefix; circuits of a minimal one, and what those of its setting share."""
    model_id, setting = choose_model(run, model, weights)
    chosen = load_model(run, model_id, weights)
    name = f"{model_id} ({weights})"
    if isinstance(chosen.model, Transformer) or prefix is not None:
        tokens = read_prefix(setting, prefix)
        names = [setting.task.token_names[token] for token in tokens]
        return {"attention": draw_attention(attention_of(chosen, tokens), names, name)}
    inspection = inspect(run, setting, weights)
    table, row = inspection.find(model_id)
    decay = {variant: rows["weight_decay"].to_numpy() for variant, rows in inspection.models.items()}
    compared = {variant: inspection.tables[variant] for variant in COMPARED if variant in inspection.tables}
    print_inspection(inspection, console)
    return {
        "inspect-model": circuits.draw_model(table, row, name),
        "inspect-run": circuits.draw_run(inspection.tables, decay),
        "dispersion": circuits.draw_cure(compared or inspection.tables, setting.train_length),
    }
