"""Variants: what is compared, each a choice of parts by name, written as a sum such as `peri+log-n`.

    model        another network than the setting's, or other sizes           transformer
    placement    sites that have a norm                                       pre, post, peri, ...
    norm         norm function, at all sites or at some                       rms, layer, rezero, ...
    attention    from logits to weights                                       softmax, log-n, ...
    positions    position encoding                                            rope, nope, ...
    dropout      dropout in training                                          no-dropout, dropout
    optimizer    update of the weights                                        adamw, sgd, ...
    schedule     learning rate schedule                                       linear, cosine, ...

Kinds that a sum leaves out have their default. Those of placement and positions depend on the model; an attention that
encodes order itself has no positions by default. A norm function for one site only, such as `rezero`, applies
there, and another one of the sum at the other sites. A term may be `FILE.py:NAME`. `resharpen parts` lists all parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from resharpen import objects, own
from resharpen.errors import UserError, unknown
from resharpen.models import MODELS, Model, find_model
from resharpen.models.model import Misfit
from resharpen.optim import OPTIMIZERS
from resharpen.optim.optimizer import Optimizer
from resharpen.optim.schedule import Schedule
from resharpen.optim.schedules import SCHEDULES
from resharpen.parts import (
    ATTENTIONS,
    DROPOUTS,
    NORMS,
    PLACEMENTS,
    POSITIONS,
    SITES,
    Attention,
    Dropout,
    Norm,
    Parts,
    Placement,
    Positions,
    find_attention,
    find_dropout,
    find_norm,
    find_positions,
)
from resharpen.plain import build, known, shown, typed

DEFAULTS = {
    "norm": "rms",
    "attention": "softmax",
    "dropout": "no-dropout",
    "optimizer": "adamw",
    "schedule": "linear",
}
_KINDS = {
    "norm": Norm,
    "attention": Attention,
    "positions": Positions,
    "dropout": Dropout,
    "optimizer": Optimizer,
    "schedule": Schedule,
}
PARTS = ("placement", *_KINDS)
_ADDED = ("dropout", "schedule")
"""Kinds that earlier versions did not have: a spec contains them only if they are not the default, so that the identity
of existing shards stays the same."""
OTHERS = "others"
"""Key of a table of norm functions by site: the norm of all other sites."""
CATALOGS: dict[str, Mapping[str, Any]] = {
    "model": MODELS,
    "placement": PLACEMENTS,
    "norm": NORMS,
    "attention": ATTENTIONS,
    "positions": POSITIONS,
    "dropout": DROPOUTS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
NAME = r"[A-Za-z0-9_+-]+"
OF_THE_TASK = ("vocabulary", "classes")
"""Sizes that a spec cannot set."""


@dataclass(frozen=True)
class ModelChange:
    """Another kind of model than the setting's, or the same kind with other sizes."""

    kind: str | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    whole: bool = field(default=False, compare=False, repr=False)
    """Whether `sizes` are complete, so that none comes from the task's model."""

    def apply(self, base: Model, vocabulary: int, named: Collection[str] = ()) -> Model:
        """The model for a task whose model is `base`. The sizes that the spec sets there, `named`, also apply to a
        user's model, unless this change sets them."""
        same = self.kind in (None, base.kind)
        start = base if same else find_model(str(self.kind)).usual(vocabulary)
        names = [field.name for field in fields(start)]  # pyright: ignore[reportArgumentType]
        known(f"size of a {own.short(start.kind)}", dict(self.sizes), names)
        reach = own.is_own(start.kind) and not same and not self.whole
        of_task = {size: getattr(base, size) for size in named} if reach else {}
        if (foreign := [size for size in of_task if size not in names]) and not self.sizes:
            raise UserError(
                f"the model '{own.short(start.kind)}' does not accept {foreign[0]}, a size in [task] model "
                f"(it accepts: {', '.join(sizes_of(start)) or 'none'}): set its own sizes, "
                "as in [variant.NAME] model = { kind = ..., d = 32 }"
            )
        given = {size: x for size, x in of_task.items() if size in names} | dict(self.sizes)
        return replace(start, **given)  # pyright: ignore[reportArgumentType]

    def resolved(self, model: Model) -> ModelChange:
        """The change with all sizes explicit, including defaults and those of the task's model."""
        if self.kind is None:
            return self
        usual = type(model).usual(next(getattr(model, size) for size in OF_THE_TASK if hasattr(model, size)))
        sizes = [
            f.name
            for f in fields(model)  # pyright: ignore[reportArgumentType]
            if (f.default is not MISSING or getattr(usual, f.name) != getattr(model, f.name))
            and f.name not in OF_THE_TASK
        ]
        chosen = {**{size: getattr(model, size) for size in sizes}, **dict(self.sizes)}
        return replace(self, sizes=tuple(sorted(chosen.items())), whole=True)

    def as_data(self) -> dict[str, Any]:
        return ({"kind": self.kind} if self.kind else {}) | dict(self.sizes)


