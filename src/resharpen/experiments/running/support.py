"""Which engine trains which part on which model."""

from dataclasses import fields, replace

from resharpen.engines.base import Problem
from resharpen.engines.choose import why_not_native
from resharpen.errors import UserError
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import CATALOGS, parse_sum
from resharpen.models import MODELS
from resharpen.optim import find_optimizer
from resharpen.optim.schedules import find_schedule
from resharpen.parts import SITES
from resharpen.tasks import Dyck, MaxRetrieval, SetComplement

USUAL_TASKS = ((SetComplement(9), 8), (Dyck(8, 10), 700), (MaxRetrieval(), 16))
"""Tasks and training lengths for each model: the first task whose default model it is, or that it can read."""
WIDER = "*"


def usual_settings() -> list[Setting]:
    """One setting per built-in model, with its default sizes."""
    found = []
    for kind, model in MODELS.items():
        usual = [(task, length) for task, length in USUAL_TASKS if task.usual_model == kind]
        reads = [(task, length) for task, length in USUAL_TASKS if model.reads == task.reads]
        task, length = (usual or reads)[0]
        found.append(Setting(task, length, model.usual(task.vocabulary)))
    return found


def engine_of_task(experiment: Experiment) -> str:
    """Why the native engine does not train the first variant of an experiment; empty if it does."""
    return why_not_native(experiment.problem(experiment.cells()[0]))


def engine_of_part(setting: Setting, kind: str, name: str) -> str:
    """`native`, `torch` or nothing, for the model of a setting; with an asterisk if it must be wider than usual."""
    task, usual = setting.task, setting.model
    wider = [replace(usual, d_k=2)] if "d_k" in {field.name for field in fields(usual)} else []  # pyright: ignore[reportArgumentType]
    of_one_site = kind == "norm" and CATALOGS[kind][name].sites != SITES
    variant = parse_sum(f"peri+{name}" if of_one_site else name)
    trains = getattr(CATALOGS[kind][name], "trains", True)
    for model, mark in [(usual, ""), *((model, WIDER) for model in wider)]:
        try:
            parts = variant.parts(model, task.longest_input)
        except UserError:
            continue
        optimizer, schedule = find_optimizer(variant.optimizer), find_schedule(variant.schedule)
        problem = Problem(task, model, parts, setting.train_length, 1, 1, 0, optimizer, schedule)
        return ("torch" if why_not_native(problem, training=trains) else "native") + mark
    return ""
