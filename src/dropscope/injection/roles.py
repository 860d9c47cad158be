"""Sites made from points: names, kinds, order of positions, and the part of the model each own dropout belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import SupportsIndex, overload

from dropscope.display import Table
from dropscope.noise import Layout
from dropscope.tracing import LAYERS, About, OwnDropout, Point

KINDS = (
    "attention",
    "ffn",
    "conv",
    "linear",
    "recurrent",
    "embedding",
    "dropout",
    "residual",
    "norm",
    "activation",
    "block",
)
_POSITIONS = ("weights", "after_activation", "output", "branch", "sum", "before_activation", "input")


@dataclass(frozen=True)
class Site:
    """A place in a model where noise can go: a layer, an attention, a residual sum, a dropout of the model itself.

    Attributes:
        name: What a placement calls it: the path of its module, with `#call` where that is called more than once.
        kind: attention, ffn, conv, linear, recurrent, embedding, dropout, residual, norm, activation, block or head.
        positions: The values that can get noise here. The first is what a placement means by the name alone.
        shape: The shape of one example's value at the first position.
        own_rate: The rate of the model's own dropout here in train mode; None if it has none.
        role: The part of the model that this dropout belongs to: attention, ffn, embedding, residual, head, hidden or
            input; None if it has none.
        module: The path of its module.
        call: The number of the call, from 0.

    Examples:
        >>> Site("fc1", "linear", ("after_activation", "output", "input"), (128,)).positions[0]
        'after_activation'
    """

    name: str
    kind: str
    positions: tuple[str, ...]
    shape: tuple[int, ...]
    own_rate: float | None = None
    role: str | None = None
    module: str = field(default="", repr=False)
    call: int = field(default=0, repr=False)


class Sites(list[Site]):
    """A list of sites that shows itself as a table: its beginning in a session or notebook, all of it when printed."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Site: ...
    @overload
    def __getitem__(self, index: slice) -> Sites: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Site | Sites:
        found = super().__getitem__(index)
        return Sites(found) if isinstance(found, list) else found

    def __repr__(self) -> str:
        return self._table().short("print the list").text()

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        rows = [
            (
                site.name,
                site.kind,
                site.positions[0],
                "×".join(map(str, site.shape)) or "scalar",
                "" if site.own_rate is None else f"{site.own_rate:g}",
            )
            for site in self
        ]
        caption = "1 site" if len(self) == 1 else f"{len(self)} sites"
        return Table(("site", "kind", "position", "shape", "own rate"), rows, caption, names=3)


@dataclass(frozen=True)
class Value:
    """What is known of the value at a point."""

    about: About
    layout: Layout
    shape: tuple[int, ...]  # of one example


def list_sites(values: Mapping[Point, Value], own: Mapping[Point, OwnDropout]) -> list[Site]:
    """Every site in call order."""
    grouped: dict[tuple[str, int], dict[str, Value]] = {}
    for point, value in values.items():
        grouped.setdefault((point.name, point.call), {})[point.position] = value
    calls: dict[str, int] = {}
    for name, _ in grouped:
        calls[name] = calls.get(name, 0) + 1
    order = {point: i for i, point in enumerate(values)}
    head = _head(values, order)
    roles = _roles(values, own, order, head)
    ranked = []
    for (name, call), positions in grouped.items():
        kinds = {value.about.kind for value in positions.values()} - {"activation"} or {"activation"}
        kind = next(k for k in KINDS if k in kinds)
        listed = _ordered(kind, positions)
        point = Point(name, call, listed[0])
        dropout = own.get(Point(name, call, "weights")) or own.get(Point(name, call, "output"))
        site = Site(
            name if calls[name] == 1 else f"{name}#{call}",
            "head" if (name, call) == head else kind,
            listed,
            positions[listed[0]].shape,
            None if dropout is None else dropout.rate,
            None if dropout is None else roles.get(dropout.point),
            name,
            call,
        )
        seen = [order[Point(name, call, position)] for position in positions]
        # A layer is listed where it is called; what encloses others, where it returns.
        ranked.append((order[point] if kind in ("block", "residual", "attention") else min(seen), site))
    return [site for _, site in sorted(ranked, key=lambda pair: pair[0])]


def _ordered(kind: str, positions: Mapping[str, Value]) -> tuple[str, ...]:
    """The positions of a site, the one that auto means first: after the activation the layer feeds, else its output."""
    order = _POSITIONS if kind not in ("residual", "block") else ("output", *_POSITIONS)
    return tuple(dict.fromkeys(position for position in order if position in positions))


def _head(values: Mapping[Point, Value], order: Mapping[Point, int]) -> tuple[str, int] | None:
    """The final classifier layer: the last layer with weights to be called."""
    layers = [
        p
        for p, v in values.items()
        if p.position == "output" and v.about.kind in ("conv", "linear", "ffn", "recurrent")
    ]
    return max(layers, key=order.__getitem__).site if layers else None


def _roles(
    values: Mapping[Point, Value],
    own: Mapping[Point, OwnDropout],
    order: Mapping[Point, int],
    head: tuple[str, int] | None,
) -> dict[Point, str]:
    """The part of the model each own dropout belongs to, by the value it is applied to and the layer after it."""
    trunk = [order[p] for p, v in values.items() if p.position in ("weights", "sum")]
    feed_forward = {(p.name, p.call) for p, v in values.items() if v.about.kind == "ffn"}
    layers = [p for p, v in values.items() if p.position == "input" and v.about.kind in LAYERS]
    embedded = any(v.about.kind == "embedding" for v in values.values())
    roles = {}
    for point in own:
        about, when = values[point].about, order[point]
        following = min((p for p in layers if order[p] > when), key=order.__getitem__, default=None)
        if point.position == "weights":
            roles[point] = "attention"
        elif about.depth == 0:
            roles[point] = "embedding" if embedded else "input"
        elif trunk and when > max(trunk):
            roles[point] = "head"
        elif about.origin in feed_forward or about.hidden:
            roles[point] = "ffn" if trunk else ("head" if following and following.site == head else "hidden")
        elif trunk:
            roles[point] = "residual"
        else:
            roles[point] = "head" if following is not None and following.site == head else "hidden"
    return roles
