"""Sites from points: names, kinds, the order of positions, and which part of the model each own dropout serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """A place for noise. `positions[0]` is what position auto means here; `shape` is one example's value there."""

    name: str
    kind: str
    positions: tuple[str, ...]
    shape: tuple[int, ...]
    own_rate: float | None = None  # the model's own dropout at this site in train mode; None where it has none
    role: str | None = (
        None  # which part of the model an own dropout belongs to: attention, ffn, embedding, residual, head
    )
    module: str = field(default="", repr=False)
    call: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Value:
    """One point as it was seen."""

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
    found = []
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
        # A layer stands where it is called; what encloses others, where it returns.
        found.append((order[point] if kind in ("block", "residual", "attention") else min(seen), site))
    return [site for _, site in sorted(found, key=lambda pair: pair[0])]


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
    """Which part of the model each of its own dropouts serves, told by what it is applied to and what comes after."""
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