@dataclass(frozen=True)
class Variant:
    """Parts by name: built-in parts, or references to user code; None: the default of the model."""

    placement: str | Placement | None = None
    norm: str = DEFAULTS["norm"]
    attention: str = DEFAULTS["attention"]
    positions: str | None = None
    optimizer: str = DEFAULTS["optimizer"]
    model: ModelChange | None = None
    engine: str | None = None
    """The engine; None until a run starts."""
    dropout: str = DEFAULTS["dropout"]
    schedule: str = DEFAULTS["schedule"]
    norm_at: tuple[tuple[str, str], ...] = ()
    """Sites with another norm function than `norm`, and its name, in the order of SITES."""

    def __post_init__(self) -> None:
        """Replace parts and models given as Python objects by their names."""
        for kind in PARTS[1:]:
            if not isinstance(part := getattr(self, kind), str | None):
                object.__setattr__(self, kind, _name_of(kind, part))
        if not isinstance(self.model, ModelChange | None):
            object.__setattr__(self, "model", _change_to(self.model))

    def resolved(self, model: Model) -> Variant:
        """The same with all parts explicit, for a model."""
        placement = self.placement or next(iter(model.placements))
        if isinstance(placement, str) and placement not in model.placements:
            if placement in PLACEMENTS:
                raise UserError(f"a {own.short(model.kind)} has no placement '{placement}'{_fit(model.placements)}")
            raise unknown("placement", placement, model.placements)
        network, positions = self.model and self.model.resolved(model), self.positions or self.usual_positions(model)
        return replace(self, placement=placement, positions=positions, model=network)

    def usual_positions(self, model: Model) -> str:
        return "nope" if find_attention(self.attention).orders else type(model).positions

    def parts(self, model: Model, longest: int | None = None) -> Parts:
        """The parts; UserError if the model cannot use one of them. `longest` is the task's longest input."""
        whole = self.resolved(model)
        placement, positions = whole.placement, whole.positions
        assert placement is not None
        assert positions is not None
        found = Parts(
            model.placements[placement] if isinstance(placement, str) else placement,
            find_norm(self.norm),
            find_attention(self.attention),
            find_positions(positions),
            find_dropout(self.dropout),
            tuple((site, find_norm(name)) for site, name in self.norm_at),
            longest=longest,
        )
        try:
            model.check(found)
        except Misfit as misfit:
            fits = [name for name, part in _candidates(misfit.kind, model) if _fits(model, found, misfit.kind, part)]
            raise UserError(f"{misfit}{_fit(fits)}") from misfit
        return found

    def columns(self, model: Model) -> dict[str, str]:
        """Every part by name, as in the tables of a run."""
        whole = self.resolved(model)
        named = {"placement": placement_name(whole.placement)} | {name: getattr(whole, name) for name in PARTS[1:]}
        return named | {"norm": " & ".join([self.norm, *(f"{name} at {site}" for site, name in self.norm_at)])}

    def references(self) -> list[str]:
        """References to user code."""
        named = [getattr(self, name) for name in PARTS] + [name for _, name in self.norm_at]
        names = [*named, self.model and self.model.kind]
        return [name for name in names if isinstance(name, str) and own.is_own(name)]

    def as_data(self) -> dict[str, Any]:
        """The argument of `from_table` that gives this variant."""
        data = {name: getattr(self, name) for name in (*PARTS, "engine")}
        data = {name: x for name, x in data.items() if name not in _ADDED or x != DEFAULTS[name]}
        if self.norm_at:
            data["norm"] = {OTHERS: self.norm, **dict(self.norm_at)}
        if isinstance(self.placement, Placement):
            data["placement"] = asdict(self.placement)
        return data | ({"model": self.model.as_data()} if self.model else {})


def sizes_of(model: Model) -> list[str]:
    """The sizes that a spec can set."""
    return [field.name for field in fields(model) if field.name not in OF_THE_TASK]  # pyright: ignore[reportArgumentType]


