"""Group: after every element of a finite group, the product of all elements so far.

In Z5, where the product is addition modulo 5, after +3 comes =3, and after a further +4 comes =2:

    >>> import numpy as np
    >>> task = Group("Z5")
    >>> task.token_names
    ('+0', '+1', '+2', '+3', '+4', '=0', '=1', '=2', '=3', '=4')
    >>> p = task.p_star(np.array([[5, 3, 8, 4]]))[0, -1]  # =0, the product of nothing, +3, =3, +4
    >>> int(p.argmax()), float(p.max())
    (7, 1.0)

Elements are uniform, products determined; an element multiplies from the right. Elements and products are different
tokens. Every sequence begins with the identity as a product, and never ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from resharpen.errors import unknown
from resharpen.tasks.automaton import Automaton, Edge
from resharpen.tasks.language import Language

ORDERS = {"Z2": 2, "Z5": 5, "S3": 6, "A5": 60, "S5": 120}


@dataclass(frozen=True)
class Group(Language):
    group: str = "S3"

    kind: ClassVar[str] = "group"
    asked: ClassVar[str] = "the running product of elements of a finite group; Z2 is parity"
    answer: ClassVar[str] = "after an element the product, determined; after a product all elements equally likely"
    published: ClassVar[str] = (
        "Liu et al. 2023b: solutions of bounded depth exist (shortcuts); Merrill et al. 2024: A5 and S5 are beyond TC0"
    )
    measures: ClassVar[tuple[str, ...]] = ("tvd",)
    shown_metric: ClassVar[str] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group not in ORDERS:
            raise unknown("group", self.group, ORDERS)

    @property
    def name(self) -> str:
        return f"group-{self.group.lower()}"

    @property
    def title(self) -> str:
        return f"Products in {self.group}"

    @property
    def cap(self) -> int:
        return 32

    @property
    def longest(self) -> int:
        return 3 * self.cap

    def build_automaton(self) -> Automaton:
        """States: a product just written, and a product to be written."""
        names, table = elements(self.group)
        n = len(table)
        edges = [tuple(Edge(g, 1 / n, n + int(table[h, g])) for g in range(n)) for h in range(n)]
        edges += [(Edge(n + h, 1.0, h),) for h in range(n)]
        tokens = (*(f"+{name}" for name in names), *(f"={name}" for name in names))
        return Automaton(tokens, tokens[n:] + tuple(f"to write {name}" for name in names), tuple(edges), opening=n)


def elements(group: str) -> tuple[list[str], NDArray[np.int64]]:
    """Names of the elements, the identity first, and the table of their products, [order, order].

    Z_n are the numbers modulo n, S_n the permutations of 0 .. n-1 and A_n the even ones; (h g)(x) = h(g(x)).
    """
    n = int(group[1:])
    if group[0] == "Z":
        return [str(x) for x in range(n)], np.add.outer(np.arange(n), np.arange(n)) % n
    every = [np.array(x) for x in permutations(range(n))]
    if group[0] == "A":
        every = [x for x in every if np.triu(x[:, None] > x, 1).sum() % 2 == 0]
    names = ["".join(map(str, x)) for x in every]
    at = {name: i for i, name in enumerate(names)}
    return names, np.array([[at["".join(map(str, h[g]))] for g in every] for h in every])
