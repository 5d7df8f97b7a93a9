"""The columns of a run's tables, each declared once: writing, validation, reserved names and the README of a run are
derived from here.

    models     one row per model: setting, variant, draw, hyperparameters, step of divergence
    curves     one row per model, weights and checkpoint: its score during training
    lengths    one row per model, weights, selection, test, metric and length: its values on the report set, or on that
               of a further test distribution

`models` also has a column for every field of task and model and for every hyperparameter: `models_columns`. A reference
has `models`, with the columns of SCORES, and `lengths`.
"""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from resharpen.experiments.specs.variant import PARTS
from resharpen.state import SELECTIONS, WEIGHTS

SLOTS = tuple(f"{weights}.{selection}" for weights in WEIGHTS for selection in SELECTIONS)


@dataclass(frozen=True)
class Column:
    name: str
    kind: type
    """int, float, str or bool; other widths of a number are cast to 64 bits when a table is read. A list is of numbers
    in single precision."""
    about: str = ""
    key: bool = False
    """Part of the key of its table: every combination of keys occurs once."""
    shared: bool = False
    """The same for all models of a setting and variant, as in the spec."""
    null: bool = False
    """A value may be missing: a diverged model has none."""
    needed: bool = True
    """False if older tables may lack the column: it is filled in from the spec, or with `otherwise`."""
    otherwise: str | None = None
    low: float | None = None
    """The smallest value."""
    allowed: tuple[str, ...] = ()
    within: Literal["steps", "checkpoints", "metric", "selecting"] | None = None
    """Range: training steps, checkpoints, the range of the row's metric, or of the metric that selects checkpoints."""


def step_column(slot: str) -> str:
    """>>> step_column("train.best-trained")
    'train_best_trained_step'
    """
    return f"{slot.replace('.', '_').replace('-', '_')}_step"


_MODEL = Column("model", str, "SETTING/VARIANT/DRAW", key=True)
_WEIGHTS = Column("weights", str, "training weights or BEMA", key=True, allowed=WEIGHTS)
_SCORE = {"kind": float, "null": True, "within": "selecting"}

_SHARED = (
    Column("setting", str, "task and training length", shared=True),
    Column("task", str, "kind of task", shared=True),
    Column("train_length", int, "longest input in training", shared=True, low=1),
    Column("family", str, "kind of model", shared=True),
    Column("variant", str, "name of the variant", shared=True),
    *(Column(part, str, f"the variant's {part}", shared=True, needed=False) for part in PARTS),
    Column("steps", int, "steps of training", shared=True, low=1),
    Column("batch", int, "sequences in a minibatch", shared=True, low=1),
    Column("seed", int, "seed of all random streams", shared=True, low=0),
    Column("engine", str, "engine that trained it", shared=True),
    Column("device", str, "where", shared=True),
)
_ENDED = (
    Column("diverged_at", int, "step at which it diverged, if it did", null=True, low=0, within="steps"),
    *(Column(step_column(slot), int, f"step of checkpoint {slot}", null=True, within="checkpoints") for slot in SLOTS),
)
TABLES: dict[str, tuple[Column, ...]] = {
    "models": (_MODEL, Column("draw", int, "number of the draw", low=0), *_SHARED, *_ENDED),
    "curves": (
        _MODEL,
        _WEIGHTS,
        Column("step", int, "checkpoint", key=True, within="checkpoints"),
        Column("score", about="mean over all lengths of the selection set", **_SCORE),
        Column("score_trained", about="mean over its trained lengths", **_SCORE),
        Column("loss", float, "mean training loss since the previous checkpoint", null=True),
    ),
    "lengths": (
        _MODEL,
        _WEIGHTS,
        Column("selection", str, "which checkpoint was selected", key=True, allowed=SELECTIONS),
        Column(
            "test", str, "further test distribution, empty for the task itself", key=True, needed=False, otherwise=""
        ),
        Column("length", int, "of inputs, or the end of a bin", key=True, low=1),
        Column("metric", str, "name of the metric", key=True),
        Column("value", float, "on the report set", null=True, within="metric"),
        Column("count", int, "number of prefixes or sequences", low=0),
        Column("without", list, "the value without each tenth of the sequences", null=True, needed=False),
    ),
}
SCORES = tuple(Column(f"{score}_{weights}", **_SCORE) for score in ("score", "score_new") for weights in WEIGHTS)
"""Further columns of `models` in a reference: means over all and over new lengths at the best checkpoint."""
_BY_ANALYSIS = ("score_new", "has_new", "gain", "new", "at", "error")
"""Columns that `analysis` and `views` add to `models`."""
RESERVED = frozenset(column.name for table in (*TABLES.values(), SCORES) for column in table).union(_BY_ANALYSIS)
"""Names that no field of a task or a model and no hyperparameter may have."""


def described() -> str:
    """The tables and their columns, for the README of a run."""
    lines = []
    for name, columns in TABLES.items():
        keys = ", ".join(column.name for column in columns if column.key)
        said = "; ".join(f"`{column.name}` {column.about}" for column in columns if not column.key)
        more = "; a column for every field of task and model, and for every hyperparameter" if name == "models" else ""
        text = f"  - `{name}.parquet`, one row per {keys}: {said}{more}"
        lines.append(textwrap.fill(text, 120, subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(lines)


def models_columns(fields: Mapping[str, Any], hyperparameters: Iterable[str]) -> tuple[Column, ...]:
    """Columns of `models`, given the fields of task and model, by name and value, and the hyperparameters."""
    begin = TABLES["models"][: -len(_ENDED)]
    described = (Column(name, type(value), shared=True, needed=False) for name, value in fields.items())
    drawn = (Column(name, float, null=True, needed=False) for name in hyperparameters)
    return *begin, *described, *drawn, *_ENDED
