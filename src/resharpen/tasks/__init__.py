"""Tasks whose next-token distribution is known exactly; one file a task."""

from resharpen.tasks.dyck import Dyck
from resharpen.tasks.language import Language, OwnLanguage
from resharpen.tasks.max_retrieval import MaxRetrieval
from resharpen.tasks.set_complement import SetComplement
from resharpen.tasks.task import Task
from resharpen.tasks.tomita import Tomita
from resharpen.tasks.validation import ValidationSet

__all__ = [
    "Dyck",
    "Language",
    "MaxRetrieval",
    "OwnLanguage",
    "SetComplement",
    "Task",
    "Tomita",
    "ValidationSet",
]
