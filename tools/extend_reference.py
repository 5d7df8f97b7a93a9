"""Train what a reference does not have yet of a figure, and keep it: python tools/extend_reference.py fig2 overnight

Ctrl-C keeps what is finished; the same command continues, in another clone or on another machine from the last whole
shards that the reference has there. With --draws only models of the first draws are trained. Settings named behind it
are trained again and replaced. With --other-variants the reference gets the figure's present list of variants, and
models of variants that are not on it are dropped:

    python tools/extend_reference.py fig3 overnight --draws 32
    python tools/extend_reference.py fig1 overnight sct-v9-s1
"""

import argparse
from pathlib import Path

from make_reference import write_reference
from rich.console import Console

import resharpen as rs
from resharpen.experiments.keeping.reference import REFERENCE, Reference
from resharpen.experiments.running.runner import watched
from resharpen.signals import orderly
from resharpen.views.progress import PlainProgress


def main(figure: str, scale: str, again: list[str], draws: int | None, other_variants: bool) -> None:
    experiment = rs.figure(figure, scale)
    directory = Path("reference") / experiment.name
    kept = set(Reference(directory).built) if (directory / REFERENCE).exists() else set()
    settings = {shard.name: shard.setting.name for shard in experiment.shards()}
    # with settings to train again, nothing else is trained
    without = {name for name in settings if settings[name] not in again} if again else kept
    if draws is not None:
        without = without | {shard.name for shard in experiment.shards() if shard.first >= draws}
    with orderly() as signals:
        run = rs.run(
            experiment,
            Path("runs") / experiment.name,
            without=without,
            observer=watched(PlainProgress(Console(markup=False)), signals),
        )
    if run.done():
        kept = set(write_reference(run, rs.scores(run), directory, again, other_variants).built)
    print(f"{directory}: {len(kept)} of {len(run.shards())} shards")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure")
    parser.add_argument("scale")
    parser.add_argument("again", nargs="*", help="settings to train again")
    parser.add_argument("--draws", type=int, help="train models of the first draws only")
    parser.add_argument("--other-variants", action="store_true", help="the figure now has other variants")
    asked = parser.parse_args()
    main(asked.figure, asked.scale, asked.again, asked.draws, asked.other_variants)
