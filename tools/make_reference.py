"""Store the finished shards of a run in a reference: python tools/make_reference.py runs/fig1-overnight"""

import io
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

import resharpen as rs
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.checks import write_header
from resharpen.experiments.keeping.reference import KEPT, REFERENCE, Reference, table_file
from resharpen.experiments.specs.spec import Experiment
from resharpen.experiments.specs.toml import differences, search_data, to_data


def write_reference(
    run: rs.Run, scores: pl.DataFrame, directory: Path, again: Collection[str] = (), other_variants: bool = False
) -> Reference:
    """Store the finished shards of a run; `scores` has one row per model and weights.

    An existing reference of the same spec in that directory grows by the shards that it does not have. A shard of which
    it has only some models is left out with a warning, because builds are recorded per shard. Finished shards of the
    settings in `again` replace those in the reference. With `other_variants` the run may have other variants: the
    reference gets its list, and loses the models of those that are not on it.
    """
    wide = scores.select("model", "weights", "score", "score_new").pivot("weights", index="model")
    tables = {
        "models": run.table("models").join(wide, on="model", how="left", maintain_order="left"),
        "lengths": run.table("lengths"),
    }
    shards, made, experiment = run.done(), [], run.experiment
    reference, old = Reference(directory), Reference(directory)
    if (reference.root / REFERENCE).exists():
        experiment = _same_spec(old.experiment, experiment, other_variants)
        replaced = [shard for shard in shards if shard.setting.name in again]
        replaced += [shard for shard in old.experiment.shards() if shard.variant not in experiment.variants]
        names = {shard.name for shard in replaced}
        made = [
            made | {"built": {x: built for x, built in made["built"].items() if x not in names}}
            for made in old.header["made"]
        ]
        gone = [model for shard in replaced for model in shard.model_ids]
        kept = {name: old.table(name).filter(~pl.col("model").is_in(gone)) for name in KEPT}
        there = set(kept["models"]["model"])
        if torn := [shard.name for shard in shards if 0 < len(there.intersection(shard.model_ids)) < shard.count]:
            warnings.warn(
                f"{directory} has only some models of {', '.join(torn)}: the others are left out", stacklevel=2
            )
        shards = [shard for shard in shards if there.isdisjoint(shard.model_ids)]
        new = [model for shard in shards for model in shard.model_ids]
        tables = {
            name: pl.concat([kept[name], table.filter(pl.col("model").is_in(new))], how="diagonal")
            for name, table in tables.items()
        }
    if shards:
        built = {shard.name: run.files(shard).told("built") for shard in shards}
        made = [
            *(x for x in made if x["built"]),
            {"command": run.command, "provenance": run.provenance, "built": built},
        ]
    hashes = {}
    for name, table in tables.items():
        packed = io.BytesIO()
        small = _small(table, run) if name == "lengths" else table
        small.write_parquet(packed, compression="zstd", compression_level=19)
        sha256 = hashes[f"{name}.parquet"] = files.sha256(packed.getvalue())
        files.write_bytes(reference.root / table_file(name, sha256), packed.getvalue(), lasting=True)
    header = {"spec": to_data(experiment), "drawn": search_data(experiment), "made": made, "sha256": hashes}
    write_header(reference.root / REFERENCE, header)
    current = {table_file(name, hashes[f"{name}.parquet"]) for name in KEPT}
    for path in reference.root.glob("*-*.parquet"):
        if path.name not in current:
            path.unlink()
    files.remove_temporary(reference.root)
    return reference


def _small(lengths: pl.DataFrame, run: rs.Run) -> pl.DataFrame:
    """The table in single precision. The values without each block of sequences, which are most of its size, are kept
    for the metric that checkpoints are chosen by."""
    chosen = pl.col("metric") == run.experiment.settings[0].task.metric
    without = [pl.when(chosen).then("without").alias("without")] if "without" in lengths.columns else []
    return lengths.with_columns(pl.col("value").cast(pl.Float32), *without)


def _same_spec(old: Experiment, new: Experiment, other_variants: bool) -> Experiment:
    """The new experiment with the larger number of models. The two may differ in that number and in the baseline; with
    `other_variants` also in which variants they have, but not in what a variant of both is."""

    def compared(experiment: Experiment) -> dict[str, Any]:
        data = {**to_data(experiment), "drawn": search_data(experiment), "models": None, "baseline": None}
        if other_variants:
            both = {key: {name: data[key].get(name) for name in in_both} for key in ("variant", "drawn")}
            data |= both | {"variants": None}
        return data

    in_both = old.variants.keys() & new.variants.keys()
    if changes := differences(compared(old), compared(new)):
        raise rs.UserError(f"the reference {old.name} is of another spec ({'; '.join(changes)})")
    return new.with_changes(models=max(old.models, new.models))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        finished = rs.load(name)
        made = write_reference(finished, rs.scores(finished), Path("reference") / finished.experiment.name)
        size = sum(path.stat().st_size for path in made.directory.iterdir())
        print(f"{made.directory}: {made.table('models').height:,} models, {size / 2**20:.2f} MiB")
