"""Does a run agree with a reference? Model by model where both have the same draws, as distributions elsewhere.

Three questions, in this order:

- **The same draws?** Hyperparameters of common models are equal to twelve digits: streams are the same everywhere.
- **The same numbers?** Where the same kernel computed on the same kind of processor, every value is equal bit for bit.
  Elsewhere rounding differs. After 20,000 steps of Set Complement the scores of 64 models built for processors with and
  without AVX-512 and FMA lay within 0.00003 of each other, half of them within 0.00000001. Single models may drift: of
  32 models of Maximum Retrieval trained by two builds for 50,000 steps half lay within 0.005, one in ten was 0.04 away,
  one 0.3. What is asked of the scores of a setting and variant: half of the models within TYPICAL of the reference, and
  no shift in one direction beyond SHIFT, by the exact interval of the paired median. Fewer than six models have no such
  interval, and half of them may be one that drifted: where they are further than TYPICAL away, that is left open.
- **The same distributions?** Of draws that the reference does not have, scores are compared with all of its own by the
  two-sample Kolmogorov-Smirnov test, at LEVEL after Holm's correction.

Cells that only one side trained with a kernel known to be faulty cannot agree: they are named instead of compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from resharpen.analysis.scores import scores, task_of
from resharpen.analysis.statistics import Sample, holm, quantile_interval
from resharpen.errors import UserError
from resharpen.experiments.keeping.builds import fault_of, machine_code
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.specs.spec import Experiment, models_of, roles

if TYPE_CHECKING:
    import polars as pl

TYPICAL = 0.01
SHIFT = 0.005
LEVEL = 0.01
CELL = ["setting", "variant", "weights"]


@dataclass(frozen=True)
class Check:
    what: str
    compared: int
    """Models, values or cells that were looked at; 0 where there was nothing to look at."""
    differs: tuple[str, ...]
    """What does not agree, by name; empty if all does."""
    unclear: tuple[str, ...] = ()
    """What is too little to tell."""
    faulty: tuple[str, ...] = ()
    """What a kernel with a known fault made."""


def verify(run: Run, reference: Reference) -> list[Check]:
    """The checks of a run against a reference; UserError if the two are not of one spec, or have nothing to compare."""
    import polars as pl

    comparable(run.experiment, reference.experiment)
    worst = task_of(run).metrics[task_of(run).metric].worst  # of a model that diverged before it had a score
    here, there = (table.fill_null(worst) for table in (_scores(run), _scores_there(reference)))
    same_seed = run.experiment.seed == reference.experiment.seed
    models = _common_models(run, reference) if same_seed else reference.table("models").clear()
    faulty = _faulty(run, reference)
    here, there = (
        table.filter(~pl.concat_str("setting", "variant", separator="/").is_in(list(faulty))) for table in (here, there)
    )
    checks = [
        *(
            [Check("cells of a kernel with a known fault", len(faulty), (), faulty=tuple(faulty.values()))]
            if faulty
            else []
        ),
        _draws(models, run.experiment),
        *_values(run, reference, set(models["model"])),
        _rounding(here.join(there, on=["model", *CELL], suffix="_there") if same_seed else here.clear()),
        _distributions(here.filter(~here["model"].is_in(models["model"].to_list())), there),
    ]
    if not any(check.compared for check in checks):
        raise UserError(f"nothing to compare: {reference.directory} keeps no model of the variants of {run.directory}")
    return checks


def _faulty(run: Run, reference: Reference) -> dict[str, str]:
    """Setting and variant -> what was wrong with the kernel of one side, where the other had a better one."""
    lengths = {setting.name: setting.train_length for setting in run.experiment.settings}
    found: dict[str, dict[str, str]] = {}
    sides = {"this run": _built_here(run), "the reference": reference.built}
    for side, built in sides.items():
        for shard, kernel in built.items():
            setting, variant, _ = shard.split("/")
            if fault := fault_of(kernel, lengths.get(setting, 0)):
                found.setdefault(f"{setting}/{variant}", {})[side] = fault
    return {
        cell: f"{cell}: {side} was made by a kernel in which {fault}; train it again"
        for cell, ((side, fault), *both) in ((cell, list(sides.items())) for cell, sides in found.items())
        if not both
    }


def _built_here(run: Run) -> dict[str, str | None]:
    return {shard.name: run.files(shard).told("built") for shard in run.done()}


def comparable(here: Experiment, there: Experiment) -> None:
    """A run may have fewer or more models, settings and variants than its reference, and another seed; all else that
    can change a result has to be the same."""
    for name in (name for name, role in roles(here).items() if role.pairs and role.kind and name != "seed"):
        if getattr(here, name) != getattr(there, name):
            raise UserError(f"not a run of '{there.name}': {name} = {getattr(here, name)}, not {getattr(there, name)}")
    settings = {setting.name: setting for setting in there.settings}
    common = [setting for setting in here.settings if setting.name in settings]
    variants = [name for name in here.variants if name in there.variants]
    if not common or not variants:
        raise UserError(f"not a run of '{there.name}': it has no setting and variant in common with it")
    for setting in common:
        if setting != settings[setting.name]:
            raise UserError(f"not a run of '{there.name}': {setting} there is {settings[setting.name]}")
    for name in variants:
        ours, theirs = (replace(x.variants[name], engine=None) for x in (here, there))
        if ours != theirs or here.rows(ours) != there.rows(theirs):
            raise UserError(f"not a run of '{there.name}': variant '{name}' or what is drawn for it differs")


def _scores(run: Run) -> pl.DataFrame:
    return scores(run).select("model", *CELL, "score")


def _scores_there(reference: Reference) -> pl.DataFrame:
    models = reference.table("models").select("model", "setting", "variant", train="score_train", bema="score_bema")
    return models.unpivot(index=["model", "setting", "variant"], variable_name="weights", value_name="score")


def _common_models(run: Run, reference: Reference) -> pl.DataFrame:
    return run.table("models").join(reference.table("models"), on="model", suffix="_there", maintain_order="left")


def _draws(models: pl.DataFrame, experiment: Experiment) -> Check:
    drawn = {row for variant in experiment.variants.values() for row in experiment.rows(variant)}
    looked_at, wrong = set(), []
    for name in (name for name in sorted(drawn) if f"{name}_there" in models.columns):
        both = models.drop_nulls([name, f"{name}_there"])  # an older side may not have recorded it
        looked_at.update(both["model"])
        differs = ~np.isclose(both[name], both[f"{name}_there"], rtol=1e-12, atol=0)
        wrong += [f"{name} of {both['model'][int(i)]}" for i in np.flatnonzero(differs)[:3]]
    return Check("hyperparameters of common models", len(looked_at), tuple(wrong))


def _values(run: Run, reference: Reference, common: set[str]) -> Iterator[Check]:
    """Counts of what stands behind a value, of all common models; bits of those that the same kernel made."""
    import polars as pl

    made = _made_by(reference.built)
    here = _made_by(_built_here(run))
    exact = {model for model, code in here.items() if made.get(model) == code and not code.startswith("torch")}
    keys = ["model", "weights", "selection", "metric", "length"]
    table = run.table("lengths").with_columns(pl.col("value").cast(pl.Float32).cast(pl.Float64))  # as it is kept
    rows = table.filter(pl.col("model").is_in(common)).join(reference.table("lengths"), on=keys, suffix="_there")
    yield _same("sizes of validation sets behind common values", rows, "count")
    kernels = ~pl.col("metric").is_in(list(task_of(run).further_metrics()))  # torch measures those, of any version
    same = rows.filter(pl.col("model").is_in(exact), kernels)
    yield _same("values of models from the same kernel, bit for bit", same, "value")


def _made_by(built: Mapping[str, str | None]) -> dict[str, str]:
    """Model -> what computed it, from what made each shard. Runs of other sizes are in other shards."""
    return {model: machine_code(made) for shard, made in built.items() if made for model in models_of(shard)}


def _same(what: str, rows: pl.DataFrame, column: str) -> Check:
    import polars as pl

    other = f"{column}_there"
    wrong = rows.filter(pl.col(column).ne_missing(pl.col(other)))
    named = [
        f"{row['model']}, {row['weights']}, {row['metric']} at {row['length']}: {row[column]}, not {row[other]}"
        for row in wrong.unique("model", maintain_order=True).iter_rows(named=True)
    ]
    return Check(what, rows.height, tuple(named))


def _rounding(pairs: pl.DataFrame) -> Check:
    """Paired scores, cell by cell: close for most, and not shifted."""
    wrong, unclear, looked_at = [], [], 0
    for cell, rows in pairs.group_by(CELL, maintain_order=True):
        difference_N = (rows["score"] - rows["score_there"]).to_numpy()
        looked_at += len(difference_N)
        typical = np.median(np.abs(difference_N))
        shift = quantile_interval(Sample(difference_N, len(difference_N)), 0.5, 0.0)
        if typical > TYPICAL:
            enough = np.isfinite(shift.low)
            (wrong if enough else unclear).append(f"{_named(cell)}: half of the models are {typical:.3f} away or more")
        elif shift.low > SHIFT or shift.high < -SHIFT:
            wrong.append(f"{_named(cell)}: shifted by {shift.estimate:+.4f} ({shift.low:+.4f} .. {shift.high:+.4f})")
    return Check("scores of common models, within rounding", looked_at, tuple(wrong), tuple(unclear))


def _distributions(new: pl.DataFrame, there: pl.DataFrame) -> Check:
    from scipy.stats import ks_2samp

    known = {cell: rows["score"].to_numpy() for cell, rows in there.group_by(CELL)}
    names, p_values = [], []
    for cell, rows in new.group_by(CELL, maintain_order=True):
        ours = rows["score"].to_numpy()
        if cell in known:
            names.append(cell)
            p_values.append(ks_2samp(ours, known[cell]).pvalue)  # pyright: ignore[reportAttributeAccessIssue]
    wrong = [f"{_named(cell)}: p = {p:.1g}" for cell, p in zip(names, holm(p_values), strict=True) if p < LEVEL]
    return Check("distributions of scores of draws that the reference has not", len(names), tuple(wrong))


def _named(cell: tuple[object, ...]) -> str:
    setting, variant, weights = cell
    return f"{setting}/{variant}, {weights}"
