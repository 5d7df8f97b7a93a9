"""Base class of models: sizes, parameters and logits, with a leading model axis; independent of task and loss."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from resharpen.lazy import Tensor
from resharpen.models.initial import initial_weights
from resharpen.models.layers import Record, Tensors
from resharpen.parts.norms.rms import rms
from resharpen.parts.parameter import Parameter
from resharpen.parts.parts import Parts
from resharpen.parts.placement import SITES, Placement

Kind = Literal["placement", "norm", "attention", "positions", "dropout"]


class Misfit(ValueError):
    """A part that a model cannot use: its kind, and the reason."""

    def __init__(self, kind: Kind, why: str):
        super().__init__(why)
        self.kind: Kind = kind


def check_norm(parts: Parts) -> None:
    """Misfit for a norm function that no site of the placement uses, which would have no effect; and for one that
    cannot be used at its site."""
    sites = [site for site in SITES if getattr(parts.placement, site)]
    of_norm = [site for site in sites if parts.norm_of(site) is parts.norm]
    if parts.norm is not rms and not of_norm:
        where = "outside its own sites " if parts.norm_at else ""
        raise Misfit("norm", f"there is no norm {where}in this placement: '{parts.norm.name}' would have no effect")
    for site, part in parts.norm_at:
        if site not in sites:
            raise Misfit(
                "placement", f"there is no norm at {site} in this placement: '{part.name}' would have no effect"
            )
    for site in sites:
        if site not in (part := parts.norm_of(site)).sites:
            only, there = " and ".join(part.sites), f"{site} has a norm in this placement"
            raise Misfit("norm", f"{part.name} scales the output of a block, only at {only}, but {there}")


class Model:
    """A frozen dataclass of integers; its fields are columns of the tables of a run."""

    kind: ClassVar[str]
    reads: ClassVar[Literal["tokens", "items"]] = "tokens"
    """`tokens` [N, L], with logits after every prefix [M, N, L, V]; or `items`, with one answer per set [M, N, C]."""
    placements: ClassVar[Mapping[str, Placement]] = MappingProxyType({"none": Placement()})
    """Named placements of this model; the first is the default."""
    positions: ClassVar[str] = "nope"
    """The default position encoding."""
    takes: ClassVar[tuple[Kind, ...]] = ()
    """The kinds of parts that `parameters` and `logits` use, besides the placements above. A variant with another kind
    is refused, because it would have no effect. Every model accepts any optimizer."""

    is_module: ClassVar[bool] = False
    """Whether it is a user's torch module, which has no model axis: see `adapter.py`."""
    compiles: ClassVar[bool] = False
    """Whether torch.compile pays off in a long run; not if `logits` loops over tokens, because every iteration would be
    compiled."""
    goes_in_order: ClassVar[bool] = False
    """Whether `logits` loops over tokens: then all models and sequences are computed together."""

    @property
    def width(self) -> int:
        """Approximate size of the widest activation at a place: it determines how many models fit in the caches."""
        return 256

    @classmethod
    def usual(cls, vocabulary: int) -> Self:
        """The model with default sizes for a task with this number of tokens or answers."""
        return cls(vocabulary=vocabulary)  # pyright: ignore[reportCallIssue]

    def check(self, parts: Parts) -> None:
        """Misfit, with the reason, for a part that the model cannot use: by default every kind not in `takes`."""
        usual = Parts(next(iter(self.placements.values())))
        known = {"placement": tuple(self.placements.values())}
        if parts.norm_at and "norm" not in self.takes:
            raise Misfit("norm", f"{type(self).__name__} has no norm in its `takes`: norms would have no effect")
        for kind in get_args(Kind):
            part = getattr(parts, kind)
            if kind not in self.takes and part not in known.get(kind, (getattr(usual, kind),)):
                name = "this placement" if isinstance(part, Placement) else f"'{part.name}'"
                raise Misfit(kind, f"{type(self).__name__} has no {kind} in its `takes`: {name} would have no effect")

    def sees_order(self, parts: Parts) -> bool:
        """Whether logits after distinct tokens may depend on more than their set and the last one. If not,
        `logits_of_sets` is still compared with `logits` before it is used."""
        return True

    def parameters(self, parts: Parts) -> dict[str, Parameter]:
        """Parameters by name; the name is also the key of the random stream."""
        raise NotImplementedError

    def initial(
        self, seed: int, setting: str, draw_M: NDArray[np.int64], parts: Parts
    ) -> dict[str, NDArray[np.float32]]:
        """theta_0 of the given draws, by name, [M, ...]."""
        return initial_weights(seed, setting, draw_M, self.parameters(parts))

    def logits_of_sets(
        self, theta: Tensors, last_P: Tensor, present_PxV: Tensor, parts: Parts, hyper: Tensors, /
    ) -> Tensor:
        """If `sees_order` is false: logits after distinct tokens given as the last one and the set, [M, P, V]."""
        raise NotImplementedError

    def dispersion(self, theta: Tensors, inputs: Any, parts: Parts, hyper: Tensors, /) -> dict[str, Tensor]:
        """Statistics of the attention for reports, by name, at every scored place, [M, P]."""
        return {}

    def logits(
        self, theta: Tensors, inputs: Any, parts: Parts, hyper: Tensors, record: Record | None = None, /
    ) -> Tensor:
        """The logits; `hyper` are the hyperparameters, [M] each."""
        raise NotImplementedError
