"""What a model is: sizes, the parameters it learns, and logits, all with a leading model axis; no task and no loss."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from resharpen.models.initial import initial_weights
from resharpen.models.layers import Record, Tensors
from resharpen.parts.norms.rms import rms
from resharpen.parts.parameter import Parameter
from resharpen.parts.parts import Parts
from resharpen.parts.placement import SITES, Placement

if TYPE_CHECKING:
    from torch import Tensor


Kind = Literal["placement", "norm", "attention", "positions", "dropout"]


class Misfit(ValueError):
    """A part that has no meaning for a model: which kind of part, and why."""

    def __init__(self, kind: Kind, why: str):
        super().__init__(why)
        self.kind: Kind = kind


def check_norm(parts: Parts) -> None:
    """Misfit for a norm function where no norm stands: it would train the same under another name; and for one that has
    no meaning where it stands."""
    sites = [site for site in SITES if getattr(parts.placement, site)]
    of_norm = [site for site in sites if parts.norm_of(site) is parts.norm]
    if parts.norm is not rms and not of_norm:
        where = "outside its own sites " if parts.norm_at else ""
        raise Misfit("norm", f"there is no norm {where}in this placement: '{parts.norm.name}' would change nothing")
    for site, part in parts.norm_at:
        if site not in sites:
            raise Misfit(
                "placement", f"there is no norm at {site} in this placement: '{part.name}' would change nothing"
            )
    for site in sites:
        if site not in (part := parts.norm_of(site)).sites:
            only, there = " and ".join(part.sites), f"{site} has a norm in this placement"
            raise Misfit("norm", f"{part.name} scales what a block adds to the stream, at {only} only, and {there}")


class Model:
    """A frozen dataclass of whole numbers; its fields are the columns that tell models apart in the tables of a run."""

    kind: ClassVar[str]
    reads: ClassVar[Literal["tokens", "items"]] = "tokens"
    """Tokens [N, L], giving logits after every prefix [M, N, L, V]; or sets of items, one answer each [M, N, C]."""
    placements: ClassVar[Mapping[str, Placement]] = MappingProxyType({"none": Placement()})
    """The placements that go by a name here; the first is taken where none is said."""
    positions: ClassVar[str] = "nope"
    """The position encoding where none is said."""
    takes: ClassVar[tuple[Kind, ...]] = ()
    """The kinds of parts that `parameters` and `logits` go by, beside the placements above. A variant with another part
    is refused: it would train the same under another name. Every model takes any optimizer."""

    is_module: ClassVar[bool] = False
    """Whether it is a torch module of the user's, which has no model axis: see `adapter.py`."""
    compiles: ClassVar[bool] = False
    """Whether torch.compile is worth its time in a long run; where `logits` goes from token to token in a loop it is
    not, because every turn of it would be compiled."""
    goes_in_order: ClassVar[bool] = False
    """Whether `logits` goes from token to token in a loop: then all models and sequences take a turn together."""

    @property
    def width(self) -> int:
        """Numbers of the widest activation at a place, about: how many models fit in the caches together."""
        return 256

    @classmethod
    def usual(cls, vocabulary: int) -> Self:
        """The sizes that are taken for a task with so many tokens, or answers, where none are said."""
        return cls(vocabulary=vocabulary)  # pyright: ignore[reportCallIssue]

    def check(self, parts: Parts) -> None:
        """Misfit, with the reason, for a part that has no meaning here: by default for all but what it takes."""
        usual = Parts(next(iter(self.placements.values())))
        known = {"placement": tuple(self.placements.values())}
        if parts.norm_at and "norm" not in self.takes:
            raise Misfit(
                "norm", f"{type(self).__name__} has no norm in its `takes`: those of sites would change nothing"
            )
        for kind in get_args(Kind):
            part = getattr(parts, kind)
            if kind not in self.takes and part not in known.get(kind, (getattr(usual, kind),)):
                name = "this placement" if isinstance(part, Placement) else f"'{part.name}'"
                raise Misfit(kind, f"{type(self).__name__} has no {kind} in its `takes`: {name} would change nothing")

    def sees_order(self, parts: Parts) -> bool:
        """Whether logits after distinct tokens depend on more than which they are and which is the last, as far as is
        declared: where not, `logits_of_sets` is still tried against `logits` before anything goes by it."""
        return True

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        """By name; the streams of what is drawn go by the name alone."""
        raise NotImplementedError

    def initial(
        self, seed: int, setting: str, draw_M: NDArray[np.int64], parts: Parts
    ) -> dict[str, NDArray[np.float32]]:
        """theta_0 of the given draws, by name, [M, ...]."""
        return initial_weights(seed, setting, draw_M, self.parameters(parts))

    def logits_of_sets(
        self, theta: Tensors, last_P: Tensor, present_PxV: Tensor, parts: Parts, hyper: Tensors, /
    ) -> Tensor:
        """Where `sees_order` is false: logits after distinct tokens given as the last one and the set, [M, P, V]."""
        raise NotImplementedError

    def dispersion(self, theta: Tensors, inputs: Any, parts: Parts, hyper: Tensors, /) -> dict[str, Tensor]:
        """What a report tells of attention besides the scores, by name, at every scored place, [M, P]."""
        return {}

    def logits(
        self, theta: Tensors, inputs: Any, parts: Parts, hyper: Tensors, record: Record | None = None, /
    ) -> Tensor:
        """What the softmax of the output is taken of; `hyper` are the hyperparameters, [M] each."""
        raise NotImplementedError
