"""Learning rate schedules, by name: one file each."""

from resharpen import own
from resharpen.optim.schedule import Schedule
from resharpen.optim.schedules.constant import constant
from resharpen.optim.schedules.cosine import cosine
from resharpen.optim.schedules.linear import linear
from resharpen.optim.schedules.wsd import wsd

SCHEDULES = {part.name: part for part in (linear, cosine, constant, wsd)}


def find_schedule(name: str) -> Schedule:
    return own.find_in(SCHEDULES, Schedule, "schedule", name)
