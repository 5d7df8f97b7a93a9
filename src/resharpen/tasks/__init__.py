"""Tasks with exactly known next-token distributions, one per file, by name."""

from resharpen import own
from resharpen.tasks.copying import Copy as Copy
from resharpen.tasks.counter import Counter as Counter
from resharpen.tasks.dyck import Dyck as Dyck
from resharpen.tasks.flip_flop import FlipFlop as FlipFlop
from resharpen.tasks.game import Game as Game
from resharpen.tasks.group import Group as Group
from resharpen.tasks.hidden_markov import HiddenMarkov as HiddenMarkov
from resharpen.tasks.language import Language as Language
from resharpen.tasks.language import OwnLanguage as OwnLanguage
from resharpen.tasks.majority import Majority as Majority
from resharpen.tasks.markov import Markov as Markov
from resharpen.tasks.max_retrieval import Items as Items
from resharpen.tasks.max_retrieval import MaxRetrieval as MaxRetrieval
from resharpen.tasks.othello import Othello as Othello
from resharpen.tasks.question import QuestionTask as QuestionTask
from resharpen.tasks.question import SeparatedTask as SeparatedTask
from resharpen.tasks.recall import Recall as Recall
from resharpen.tasks.regular import Regular as Regular
from resharpen.tasks.set_complement import SetComplement as SetComplement
from resharpen.tasks.shuffle import Shuffle as Shuffle
from resharpen.tasks.sorting import Sort as Sort
from resharpen.tasks.task import Batch as Batch
from resharpen.tasks.task import Examples as Examples
from resharpen.tasks.task import Metric as Metric
from resharpen.tasks.task import Task as Task
from resharpen.tasks.task import TokenTask as TokenTask
from resharpen.tasks.tomita import Tomita as Tomita
from resharpen.tasks.validation import ValidationSet as ValidationSet
from resharpen.tasks.weighted_complement import WeightedComplement as WeightedComplement

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
