"""Tasks whose next-token distribution is known exactly; one file a task."""

from resharpen.tasks.max_retrieval import MaxRetrieval
from resharpen.tasks.set_complement import SetComplement
from resharpen.tasks.task import Task
from resharpen.tasks.validation import ValidationSet

__all__ = ["MaxRetrieval", "SetComplement", "Task", "ValidationSet"]
