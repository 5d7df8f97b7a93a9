"""Building blocks of networks, with a model axis: matrices, embeddings, and the parts of a variant bound to weights.

Shapes: M models, N sequences, L positions, D width, V tokens, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from resharpen.errors import UserError
from resharpen.lazy import Tensor
from resharpen.parts.moment import Moment, uniforms
from resharpen.parts.parameter import Parameter
from resharpen.parts.part import ALWAYS, Part
from resharpen.parts.parts import Parts
from resharpen.parts.placement import SITES

NORMS_AT = {"queries_keys": ("queries", "keys")}
"""The norms of a site that has several."""
WIDTHS = {"queries_keys": "d_head", "heads_out": "d_heads"}
"""Site -> size of its norm, if it is not d. Heads share the norms of their queries and keys."""

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
"""Parameters of attention itself."""

Tensors = Mapping[str, "Tensor"]
Record = dict[str, Any]
"""Recorded activations by name: input and output of norms, attention, blocks, the residual stream."""


def embedding(E_MxVxD: Tensor, tokens: Tensor) -> Tensor:
    """Rows of each model's embedding, [M, *tokens.shape, D]."""
    return E_MxVxD.index_select(1, tokens.flatten()).unflatten(1, tokens.shape)


def linear(x: Tensor, W_MxIxO: Tensor) -> Tensor:
    """Multiply the activations [M, ..., I] of each model by its matrix: one product per model."""
    return (x.flatten(1, -2) @ W_MxIxO).unflatten(1, x.shape[1:-1])


class Bound:
    """The parts of a variant, bound to the weights and hyperparameters of the models; used by `logits`."""

    def __init__(self, parts: Parts, theta: Tensors, hyper: Tensors, record: Record | None = None):
        """`hyper` holds the hyperparameters by name, [M] each."""
        self.parts, self._theta, self._hyper, self.record = parts, theta, hyper, record
        self._shaped: dict[int, dict[str, Tensor]] = {}
        self._kept: dict[str, dict[str, Tensor]] = {}

    def norm(self, site: str, x: Tensor, block: str = "", of: str = "") -> Tensor:
        """The norm at a site, the identity if the placement has none there; x is [M, ..., D]. `of` selects one if a
        site has several."""
        if not getattr(self.parts.placement, site):
            return x
        part, which = self.parts.norm_of(site), of or site
        found = {name: self._theta[norm_parameter(block, name, which)] for name in part.parameters}
        y = part(x, self._values(f"{block}{which}", x, _of_features(found, x.ndim)))
        if self.record is not None:
            self.record[f"{block}{which}"] = x, y
        return y

    def embedded(self, x: Tensor) -> Tensor:
        """The embedding [M, N, L, D] with positions, if they act on it, and its norm: input of the first block."""
        part = self.parts.positions
        if part.on == "embedding":
            found = {name: self._theta[part_parameter("", name, part)] for name in part.parameters}
            x = part(x, self._values(part.name, x, _of_features(found, x.ndim)))
        return self.norm("embedding_out", x)

    def dropped(self, on: str, x: Tensor, block: str = "", row_N: Tensor | None = None) -> Tensor:
        """Attention weights, or the output of a block, after dropout; unchanged when a model is scored."""
        part = self.parts.dropout
        if self.parts.moment is None or on not in part.on:
            return x
        return part(x, self._values(f"{block}{part.name} {on}", x, {}, row_N))

    def residual_block(self, x: Tensor, update: Callable[[Tensor], Tensor], block: str = "") -> Tensor:
        if self.record is not None:
            self.record.setdefault("embedding", x)
        return self.close_block(x, update(self.norm("block_in", x, block)), block)

    def close_block(self, x: Tensor, y: Tensor, block: str = "") -> Tensor:
        """Add the output y of a block to the residual stream x, with their norms and dropout."""
        x = self.norm("residual", x + self.dropped("block_out", self.norm("block_out", y, block), block), block)
        if self.record is not None:
            self.record |= {f"{block}update": y, f"{block}stream": x}
        return x

    def turned(self, q: Tensor, k: Tensor, block: str = "") -> tuple[Tensor, Tensor]:
        """Queries and keys [M, N, H, L, d_head] after the norm, if the placement has one, and positions."""
        named = {"queries": q, "keys": k}
        q, k = (self.norm("queries_keys", x, block, name) for name, x in named.items())
        part = self.parts.positions
        if part.on != "queries_keys":
            return q, k
        return part.turned(q, k, self._values(part.name, q, self._raised(part, block, q.ndim)))

    def scaled_queries(self, q: Tensor, n: Tensor, x: Tensor, block: str = "") -> Tensor:
        """Queries [M, N, H, Q, d_head] times the scale of q . k; arguments as in `weights`."""
        part = self.parts.attention
        if part.scale is None:
            return q
        named = self._raised(part, block, q.ndim) | {"n": n.to(q.dtype), "x": x}
        scale = part.scale(self._values(f"{block}{part.name}", q, named))
        if scale.shape[-1:] not in ((), (1,)):
            raise UserError(f"{part.name} is declared as softmax: its scale must be the same for all keys of a query")
        return part.kept_shape(q, scale * q)

    def weights(
        self, e: Tensor, mask: Tensor, n: Tensor, x: Tensor, block: str = "", row_N: Tensor | None = None
    ) -> Tensor:
        """Attention weights [M, N, H, Q, K] from finite logits; n is the number of visible keys, x the input of the
        queries. `row_N` are the sequences, if they are a subset of the minibatch."""
        part, positions = self.parts.attention, self.parts.positions
        named = self._raised(part, block, e.ndim) | {"n": n.to(e.dtype), "x": x}
        p = self._values(f"{block}{part.name}", e, named, row_N)
        e = part.scaled(e, p)
        if positions.on == "logits":
            of_positions = self._raised(positions, block, e.ndim) | {"kept": self._kept.setdefault(block, {})}
            e = positions(e, self._values(positions.name, e, of_positions, row_N))
        a = part(e, mask, p)
        if self.record is not None:
            self.record |= {f"{block}logits": e, f"{block}weights": a}
        return self.dropped("weights", a, block, row_N)

    @property
    def leaves_heads(self) -> bool:
        """Whether the output of the heads goes to W_O unchanged."""
        return self.parts.attention.output is None and not self.parts.placement.heads_out

    def heads_out(self, z: Tensor, x: Tensor, block: str = "") -> Tensor:
        """The concatenated outputs of the heads [M, N, Q, d_heads], as input of W_O; x is the input of the queries."""
        part, z = self.parts.attention, self.norm("heads_out", z, block)
        if part.output is None:
            return z
        p = self._values(f"{block}{part.name} output", z, self._raised(part, block, z.ndim) | {"x": x})
        return part.kept_shape(z, part.output(z, p))

    def _raised(self, part: Part, block: str, ndim: int) -> dict[str, Tensor]:
        """Parameters as [M, 1, *shape, 1, ...], so that an axis of heads lines up."""
        found = {name: self._theta[part_parameter(block, name, part)] for name in part.parameters}
        return {name: x.view(len(x), 1, *x.shape[1:], *(1,) * (ndim - x.ndim - 1)) for name, x in found.items()}

    def _values(self, name: str, x: Tensor, parameters: Mapping[str, Any], row_N: Tensor | None = None) -> Any:
        """The argument `p` of a part; `name` is the key of its random numbers."""
        if x.ndim not in self._shaped:
            self._shaped[x.ndim] = {name: h.view(-1, *(1,) * (x.ndim - 1)) for name, h in self._hyper.items()}
        named, moment = {**self.parts.sizes, **self._shaped[x.ndim], **parameters}, self.parts.moment
        if moment is None:
            return Values({**named, "training": False})
        if row_N is not None:
            moment = moment._replace(row_N=row_N)
        in_training = {"training": True, "t": moment.t, "steps": moment.steps, "lengths": moment.length_N}
        return Values({**named, **in_training, "uniform": Uniform(moment, name, x.shape[1])})


