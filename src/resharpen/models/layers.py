"""What networks are made of, with a model axis: matrices, embeddings, and the parts of a variant bound to weights.

Shapes: M models, N sequences, L positions, D width, V tokens, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from resharpen.errors import UserError
from resharpen.parts.parameter import Parameter
from resharpen.parts.part import Part
from resharpen.parts.parts import Parts
from resharpen.parts.placement import SITES

if TYPE_CHECKING:
    from torch import Tensor

NORMS_AT = {"queries_keys": ("queries", "keys")}
"""The norms of a site that has several."""
WIDTHS = {"queries_keys": "d_head", "heads_out": "d_heads"}
"""What a norm is as wide as, if not as the stream. Heads share the norms of their queries and keys."""

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
"""What attention learns without any part."""

Tensors = Mapping[str, "Tensor"]
Record = dict[str, Any]
"""Filled on the way by name, where it is asked for: what a norm read and gave, attention, blocks, the stream."""


def embedding(E_MxVxD: Tensor, tokens: Tensor) -> Tensor:
    """Rows of each model's embedding, [M, *tokens.shape, D]."""
    return E_MxVxD.index_select(1, tokens.flatten()).unflatten(1, tokens.shape)


def linear(x: Tensor, W_MxIxO: Tensor) -> Tensor:
    """Each model's own matrix on its activations [M, ..., I]: one product per model, however many positions."""
    return (x.flatten(1, -2) @ W_MxIxO).unflatten(1, x.shape[1:-1])


class Bound:
    """The parts of a variant, bound to the weights and hyperparameters of the models: what `logits` builds with."""

    def __init__(self, parts: Parts, theta: Tensors, hyper: Tensors, record: Record | None = None):
        """`hyper` holds the hyperparameters by name, [M] each."""
        self.parts, self._theta, self._hyper, self.record = parts, theta, hyper, record
        self._shaped: dict[int, dict[str, Tensor]] = {}

    def norm(self, site: str, x: Tensor, block: str = "", of: str = "") -> Tensor:
        """The norm at a site of the placement, the identity where it has none; x is [M, ..., D]. `of` says which,
        where a site has several."""
        if not getattr(self.parts.placement, site):
            return x
        part, which = self.parts.norm, of or site
        found = {name: self._theta[norm_parameter(block, name, which)] for name in part.parameters}
        # [M, 1, ..., *shape]: the features of a norm are the last axis
        shaped = {name: g.view(len(g), *(1,) * (x.ndim - g.ndim), *g.shape[1:]) for name, g in found.items()}
        y = part(x, self._values(x.ndim, shaped))
        if self.record is not None:
            self.record[f"{block}{which}"] = x, y
        return y

    def residual_block(self, x: Tensor, update: Callable[[Tensor], Tensor], block: str = "") -> Tensor:
        if self.record is not None:
            self.record.setdefault("embedding", x)
        return self.close_block(x, update(self.norm("block_in", x, block)), block)

    def close_block(self, x: Tensor, y: Tensor, block: str = "") -> Tensor:
        """What a block made of the stream x, y, goes back to it."""
        x = self.norm("residual", x + self.norm("block_out", y, block), block)
        if self.record is not None:
            self.record |= {f"{block}update": y, f"{block}stream": x}
        return x

    def turned(self, q: Tensor, k: Tensor, block: str = "") -> tuple[Tensor, Tensor]:
        """Queries and keys [M, N, H, L, d_head], normalized where the placement says so, with positions in them."""
        named = {"queries": q, "keys": k}
        q, k = (self.norm("queries_keys", x, block, name) for name, x in named.items())
        return self._positions("queries_keys", q, block), self._positions("queries_keys", k, block)

    def scaled_queries(self, q: Tensor, n: Tensor, x: Tensor, block: str = "") -> Tensor:
        """Queries [M, N, H, Q, d_head] times what multiplies q . k; as in `weights`."""
        part = self.parts.attention
        if part.scale is None:
            return q
        scale = part.scale(self._values(q.ndim, self._raised(part, block, q.ndim), n=n.to(q.dtype), x=x))
        if scale.shape[-1:] not in ((), (1,)):
            raise UserError(f"{part.name} is declared as softmax: its scale must be the same for all keys of a query")
        return part.kept_shape(q, scale * q)

    def weights(self, e: Tensor, mask: Tensor, n: Tensor, x: Tensor, block: str = "") -> Tensor:
        """Attention weights [M, N, H, Q, K] from finite logits; n keys are seen, queries are made from x."""
        part = self.parts.attention
        p = self._values(e.ndim, self._raised(part, block, e.ndim), n=n.to(e.dtype), x=x)
        e = self._positions("logits", part.scaled(e, p), block)
        a = part(e, mask, p)
        if self.record is not None:
            self.record |= {f"{block}logits": e, f"{block}weights": a}
        return a

    @property
    def leaves_heads(self) -> bool:
        """Whether what the heads gather goes to W_O as it is."""
        return self.parts.attention.output is None and not self.parts.placement.heads_out

    def heads_out(self, z: Tensor, x: Tensor, block: str = "") -> Tensor:
        """What the heads gathered, side by side [M, N, Q, d_heads], on its way to W_O; queries are made from x."""
        part, z = self.parts.attention, self.norm("heads_out", z, block)
        if part.output is None:
            return z
        return part.kept_shape(z, part.output(z, self._values(z.ndim, self._raised(part, block, z.ndim), x=x)))

    def _positions(self, on: str, x: Tensor, block: str) -> Tensor:
        part = self.parts.positions
        if part.on != on:
            return x
        return part(x, self._values(x.ndim, self._raised(part, block, x.ndim)))

    def _raised(self, part: Part, block: str, ndim: int) -> dict[str, Tensor]:
        """Parameters as [M, 1, *shape, 1, ...]: what a head has lines up with the head axis."""
        found = {name: self._theta[part_parameter(block, name, part)] for name in part.parameters}
        return {name: x.view(len(x), 1, *x.shape[1:], *(1,) * (ndim - x.ndim - 1)) for name, x in found.items()}

    def _values(self, ndim: int, parameters: Tensors, **further: Any) -> Any:
        if ndim not in self._shaped:
            self._shaped[ndim] = {name: x.view(-1, *(1,) * (ndim - 1)) for name, x in self._hyper.items()}
        return Values({**self._shaped[ndim], **parameters, **further})


