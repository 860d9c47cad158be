"""The map of a model's sites, made by running it on a few examples: `find_sites` and `examine`.

Owns layouts and the model's own dropout with its real rates. The runs use a shadow of the model (same weights, its own
flags and buffers), so the user's model does not change. See `roles` for kinds and order, `resolution` for placements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.errors import BadInput, Phrase
from dropscope.injection.roles import Site, Sites, Value, list_sites
from dropscope.model import Call, accepted, device_of, output_tensors, random_state_kept, shadow, unwrap
from dropscope.noise import Layout
from dropscope.tracing import (
    LAYERDROP,
    About,
    Draw,
    OwnDropout,
    Point,
    Recorder,
    dropout_rate,
    is_dropout,
    is_foreign_dropout,
    is_rate,
    record,
    record_training,
)

_ROUNDING = 1e-5  # of the largest value
_TRIALS = 16
_BRANCH_RATES = {"drop_connect_rate": "drop connect", "drop_path_rate": "stochastic depth"}


@dataclass(frozen=True)
class SiteMap:
    """Everything that `examine` finds out about a model; `resolve`, `injected` and `audit` read it."""

    sites: tuple[Site, ...]
    values: Mapping[Point, Value]
    own: Mapping[Point, OwnDropout]  # dropouts called in train mode, with their rates there
    dead: tuple[str, ...]  # dropout modules that are never called
    unreachable: tuple[str, ...]  # randomness of the model's own that no site stands for, each with its reason
    always_on: tuple[str, ...]  # dropouts that run in eval too
    nondeterministic: bool  # two plain passes differ for another reason
    chained: frozenset[Point] = frozenset()  # dropouts that flow into a sum and a layer norm at once

    @property
    def has_own(self) -> bool:
        """Whether the model calls dropout of its own at a rate above 0."""
        return any(dropout.rate > 0 for dropout in self.own.values())

    def head(self) -> Site | None:
        """The final classifier layer."""
        return next((site for site in self.sites if site.kind == "head"), None)


def find_sites(model: nn.Module, example: Any) -> list[Site]:
    """Finds every place where noise can go, by running the model on an example. The model is left as it was.

    Args:
        model: Any `nn.Module`.
        example: What the model is called with: a tensor, a tuple or a dict of tensors. One example is enough. Also
            what `load_data` returns.

    Returns:
        The sites in call order: a list that prints as a table. Texts of placements use their names.

    Raises:
        BadInput: If it is no model that noise can be put into, or the model does not take the example.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> [(site.name, site.kind, site.positions[0]) for site in find_sites(net, torch.zeros(1, 4))]
        [('0', 'linear', 'after_activation'), ('1', 'activation', 'output'), ('2', 'head', 'output')]
    """
    model = unwrap(model)
    call = Call.of(example, "example").to(device_of(model))
    with accepted(call, "example"):
        return Sites(examine(model, call).sites)


def examine(model: nn.Module, call: Call) -> SiteMap:
    """Runs a shadow of the model: in eval mode at two batch sizes, to see the batch dimension, and in train mode."""
    copy = shadow(model).eval()
    with torch.no_grad(), random_state_kept():
        two, three = (record(copy, call, size) for size in (2, 3))
        again = record(copy, call, 2)
        train = record_training(copy, call)
    layouts = {point: _layout(about, two.shapes[point], three.shapes.get(point)) for point, about in two.abouts.items()}
    folded = [point for point, layout in layouts.items() if layout is not None and layout.folded > 1]
    if folded:
        layouts.update(_verified(copy, call, folded, layouts))
    with torch.no_grad(), random_state_kept():
        layouts.update(_centred(copy, call, layouts, two.shapes))
    values = {
        point: Value(about, layout, _one_example(two.shapes[point], layout))
        for point, about in two.abouts.items()
        if (layout := layouts[point]) is not None
    }
    own, unreachable = _own_dropouts(copy, train, two, values)
    return SiteMap(
        sites=tuple(list_sites(values, own)),
        values=values,
        own=own,
        dead=tuple(_dead(copy, train)),
        unreachable=(*unreachable, *_other_randomness(copy, train.draws)),
        always_on=tuple(dict.fromkeys(p.name for p, seen in two.own.items() if seen.training and seen.rate > 0)),
        nondeterministic=not _same(two.output, again.output),
        chained=frozenset(two.chains.points & three.chains.points),
    )


def _own_dropouts(
    copy: nn.Module, train: Recorder, two: Recorder, values: Mapping[Point, Value]
) -> tuple[dict[Point, OwnDropout], list[str]]:
    """The dropouts that train mode calls at a value we can disturb, and why we cannot reach the others."""
    own: dict[Point, OwnDropout] = {}
    unreachable = [text for dropout in train.lost for text in _out_of_reach(dropout)]
    with torch.no_grad(), random_state_kept():
        for point, dropout in train.own.items():
            if point not in values:
                unreachable += _out_of_reach(dropout)
                continue
            module = copy.get_submodule(point.name) if point.name in train.called else None
            measured: OwnDropout | None = dropout
            if module is not None and is_foreign_dropout(module):
                measured = _measured(module, two.shapes[point], values[point].layout.batch_dim, dropout)
            if measured is None:
                unreachable.append(f"{point.name}: {type(module).__name__} is no Bernoulli dropout that keeps the mean")
            else:
                own[point] = measured
    return own, unreachable


def _out_of_reach(dropout: OwnDropout) -> list[str]:
    if dropout.rate == 0 or not dropout.training:
        return []
    where = "that runs in train mode only"
    if dropout.point.position == "weights":
        where = "on attention weights that no product takes as they are, as in chunked attention"
    return [f"{dropout.point.name}: a dropout of rate {dropout.rate:g} {where}"]


def _dead(copy: nn.Module, train: Recorder) -> list[str]:
    """Dropout modules that nothing calls, except those whose rate an attention reads and applies itself."""
    served = {(point.name, dropout.rate) for point, dropout in train.own.items() if point.position == "weights"}
    return [
        name
        for name, module in copy.named_modules()
        if is_dropout(module)
        and name not in train.called
        and (name.rpartition(".")[0], dropout_rate(module)) not in served
    ]


def _other_randomness(copy: nn.Module, draws: Sequence[Draw]) -> list[str]:
    """What a model draws in train mode that is no dropout of a value: it is reported, never run."""
    sources = []
    for name, module in copy.named_modules():
        label = name or type(module).__name__
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            sources.append(
                f"{label}: dropout of rate {module.dropout:g} between its layers runs inside the recurrent kernel"
            )
        sources += [f"{label}: LayerDrop of rate {getattr(module, n):g}" for n in LAYERDROP if is_rate(module, n)]
    config: Any = getattr(copy, "config", None)
    if not any("LayerDrop" in text for text in sources):
        sources += [f"config: LayerDrop of rate {getattr(config, n):g}" for n in LAYERDROP if is_rate(config, n)]
    masked = next((getattr(config, n) for n in ("mask_time_prob", "mask_feature_prob") if is_rate(config, n)), 0.0)
    if getattr(config, "apply_spec_augment", False) and masked:
        sources.append(f"config: SpecAugment of rate {masked:g}")
    for draw in draws:
        sources += [text for text in _named(copy, draw, sources) if text not in sources]
    return sources


def _named(copy: nn.Module, draw: Draw, known: Sequence[str]) -> list[str]:
    """What a draw is for; nothing if `known` says it already."""
    module = copy.get_submodule(draw.path)
    label = draw.path or type(module).__name__
    if isinstance(module, nn.RNNBase) and module.dropout > 0:
        return []
    rate = _layerdrop(module) if draw.single else None
    if rate == 0:
        return [f"{label}: a draw for LayerDrop of rate 0, which drops nothing"]
    if rate is not None:
        named = any(text.startswith((f"{label}: LayerDrop", "config: LayerDrop")) for text in known)
        return [] if named else [f"{label}: LayerDrop of rate {rate:g}"]
    for name, what in _BRANCH_RATES.items():
        if is_rate(module, name):
            return [f"{label}: {what} of rate {getattr(module, name):g}"]
    return [f"{label}: random numbers from {draw.source} in train mode"]


def _layerdrop(module: nn.Module) -> float | None:
    """The rate of LayerDrop that a module reads from itself or its config; None if there is none."""
    config = getattr(module, "config", None)
    names = [name for name in LAYERDROP if hasattr(module, name)] or LAYERDROP
    rates = [getattr(holder, name, None) for holder in (module, config) for name in names]
    return max((float(rate) for rate in rates if isinstance(rate, int | float)), default=None)


def _layout(about: About, two: tuple[int, ...], three: tuple[int, ...] | None) -> Layout | None:
    """The layout, from the dimension that grew with the batch; None if that is unclear."""
    channel = 1 if about.maps or about.kind == "conv" else -1
    if three is None or len(two) != len(three):
        return None
    grown = [dim for dim, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if not grown:
        return Layout(None, 1, channel)
    a, b = two[grown[0]], three[grown[0]]
    if len(grown) > 1 or a * 3 != b * 2:
        return None
    return Layout(grown[0], a // 2, channel)


def _verified(
    copy: nn.Module, call: Call, folded: list[Point], layouts: Mapping[Point, Layout | None]
) -> dict[Point, Layout | None]:
    """Layouts of values that fold other indices into the batch dimension; None where an example's are scattered.

    Two different examples run in both orders: if the halves swap, each example owns a block of indices.
    """
    if call.examples < 2:
        call = call.with_second_example()
    keep = frozenset(folded)
    there = record(copy, call, 2, keep)
    back = record(copy, call.take([1, 0]), 2, keep)
    checked: dict[Point, Layout | None] = {}
    for point in folded:
        layout = layouts[point]
        a, b = there.kept.get(point), back.kept.get(point)
        if layout is None or layout.batch_dim is None or a is None or b is None:
            continue
        halves = torch.cat(list(b.chunk(2, layout.batch_dim))[::-1], layout.batch_dim)
        checked[point] = layout if torch.allclose(a, halves, rtol=1e-3, atol=1e-4) else None
    return checked


def _centred(
    copy: nn.Module, call: Call, layouts: Mapping[Point, Layout | None], shapes: Mapping[Point, tuple[int, ...]]
) -> dict[Point, Layout]:
    """Layouts of tables of distances between tokens, which all examples share.

    Such a table has two or four entries per token, from the farthest to the left to the farthest to the right: a longer
    text adds some at both ends. Texts that are one token shorter tell it from a table of fixed size.
    """
    length = 0 if call.tokens is None else call.tokens.shape[-1]
    found = {
        point: (replace(layout, centred=dims[0]), per_token, spare)
        for point, layout in layouts.items()
        for per_token in (2, 4)
        for spare in (0, 1)
        if layout is not None and (dims := _distances(shapes[point], layout.batch_dim, per_token * length - spare))
    }
    if length < 3 or not found:
        return {}
    if call.examples < 2:
        call = call.with_second_example()
    try:
        # The second token: what a text begins and ends with may matter to the model.
        shorter = record(copy, call.without_token(1), 2, frozenset(found))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError):
        return {}  # it takes texts of one length only, so that there is nothing to keep in place
    return {
        point: layout
        for point, (layout, per_token, spare) in found.items()
        if (value := shorter.kept.get(point)) is not None
        and value.shape[layout.centred or 0] == per_token * (length - 1) - spare
        and (layout.batch_dim is None or bool((value == value.narrow(layout.batch_dim, 0, 1)).all()))
    }


def _distances(shape: tuple[int, ...], batch_dim: int | None, size: int) -> list[int]:
    """The dimensions of a size, from the end: neither that of the examples nor the last."""
    dims = enumerate(shape[:-1], -len(shape))
    return [dim for dim, each in dims if each == size and dim + len(shape) != batch_dim]


def _one_example(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    if layout.batch_dim is None:
        return shape
    rest = [size for dim, size in enumerate(shape) if dim != layout.batch_dim]
    return tuple([layout.folded, *rest] if layout.folded > 1 else rest)


def _same(a: Any, b: Any) -> bool:
    return all(_same_tensor(x, y) for x, y in zip(output_tensors(a), output_tensors(b), strict=True))


def _same_tensor(x: Tensor, y: Tensor) -> bool:
    """To the bit; on a GPU, whose scattered sums come in any order, to rounding."""
    if torch.equal(x, y) or x.device.type == "cpu" or not x.is_floating_point():
        return torch.equal(x, y)
    return bool((x - y).abs().max() <= _ROUNDING * y.abs().max())


def require_sites(site_map: SiteMap) -> None:
    """Refuses a model without sites.

    Raises:
        BadInput: If there are none.
    """
    if not site_map.sites:
        remedy = "check that its forward calls layers"
        raise BadInput("model must have at least one place for noise", "model", Phrase("no sites"), remedy)


def _measured(
    module: nn.Module, shape: tuple[int, ...], batch_dim: int | None, dropout: OwnDropout
) -> OwnDropout | None:
    """`dropout` with the rate and mask that `module` shows in train mode; None if it is no Bernoulli dropout."""
    module.training = True
    try:
        factors = torch.stack([module(torch.ones(shape)) for _ in range(_TRIALS)])
    except (TypeError, RuntimeError):
        return dropout  # it takes more than a value, so it cannot be tried
    kept = factors != 0
    if not bool(kept.any()):
        return None
    low, high = float(factors[kept].min()), float(factors[kept].max())
    if not (math.isclose(low, high, rel_tol=1e-4) and low > 0.9999):
        return None
    rate = 1 - 1 / max(low, 1.0)
    rate = dropout.rate if math.isclose(rate, dropout.rate, abs_tol=1e-4) else rate
    mask = _mask(kept, shape, batch_dim) or dropout.mask
    rows = _TRIALS * (1 if batch_dim is None else shape[batch_dim])
    units = {"example": rows, "channel": rows * shape[1] if len(shape) > 1 else rows}.get(mask, kept.numel())
    dropped = 1 - float(kept.double().mean())
    if mask == "mixed" or abs(dropped - rate) > 6 * math.sqrt(max(rate, 1e-3) / units):
        return None
    return replace(dropout, rate=rate, mask=mask)


def _mask(kept: Tensor, shape: tuple[int, ...], batch_dim: int | None) -> str | None:
    """The kind of mask, from what was `kept` in each trial; None if nothing was dropped."""
    if bool(kept.all()):
        return None
    own = [dim for dim in range(len(shape)) if dim != batch_dim and shape[dim] > 1]
    alike = [dim for dim in own if bool((kept == kept.narrow(dim + 1, 0, 1)).all())]
    if not alike:
        return "element"
    if alike == own:
        return "example"
    return "channel" if own[0] == 1 and alike == own[1:] else "mixed"
