"""The Python API: define an experiment, run it, read the results, load a model.

python examples/api.py
"""

from dataclasses import replace

import polars as pl

import resharpen as rs

task = rs.SetComplement(6)
spec = rs.Experiment(
    name="api",
    settings=(rs.Setting(task, 3),),
    variants={"pre": rs.Variant("pre"), "mine": rs.Variant(rs.Placement(block_out=True, unembedding_in=True))},
    models=16,
    steps=2_000,
    checkpoints=10,
)

if __name__ == "__main__":  # workers are spawned processes: they import this file
    run = rs.run(spec, "runs/api", workers=2)

    table = rs.scores(run)  # a polars DataFrame: one row per model and kind of weights
    print(table.group_by("variant", "weights").agg(pl.col("score").quantile(0.1).alias("best TVD")))

    best = table.filter(variant="mine").sort("score").row(0, named=True)
    model = rs.load_model(run, best["model"], weights=best["weights"])
    print(best["model"], model([[0, 3], [1, 2, 4, 5]]).round(3))  # next-token probabilities
    print(model.module())  # the same as a torch.nn.Module

    run = rs.run(replace(spec, models=32), "runs/api", workers=2)  # trains only the new draws
    rs.draw(run)["figure"].savefig("runs/api/figure.png")