class Values:
    """What a part's function gets as `p`. Plain attributes: torch.compile does not follow a SimpleNamespace."""

    def __init__(self, named: Mapping[str, Any]):
        for name, value in named.items():
            setattr(self, name, value)


def norm_parameter(block: str, name: str, norm: str) -> str:
    """>>> norm_parameter("0.mlp.", "g", "block_in")
    '0.mlp.g_block_in'
    """
    return f"{block}{name}_{norm}"


def part_parameter(block: str, name: str, part: Part) -> str:
    """>>> from types import SimpleNamespace
    >>> part_parameter("0.attention.", "s", SimpleNamespace(name="ssmax"))
    '0.attention.s_ssmax'
    """
    return f"{block}{name}_{part.name}"


def norm_parameters(parts: Parts, where: Mapping[str, Iterable[str]], sizes: Mapping[str, int]) -> dict[str, Parameter]:
    """What the norms of a placement learn; `where` are the sites that each block has, "" for the model itself."""
    return {
        norm_parameter(block, name, norm): parameter.sized({"d": sizes[WIDTHS.get(site, "d")]})
        for block, sites in where.items()
        for site in sites
        if getattr(parts.placement, site)
        for norm in NORMS_AT.get(site, (site,))
        for name, parameter in parts.norm.parameters.items()
    }


def attention_parameters(parts: Parts, block: str, sizes: Mapping[str, int]) -> dict[str, Parameter]:
    """What attention and positions of one block learn."""
    found: dict[str, Parameter] = {}
    norms = {norm for site in SITES for norm in NORMS_AT.get(site, (site,))}
    for part in (parts.attention, parts.positions):
        for name, parameter in part.parameters.items():
            full = part_parameter(block, name, part)
            if full in found or part.name in norms or full.removeprefix(block) in MATRICES:
                raise ValueError(f"two learned parameters are both called '{full}': rename {part.name}")
            found[full] = parameter.sized(sizes)
    return found
