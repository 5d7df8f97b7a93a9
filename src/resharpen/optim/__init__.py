"""Hyperparameter draws, schedule, optimisers and BEMA, all with a per-model axis."""

from resharpen import own
from resharpen.optim.adamw import adamw
from resharpen.optim.lion import lion
from resharpen.optim.muon import muon
from resharpen.optim.optimiser import Optimiser
from resharpen.optim.sgd import sgd

OPTIMISERS = {part.name: part for part in (adamw, sgd, lion, muon)}


def find_optimiser(name: str) -> Optimiser:
    found = own.find_in(OPTIMISERS, Optimiser, "optimiser", name)
    found.check()
    return found
