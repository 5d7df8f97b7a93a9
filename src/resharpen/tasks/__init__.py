"""Tasks with exactly known next-token distributions, one per file, by name."""

from resharpen import own
from resharpen.tasks.dyck import Dyck
from resharpen.tasks.language import Language, OwnLanguage
from resharpen.tasks.max_retrieval import Items, MaxRetrieval
from resharpen.tasks.set_complement import SetComplement
from resharpen.tasks.task import Batch, Examples, Metric, Task, TokenTask
from resharpen.tasks.tomita import Tomita
from resharpen.tasks.validation import ValidationSet

__all__ = [
    "TASKS",
    "Batch",
    "Dyck",
    "Examples",
    "Items",
    "Language",
    "MaxRetrieval",
    "Metric",
    "OwnLanguage",
    "SetComplement",
    "Task",
    "TokenTask",
    "Tomita",
    "ValidationSet",
    "find_task",
]

TASKS: dict[str, type[Task]] = {task.kind: task for task in (SetComplement, MaxRetrieval, Dyck, Tomita, OwnLanguage)}


def find_task(kind: str) -> type[Task]:
    return own.find_class(TASKS, Task, "task", kind)
