"""Store the finished shards of a run in a reference: python tools/make_reference.py runs/fig1-overnight"""

import io
import sys
import warnings
from collections.abc import Collection
from pathlib import Path

import polars as pl

import resharpen as rs
from resharpen.experiments.keeping import files
from resharpen.experiments.keeping.checks import write_header
from resharpen.experiments.keeping.reference import KEPT, REFERENCE, Reference, table_file
from resharpen.experiments.specs.spec import Experiment
from resharpen.experiments.specs.toml import differences, search_data, to_data


def write_reference(run: rs.Run, scores: pl.DataFrame, directory: Path, again: Collection[str] = ()) -> Reference:
    """Store the finished shards of a run; `scores` has one row per model and weights.

    An existing reference of the same spec in that directory grows by the shards that it does not have. A shard of which
    it has only some models is left out with a warning, because builds are recorded per shard. Finished shards of the
    settings in `again` replace those in the reference.
    """
    wide = scores.select("model", "weights", "score", "score_new").pivot("weights", index="model")
    tables = {
        "models": run.table("models").join(wide, on="model", how="left", maintain_order="left"),
        "lengths": run.table("lengths"),
    }
    shards, made, experiment = run.done(), [], run.experiment
    reference, old = Reference(directory), Reference(directory)
    if (reference.root / REFERENCE).exists():
        experiment = _same_spec(old.experiment, experiment)
        replaced = {shard.name for shard in shards if shard.setting.name in again}
        made = [
            made | {"built": {x: built for x, built in made["built"].items() if x not in replaced}}
            for made in old.header["made"]
        ]
        gone = [model for shard in shards if shard.name in replaced for model in shard.model_ids]
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


def _same_spec(old: Experiment, new: Experiment) -> Experiment:
    """The experiment with more models, of two that differ in the number of models and the baseline only."""
    a, b = ({**to_data(x), "drawn": search_data(x), "models": None, "baseline": None} for x in (old, new))
    if changes := differences(a, b):
        raise rs.UserError(f"the reference {old.name} is of another spec ({'; '.join(changes)})")
    return max(old, new, key=lambda x: x.models)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        finished = rs.load(name)
        made = write_reference(finished, rs.scores(finished), Path("reference") / finished.experiment.name)
        size = sum(path.stat().st_size for path in made.directory.iterdir())
        print(f"{made.directory}: {made.table('models').height:,} models, {size / 2**20:.2f} MiB")
