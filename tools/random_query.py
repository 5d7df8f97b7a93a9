"""Train the models of examples/random_query.toml, and save their accuracies in reference/studies/anchors-query.csv:

    python tools/random_query.py

A reference holds no user code, so the page on published numbers reads this table instead. Ctrl-C keeps what is trained;
the same command continues. `none+adaptive-temperature` has the weights of `none`, which are therefore read twice.
"""

from pathlib import Path

import polars as pl
from rich.console import Console

import resharpen as rs
from resharpen.analysis.anchors import SELECTION
from resharpen.analysis.scores import scored_lengths
from resharpen.experiments.running.rescoring import rescore
from resharpen.experiments.running.runner import watched
from resharpen.signals import orderly
from resharpen.views.progress import PlainProgress

ROOT = Path(__file__).parent.parent
DRAWS = 32


def main() -> None:
    spec = rs.read_toml(ROOT / "examples" / "random_query.toml").with_changes(models=DRAWS, variants=["none"])
    with orderly() as signals:
        run = rs.run(
            spec, ROOT / "runs" / "random_query", observer=watched(PlainProgress(Console(markup=False)), signals)
        )
    if len(run.done()) < len(run.shards()):
        return
    softmax = scored_lengths(run, SELECTION).filter(weights="train", metric="accuracy")
    adaptive = rescore(run, "adaptive-temperature", SELECTION).filter(weights="train", metric="accuracy")
    draws = softmax.select("model", "draw").unique()
    adaptive = adaptive.join(draws, on="model").with_columns(variant=pl.lit("none+adaptive-temperature"))
    columns = ("variant", "draw", "length", "value")
    table = pl.concat([softmax.select(columns), adaptive.select(columns)]).sort("variant", "draw", "length")
    table.write_csv(ROOT / "reference" / "studies" / "anchors-query.csv")


if __name__ == "__main__":
    main()
