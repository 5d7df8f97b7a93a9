"""Hyperparameter draws, schedule, optimizers and BEMA, all with a per-model axis."""

from resharpen import own
from resharpen.optim.adamw import adamw
from resharpen.optim.lion import lion
from resharpen.optim.muon import muon
from resharpen.optim.optimizer import Optimizer
from resharpen.optim.sgd import sgd

OPTIMIZERS = {part.name: part for part in (adamw, sgd, lion, muon)}


def find_optimizer(name: str) -> Optimizer:
    found = own.find_in(OPTIMIZERS, Optimizer, "optimizer", name)
    found.check()
    return found
