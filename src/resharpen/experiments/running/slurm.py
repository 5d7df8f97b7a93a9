"""A run as a SLURM job array: every job trains its share of the shards on one core, and can be resumed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from resharpen.errors import UserError
from resharpen.paths import here

STOPPED = 143
"""Exit code of a run that was stopped by TERM, after saving its states."""
LEAST_HOURS = 0.1
"""Jobs are signaled two minutes before their time limit."""

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=1-{jobs}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time={time}
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

cd {here} || exit
export OMP_NUM_THREADS=1
{command} --workers 1 --job "$SLURM_ARRAY_TASK_ID/{jobs}" &
worker=$!

stop() {{  # states are saved, then the worker ends with {stopped}
    kill -TERM "$worker"
    wait "$worker"
    ended=$?
}}
# two minutes before the time limit: stop, and requeue this job
again() {{
    stop
    [ $ended -ne {stopped} ] || scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
    exit $ended
}}
trap again USR1
# canceled or preempted: stop; SLURM decides about requeuing
trap 'stop; exit $ended' TERM
wait "$worker"
"""


def script(command: Sequence[str], name: str, jobs: int, hours: float) -> str:
    """The batch script; `command` is a `resharpen run` without workers and job, for the current directory."""
    if jobs < 1:
        raise UserError(f"jobs = {jobs}: must be at least 1")
    if not LEAST_HOURS <= hours < 10_000:
        raise UserError(f"hours = {hours:g}: must be at least {LEAST_HOURS} and less than 10,000")
    minutes = round(hours * 60)
    return SCRIPT.format(
        name=re.sub(r"[^A-Za-z0-9_.+-]", "_", name),
        jobs=jobs,
        time=f"{minutes // 60:02d}:{minutes % 60:02d}:00",
        here=shlex.quote(str(here())),
        command=shlex.join([sys.executable, "-m", "resharpen", *command]),
        stopped=STOPPED,
    )


def submit(text: str) -> str:
    """Submit a script to SLURM; returns the id of the job array."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise UserError("there is no sbatch on this machine: submit from a login node of the cluster, or use --dry-run")
    done = subprocess.run([sbatch, "--parsable"], input=os.fsencode(text), capture_output=True)
    said, complaint = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
    if done.returncode:
        raise UserError(f"sbatch refused the job: {complaint or f'exit code {done.returncode}'}")
    return said.split(";")[0]  # JOB;CLUSTER if there are several clusters
