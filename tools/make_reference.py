"""Keep the results of a run as a reference: python tools/make_reference.py runs/fig1-overnight"""

import sys
from pathlib import Path

import resharpen as rs
from resharpen.experiments.keeping.reference import write_reference

for directory in sys.argv[1:]:
    run = rs.load(directory)
    made = write_reference(run, rs.scores(run), Path("reference") / run.experiment.name)
    size = sum(path.stat().st_size for path in made.directory.iterdir())
    print(f"{made.directory}: {run.table('models').height:,} models, {size / 2**20:.2f} MiB")
