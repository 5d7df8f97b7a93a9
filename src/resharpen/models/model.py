"""What a model family is: sizes, names of parameters, a loss and scores, all with a leading model axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from resharpen.models.placement import Placement
from resharpen.models.remedies import Remedy, softmax

if TYPE_CHECKING:
    from torch import Tensor


class Model(Protocol):
    """A frozen dataclass of sizes; its fields are the columns that tell models apart in the tables of a run."""

    kind: ClassVar[str]
    placements: ClassVar[Mapping[str, Placement]]
    """The built-in placements of this family, by name."""

    def matrices(self) -> Mapping[str, tuple[int, ...]]:
        """Name and shape of what is drawn at random at the start; the same for every placement."""
        ...

    def biases(self) -> Mapping[str, tuple[int, ...]]:
        """What starts at zero."""
        ...

    def gains(self, placement: Placement) -> Mapping[str, tuple[int, ...]]:
        """What starts at one: the gains of the norms."""
        ...

    def logits(
        self,
        theta: Mapping[str, Tensor],
        inputs: Any,
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
        /,
    ) -> Tensor:
        """What the softmax of the output is taken of, with the model axis first."""
        ...

    def loss(
        self,
        theta: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """The training loss of each model on a minibatch of the task, [M]."""
        ...

    def scores(
        self,
        theta: Mapping[str, Tensor],
        examples: Sequence[Tensor],
        placement: Placement,
        epsilon_M: Tensor,
        attend: Remedy = softmax,
    ) -> Tensor:
        """The score of each model on each example of the task, [M, P]."""
        ...
