"""Compare a run with a reference: model by model where both have the same draws, as distributions elsewhere.

- **The same draws?** Hyperparameters of common models agree to twelve digits: streams are the same on every machine.
- **The same values?** With the same kernel and the same kind of processor every value is equal bit for bit. Otherwise
  rounding differs, and single models drift: scores of 64 models of Set Complement with and without AVX-512 and FMA were
  within 0.00003 after 20,000 steps; of 32 models of Maximum Retrieval half were within 0.005 after 50,000 steps, but
  one in ten was 0.04 away and one 0.3. The test per setting and variant: the median distance from the reference is at
  most TYPICAL, and the median difference is within SHIFT of zero. It fails if the interval of the median excludes this.
  A median distance above TYPICAL whose interval does not exclude TYPICAL is unclear: fewer than six models have no
  interval, and among few models those that drifted may be half.
- **The same distributions?** Scores of draws that are not in the reference are compared with all scores of the
  reference by the two-sample Kolmogorov-Smirnov test, at LEVEL after Holm's correction.

Cells that only one side trained with a kernel known to be faulty cannot agree: they are listed instead of compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from resharpen.analysis.scores import scores, task_of
from resharpen.analysis.statistics import Sample, holm, quantile_interval
from resharpen.errors import UserError
from resharpen.experiments.keeping.builds import fault_of, machine_code
from resharpen.experiments.keeping.reference import Reference
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.specs.spec import Experiment, models_of, roles
from resharpen.lazy import pl, scipy

TYPICAL = 0.01
SHIFT = 0.005
LEVEL = 0.01
COUNTS = "sizes of validation sets of common values"
BITS = "values of models from the same kernel, bit for bit"
CELL = ["setting", "variant", "weights"]
Built = Mapping[str, str | None]
"""Shard -> the build that trained it."""


@dataclass(frozen=True)
class Check:
    what: str
    compared: int
    """Number of models, values or cells that were compared."""
    differs: tuple[str, ...] = ()
    """Names of items that do not agree."""
    unclear: tuple[str, ...] = ()
    """Names of items with too few models to decide."""
    faulty: tuple[str, ...] = ()
    """Items computed by a kernel with a known fault."""


def verify(run: Run, reference: Reference) -> list[Check]:
    """The checks of a run against a reference; UserError if their specs differ, or there is nothing to compare."""
    comparable(run.experiment, reference.experiment)
    same_seed = run.experiment.seed == reference.experiment.seed
    kept = reference.table("models")
    same_draws = kept if same_seed else kept.clear()
    models = run.table("models").join(same_draws, on="model", suffix="_there", maintain_order="left")
    built = {shard.name: run.files(shard).told("built") for shard in run.done()}
    faulty = _faulty(run.experiment, built, reference.built)
    here = scores(run).select("model", *CELL, "score")
    there = kept.select("model", "setting", "variant", train="score_train", bema="score_bema").unpivot(
        index=["model", "setting", "variant"], variable_name="weights", value_name="score"
    )
    worst = task_of(run).metrics[task_of(run).metric].worst  # for a model that diverged before it had a score
    sound = ~pl.concat_str("setting", "variant", separator="/").is_in(list(faulty))
    here, there = (table.fill_null(worst).filter(sound) for table in (here, there))
    checks = [
        _draws(models, run.experiment),
        *_values(run, built, reference, set(models["model"])),
        _rounding(here.join(there, on=["model", *CELL], suffix="_there") if same_seed else here.clear()),
        _distributions(here.filter(~here["model"].is_in(models["model"].to_list())), there),
    ]
    if faulty:
        checks.insert(0, Check("cells of a kernel with a known fault", len(faulty), faulty=tuple(faulty.values())))
    if not any(check.compared for check in checks):
        raise UserError(f"nothing to compare: {reference.directory} has no models of the variants of {run.directory}")
    return checks


@dataclass(frozen=True)
class Summary:
    """All checks of a run in one line."""

    values: int
    """Number of values that were compared."""
    result: str
    agrees: bool


def summarize(checks: Sequence[Check]) -> Summary:
    """Agreement is bit for bit if all common values are from the same kernel, and otherwise within rounding."""
    compared = {check.what: check.compared for check in checks}
    values, bits = compared[COUNTS], compared[BITS]
    if differs := [name for check in checks for name in (*check.differs, *check.faulty)]:
        more = f" and {len(differs) - 1} more" * (len(differs) > 1)
        return Summary(values, f"differs: {differs[0]}{more}", agrees=False)
    if unclear := [name for check in checks for name in check.unclear]:
        return Summary(values, f"too few models to tell: {'; '.join(unclear)}", agrees=True)
    if bits == 0:
        return Summary(values, "agrees within rounding (no model is from the same kernel)", agrees=True)
    rest = "" if bits == values else f" in {bits:,} values, the others within rounding"
    return Summary(values, f"agrees bit for bit{rest}", agrees=True)


def _faulty(experiment: Experiment, here: Built, there: Built) -> dict[str, str]:
    """Setting and variant -> the known fault of the kernel of one side, if the other side did not have it."""
    lengths = {setting.name: setting.train_length for setting in experiment.settings}
    found: dict[str, dict[str, str]] = {}
    for side, built in (("this run", here), ("the reference", there)):
        for shard, kernel in built.items():
            setting, variant, _ = shard.split("/")
            if fault := fault_of(kernel, lengths.get(setting, 0)):
                found.setdefault(f"{setting}/{variant}", {})[side] = fault
    return {
        cell: f"{cell}: {side} was trained by a kernel with a fault ({fault}); train it again"
        for cell, sides in found.items()
        if len(sides) == 1
        for side, fault in sides.items()
    }


def comparable(here: Experiment, there: Experiment) -> None:
    """UserError unless everything that can change a result is the same. The numbers of models, settings and variants
    and the seed may differ."""
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
            raise UserError(f"not a run of '{there.name}': {setting}, not {settings[setting.name]}")
    for name in variants:
        ours, theirs = (replace(x.variants[name], engine=None) for x in (here, there))
        if ours != theirs or here.rows(ours) != there.rows(theirs):
            raise UserError(f"not a run of '{there.name}': variant '{name}' or its hyperparameter table differs")


def _draws(models: pl.DataFrame, experiment: Experiment) -> Check:
    drawn = {row for variant in experiment.variants.values() for row in experiment.rows(variant)}
    compared, wrong = set(), []
    for name in (name for name in sorted(drawn) if f"{name}_there" in models.columns):
        both = models.drop_nulls([name, f"{name}_there"])  # an older side may not have recorded it
        compared.update(both["model"])
        differs = ~np.isclose(both[name], both[f"{name}_there"], rtol=1e-12, atol=0)
        wrong += [f"{name} of {both['model'][int(i)]}" for i in np.flatnonzero(differs)[:3]]
    return Check("hyperparameters of common models", len(compared), tuple(wrong))


def _values(run: Run, built: Built, reference: Reference, common: set[str]) -> Iterator[Check]:
    """Counts of all common models, and exact values of models that were trained by the same kernel."""
    here, there = _made_by(built), _made_by(reference.built)
    exact = {model for model, code in here.items() if there.get(model) == code and not code.startswith("torch")}
    keys = ["model", "weights", "selection", "test", "metric", "length"]
    table = run.table("lengths").with_columns(pl.col("value").cast(pl.Float32).cast(pl.Float64))  # as in a reference
    rows = table.filter(pl.col("model").is_in(common)).join(reference.table("lengths"), on=keys, suffix="_there")
    # further metrics are measured by torch, whose version may differ, on weights whose own metrics are compared here
    rows = rows.filter(~pl.col("metric").is_in(list(task_of(run).further_metrics())))
    yield _same(COUNTS, rows, "count")
    yield _same(BITS, rows.filter(pl.col("model").is_in(exact)), "value")


def _made_by(built: Built) -> dict[str, str]:
    """Model -> its build. By model, because the shards of runs of different sizes differ."""
    return {model: machine_code(made) for shard, made in built.items() if made for model in models_of(shard)}


def _same(what: str, rows: pl.DataFrame, column: str) -> Check:
    other = f"{column}_there"
    wrong = rows.filter(pl.col(column).ne_missing(pl.col(other)))
    named = [
        f"{row['model']}, {row['weights']}, {row['metric']} at {row['length']}: {row[column]}, not {row[other]}"
        for row in wrong.unique("model", maintain_order=True).iter_rows(named=True)
    ]
    return Check(what, rows.height, tuple(named))


def _rounding(pairs: pl.DataFrame) -> Check:
    """Paired scores per cell: close for most models, and not shifted."""
    wrong, unclear = [], []
    for cell, rows in pairs.group_by(CELL, maintain_order=True):
        difference_N = (rows["score"] - rows["score_there"]).to_numpy().astype(np.float64)
        distance, shift = (quantile_interval(Sample(x, len(x)), 0.5, 0.0) for x in (np.abs(difference_N), difference_N))
        if distance.estimate > TYPICAL:
            far = f"{_named(cell)}: half of the models are {distance.estimate:.3f} away or more"
            (wrong if distance.low > TYPICAL else unclear).append(far)
        elif shift.low > SHIFT or shift.high < -SHIFT:
            wrong.append(f"{_named(cell)}: shifted by {shift.estimate:+.4f} ({shift.low:+.4f} .. {shift.high:+.4f})")
    return Check("scores of common models, within rounding", pairs.height, tuple(wrong), tuple(unclear))


def _distributions(new: pl.DataFrame, there: pl.DataFrame) -> Check:
    known = {cell: rows["score"].to_numpy() for cell, rows in there.group_by(CELL)}
    p_values = {
        cell: scipy.stats.ks_2samp(rows["score"].to_numpy(), known[cell]).pvalue  # pyright: ignore[reportAttributeAccessIssue]
        for cell, rows in new.group_by(CELL, maintain_order=True)
        if cell in known
    }
    corrected = zip(p_values, holm(list(p_values.values())), strict=True)
    wrong = [f"{_named(cell)}: p = {p:.1g}" for cell, p in corrected if p < LEVEL]
    return Check("distributions of scores of draws not in the reference", len(p_values), tuple(wrong))


def _named(cell: tuple[object, ...]) -> str:
    setting, variant, weights = cell
    return f"{setting}/{variant}, {weights}"
