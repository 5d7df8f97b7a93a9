"""Keep what is finished of a run in a reference, which grows: python tools/make_reference.py runs/fig1-overnight"""

import sys
from pathlib import Path

import resharpen as rs
from resharpen.experiments.keeping.reference import write_reference

for directory in sys.argv[1:]:
    run = rs.load(directory)
    made = write_reference(run, rs.scores(run), Path("reference") / run.experiment.name)
    size = sum(path.stat().st_size for path in made.directory.iterdir())
    print(f"{made.directory}: {made.table('models').height:,} models, {size / 2**20:.2f} MiB")