class Uniform:
    """p.uniform: different random numbers at every call."""

    def __init__(self, moment: Moment, name: str, n: int):
        self._moment, self._name, self._n, self._calls = moment, name, n, 0

    def __call__(self, *shape: int, shared: bool = False) -> Tensor:
        self._calls += 1
        return uniforms(self._moment, f"{self._name} {self._calls}", None if shared else self._n, shape)


class Values:
    """The argument `p` of a part's function. Plain attributes, because torch.compile cannot trace a SimpleNamespace."""

    def __init__(self, named: Mapping[str, Any]):
        for name, value in named.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ALWAYS:
            raise NoValue(f"p.{name} exists in training only: check p.training first")
        raise NoValue(f"p.{name} does not exist; available: {', '.join(f'p.{name}' for name in sorted(vars(self)))}")


class NoValue(UserError, AttributeError):
    """A part uses an attribute that `p` does not have."""


def _of_features(parameters: Tensors, ndim: int) -> dict[str, Tensor]:
    """Parameters as [M, 1, ..., *shape]: features are the last axis."""
    return {name: g.view(len(g), *(1,) * (ndim - g.ndim), *g.shape[1:]) for name, g in parameters.items()}


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
    """Parameters of the norms of a placement; `where` are the sites that each block has, "" for the model itself."""
    return {
        norm_parameter(block, name, norm): parameter.sized({"d": sizes[WIDTHS.get(site, "d")]})
        for block, sites in where.items()
        for site in sites
        if getattr(parts.placement, site)
        for norm in NORMS_AT.get(site, (site,))
        for name, parameter in parts.norm_of(site).parameters.items()
    }


def attention_parameters(parts: Parts, block: str, sizes: Mapping[str, int]) -> dict[str, Parameter]:
    """Parameters of attention and positions of one block."""
    found: dict[str, Parameter] = {}
    norms = {norm for site in SITES for norm in NORMS_AT.get(site, (site,))}
    in_blocks = (parts.attention,) if parts.positions.on == "embedding" else (parts.attention, parts.positions)
    for part in in_blocks:
        for name, parameter in part.parameters.items():
            full = part_parameter(block, name, part)
            if full in found or part.name in norms or full.removeprefix(block) in MATRICES:
                raise ValueError(f"two learned parameters are both called '{full}': rename {part.name}")
            found[full] = parameter.sized({"pairs": sizes["heads"] // 2, **sizes, **parts.sizes})
    return found


def embedding_parameters(parts: Parts, sizes: Mapping[str, int]) -> dict[str, Parameter]:
    """Parameters of positions on the embedding."""
    part = parts.positions
    if part.on != "embedding":
        return {}
    known = {**sizes, **parts.sizes}
    return {part_parameter("", name, part): parameter.sized(known) for name, parameter in part.parameters.items()}
