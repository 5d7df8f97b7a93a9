"""B, D and attention of minimal transformers, sixteen bits per entry; for a sample of models if all would not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resharpen.analysis.circuits import circuit
from resharpen.analysis.inspection import Opened, opened
from resharpen.experiments.keeping.store import Run
from resharpen.tasks import SetComplement
from resharpen.views.report.gather import Gathered

ROOM = 3_000_000
"""Bytes for all matrices of a run: 6,000 models of v = 9."""
FINEST = 2**15 - 1


@dataclass(frozen=True, eq=False)
class Inside:
    groups: list[dict[str, Any]]
    """The models with v tokens, for each v."""
    arrays: dict[str, NDArray]
    """`inside-V` [I, 3, V, V], B, D and rows of attention; `scale-V` [I, 3] the value of 32,767."""
    said: str
    """Which models are included."""


def inside(gathered: Gathered, score_M: NDArray) -> Inside:
    """Matrices of minimal transformers on Set Complement, at the best checkpoint of the training weights."""
    run = gathered.run
    if not isinstance(run, Run):  # a reference has no weights
        return Inside([], {}, "")
    settings = [setting for setting in run.experiment.settings if isinstance(setting.task, SetComplement)]
    cells = list(opened(run, settings))
    place = dict(gathered.models.select("model", "at").iter_rows())
    share = min(1.0, ROOM / max(1, sum(3 * _tokens(of) ** 2 * len(of.models) for of in cells)))
    by_v: dict[int, list[tuple[NDArray, NDArray]]] = {}
    for of in cells:
        at = np.array([place[model] for model in of.models["model"]])
        rows = _chosen(score_M[at], int(len(at) * share))
        theta, hyper = ({name: x[rows] for name, x in arrays.items()} for arrays in (of.theta, of.hyper))
        found = circuit(theta, of.parts, hyper)
        matrices = np.stack([*found.matrices(), found.shares()], axis=1)
        by_v.setdefault(_tokens(of), []).append((at[rows], matrices))
    groups, arrays = [], {}
    for v, pieces in by_v.items():
        matrix = np.concatenate([piece for _, piece in pieces])
        scale = np.abs(matrix).max(axis=(2, 3), initial=0)
        groups.append({"v": v, "models": np.concatenate([at for at, _ in pieces]).tolist()})
        unit = np.where(scale > 0, scale, 1)[..., None, None]
        arrays[f"inside-{v}"] = np.rint(FINEST * matrix / unit).astype(np.int16)
        arrays[f"scale-{v}"] = scale.astype(np.float32)
    which = f"{share:.0%} of the models: the best of each violin, and an even sample"
    said = f"B, D and attention are available for {'all models with weights' if share == 1 else which}."
    return Inside(groups, arrays, said if any(len(of.models) for of in cells) else "")


def _tokens(of: Opened) -> int:
    return of.theta["E"].shape[1]


def _chosen(score_M: NDArray, many: int) -> NDArray[np.int64]:
    """The best half of `many` models, the rest an even sample of the others by rank; none that diverged."""
    ranked = np.argsort(score_M, kind="stable")[: np.isfinite(score_M).sum()]
    many = min(max(1, many), len(ranked))
    best = -(-many // 2)
    spread = np.linspace(best, len(ranked) - 1, many - best).round().astype(int)
    return np.sort(ranked[np.r_[np.arange(best), spread]])
