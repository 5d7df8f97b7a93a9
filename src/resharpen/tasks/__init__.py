"""Tasks with exactly known next-token distributions, one per file, by name."""

from resharpen import own
from resharpen.tasks.copying import Copy
from resharpen.tasks.counter import Counter
from resharpen.tasks.dyck import Dyck
from resharpen.tasks.flip_flop import FlipFlop
from resharpen.tasks.game import Game
from resharpen.tasks.group import Group
from resharpen.tasks.hidden_markov import HiddenMarkov
from resharpen.tasks.language import Language, OwnLanguage
from resharpen.tasks.majority import Majority
from resharpen.tasks.markov import Markov
from resharpen.tasks.max_retrieval import Items, MaxRetrieval
from resharpen.tasks.othello import Othello
from resharpen.tasks.question import QuestionTask, SeparatedTask
from resharpen.tasks.recall import Recall
from resharpen.tasks.regular import Regular
from resharpen.tasks.set_complement import SetComplement
from resharpen.tasks.shuffle import Shuffle
from resharpen.tasks.sorting import Sort
from resharpen.tasks.task import Batch, Examples, Metric, Task, TokenTask
from resharpen.tasks.tomita import Tomita
from resharpen.tasks.validation import ValidationSet
from resharpen.tasks.weighted_complement import WeightedComplement

__all__ = [
    "TASKS",
    "Batch",
    "Copy",
    "Counter",
    "Dyck",
    "Examples",
    "FlipFlop",
    "Game",
    "Group",
    "HiddenMarkov",
    "Items",
    "Language",
    "Majority",
    "Markov",
    "MaxRetrieval",
    "Metric",
    "Othello",
    "OwnLanguage",
    "QuestionTask",
    "Recall",
    "Regular",
    "SeparatedTask",
    "SetComplement",
    "Shuffle",
    "Sort",
    "Task",
    "TokenTask",
    "Tomita",
    "ValidationSet",
    "WeightedComplement",
    "find_task",
]

TASKS: dict[str, type[Task]] = {
    task.kind: task
    for task in (
        SetComplement,
        MaxRetrieval,
        Dyck,
        Tomita,
        OwnLanguage,
        FlipFlop,
        Group,
        Regular,
        Copy,
        Sort,
        Majority,
        Recall,
        Counter,
        Shuffle,
        Markov,
        HiddenMarkov,
        WeightedComplement,
        Game,
        Othello,
    )
}


def find_task(kind: str) -> type[Task]:
    return own.find_class(TASKS, Task, "task", kind)
