"""Train what a reference has not of a figure, and keep it: python tools/extend_reference.py fig2 overnight

Stopped with Ctrl-C it keeps what is finished, and goes on when called again; in another clone, or on another machine,
from the last whole shards that the reference has there.
"""

import sys
from pathlib import Path

from rich.console import Console

import resharpen as rs
from resharpen.experiments.keeping.reference import REFERENCE, Reference, write_reference
from resharpen.signals import orderly
from resharpen.views.progress import PlainProgress


def main(figure: str, scale: str) -> None:
    experiment = rs.figure(figure, scale)
    directory = Path("reference") / experiment.name
    kept = set(Reference(directory).built) if (directory / REFERENCE).exists() else set()
    with PlainProgress(Console(markup=False)) as progress, orderly() as asked:
        run = rs.run(
            experiment,
            Path("runs") / experiment.name,
            without=kept,
            on_plan=progress.plan,
            on_progress=progress.update,
            should_stop=asked.is_stopping,
        )
    if run.done():
        kept |= set(write_reference(run, rs.scores(run), directory).built)
    print(f"{directory}: {len(kept)} of {len(run.shards())} shards")


if __name__ == "__main__":
    main(*sys.argv[1:])