def _name_of(kind: str, part: Any) -> str:
    """The name of a part given as an object, which must be of that kind."""
    for name, built_in in CATALOGS[kind].items():
        if part is built_in:
            return name
    if not isinstance(part, _KINDS[kind]):
        raise UserError(f"{kind} = {shown(part)}: must be a name, FILE.py:NAME, or a function with @rs.{kind}")
    return objects.refer(part)


def _change_to(model: Any) -> ModelChange:
    """The change to a model given as a class, an instance or a name."""
    if isinstance(model, str):
        return ModelChange(own.refer(model) if own.is_own(model) else model)
    makes = isinstance(model, type | FunctionType)
    if not makes and not isinstance(model, Model):
        raise UserError(
            f"model = {shown(model)}: must be a name, FILE.py:NAME, a class, or a model of a class of rs.Model"
        )
    kind: Any = model if makes else type(model)
    name = kind.kind if MODELS.get(getattr(kind, "kind", "")) is kind else objects.refer(kind)
    find_model(name)
    given = [] if makes else sizes_of(model)
    return ModelChange(name, tuple(sorted((size, getattr(model, size)) for size in given)))


def _candidates(kind: str, model: Model) -> Iterable[tuple[str, Any]]:
    """Built-in parts of a kind that a model could be trained with."""
    catalog = model.placements if kind == "placement" else CATALOGS[kind]
    return [(name, part) for name, part in catalog.items() if getattr(part, "trains", True)]


def _fit(names: Collection[str]) -> str:
    return f"; {', '.join(names)} fit{'s' * (len(names) == 1)}" if names else ""


def _fits(model: Model, parts: Parts, kind: str, part: Any) -> bool:
    try:
        model.check(replace(parts, **{kind: part}))
    except Misfit:
        return False
    return True


def placement_name(placement: str | Placement | None) -> str:
    """>>> placement_name(Placement(block_in=True, residual=True)), placement_name(Placement()), placement_name("peri")
    ('block_in & residual', 'no norm', 'peri')
    """
    if not isinstance(placement, Placement):
        return str(placement)
    return " & ".join(site for site in SITES if getattr(placement, site)) or "no norm"


def sum_name(variant: Variant, model: Model) -> str:
    """The default name of a resolved variant: the sum of its parts that are not defaults."""
    usual = {"positions": variant.usual_positions(model), **DEFAULTS}
    further = [getattr(variant, name) for name in PARTS[1:] if getattr(variant, name) != usual[name]]
    further += [name for _, name in variant.norm_at]
    network = [variant.model.kind] if variant.model and variant.model.kind else []
    no_choice = model.is_module or (model.kind in MODELS and len(model.placements) == 1)
    placement = [] if network and no_choice else [variant.placement]
    return "+".join(own.short(str(x)) for x in (*network, *placement, *further))


def meaning(name: str) -> Variant | None:
    """The variant that a name means as a sum of built-in parts, or None."""
    try:
        return None if own.is_own(name) else parse_sum(name)
    except UserError:
        return None


def parse_sum(text: str, base: Path | None = None) -> Variant:
    """A variant from a sum of names; files are relative to `base`.

    >>> variant = parse_sum("log-n+peri+rezero")
    >>> variant.placement, variant.attention, variant.norm, variant.norm_at
    ('peri', 'log-n', 'rms', (('block_out', 'rezero'),))
    """
    chosen: dict[str, Any] = {}
    norm_at: dict[str, str] = {}
    for term in _terms(text, base):
        reference = own.refer(term, base) if own.is_own(term) else term
        kind = _kind_of(reference)
        if kind == "norm" and (sites := find_norm(reference).sites) != SITES:
            if taken := [site for site in sites if site in norm_at]:
                raise UserError(f"variant '{text}' has two norms at {taken[0]}: {norm_at[taken[0]]} and {reference}")
            norm_at |= dict.fromkeys(sites, reference)
            continue
        if kind in chosen:
            raise UserError(f"variant '{text}' has two parts of one kind ({kind}): {chosen[kind]} and {reference}")
        chosen[kind] = reference
    if "model" in chosen:
        chosen["model"] = ModelChange(chosen["model"])
    return Variant(**chosen, norm_at=_by_site(norm_at))


def _by_site(norm_at: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((site, norm_at[site]) for site in SITES if site in norm_at)


def _terms(text: str, base: Path | None) -> list[str]:
    """The terms of a sum. The path of a user's file may contain a '+', so terms before FILE.py may belong to it."""
    terms: list[str] = []
    for piece in (piece.strip() for piece in text.split("+")):
        terms.append(piece)
        starts = range(len(terms) - 1, -1, -1) if own.is_own(piece) else ()
        first = next((i for i in starts if own.is_there("+".join(terms[i:]), base)), len(terms) - 1)
        terms[first:] = ["+".join(terms[first:])]
    return terms


def _kind_of(name: str) -> str:
    """The kind of part of a term."""
    if own.is_own(name):
        found = own.find(name)
        if isinstance(found, type) and issubclass(found, Model):
            return "model"
        for kind, part in _KINDS.items():
            if isinstance(found, part):
                return kind
        from resharpen.models.adapter import makes_modules

        if makes_modules(found):
            return "model"
        what = ", ".join(f"@rs.{kind}" for kind in _KINDS)
        raise UserError(f"'{name}' is not a part of a variant: use one of {what}, a torch.nn.Module or an rs.Model")
    for kind, catalog in CATALOGS.items():
        if name in catalog:
            return kind
    raise unknown("variant", name, [name for catalog in CATALOGS.values() for name in catalog])


def from_table(name: str, table: Any, refer: Callable[[str], str]) -> Variant:
    """A variant from a [variant.NAME] table of a TOML file, or from `as_data`; `refer` resolves names."""
    where = f"[variant.{name}]"
    if not re.fullmatch(NAME, name):
        raise UserError(f"variant name {name!r}: allowed are letters, digits, '-', '_' and '+'")
    data = dict(typed(f"variant.{name}", table, dict))
    known(f"key in {where}", data, (*PARTS, "model", "engine"))
    if isinstance(data.get("placement"), dict):
        data["placement"] = _placement(name, data["placement"])
    elif data.get("placement") is not None:
        typed(
            f"placement in {where}", data["placement"], str, "a name or a table of sites, such as { block_in = true }"
        )
    if isinstance(data.get("model"), str):
        data["model"] = {"kind": data["model"]}
    if data.get("model") is not None:
        data["model"] = _model_change(where, typed(f"model in {where}", data["model"], dict), refer)
    norms = data.get("norm")
    if isinstance(norms, dict):
        known(f"site in [variant.{name}.norm]", norms, (*SITES, OTHERS))
        given = {site: refer(typed(f"{site} of norm in {where}", x, str)) for site, x in norms.items()}
        data["norm"] = given.pop(OTHERS, DEFAULTS["norm"])
        data["norm_at"] = _by_site({site: x for site, x in given.items() if x != data["norm"]})
    elif isinstance(norms, str) and norms in NORMS and (sites := NORMS[norms].sites) != SITES:
        data["norm"], data["norm_at"] = None, _by_site(dict.fromkeys(sites, norms))
    for part in (part for part in PARTS if isinstance(data.get(part), str)):
        data[part] = refer(data[part])
    for part in (*PARTS[1:], "engine"):
        if data.get(part) is not None:
            typed(f"{part} in {where}", data[part], str)
    return Variant(**{key: value for key, value in data.items() if value is not None})


def _placement(name: str, table: Mapping[str, Any]) -> Placement:
    known(f"site in [variant.{name}.placement]", table, SITES)
    return build(Placement, table, f"[variant.{name}.placement]")


def _model_change(where: str, table: Mapping[str, Any], refer: Callable[[str], str]) -> ModelChange:
    kind = table.get("kind")
    if kind is not None:
        kind = refer(typed(f"kind of model in {where}", kind, str))
        find_model(kind)
    sizes = {size: typed(f"{size} in {where}", value, int) for size, value in table.items() if size != "kind"}
    return ModelChange(kind, tuple(sorted(sizes.items())), whole=refer is own.stored)


def choose(names: Iterable[str], own_variants: Mapping[str, Variant], base: Path | None = None) -> dict[str, Variant]:
    """Variants by name: those of the user's tables, and sums of parts, which are renamed by `sum_name` later."""
    chosen: dict[str, Variant] = {}
    for name in names:
        typed("variants", name, str, "a list of texts")
        if name in chosen:
            raise UserError(f"variant '{name}' is given twice")
        chosen[name] = own_variants[name] if name in own_variants else parse_sum(name, base)
    return chosen
