"""The map of a model's sites, made by running it on a few examples: `find_sites` and `examine`.

Owns layouts and the model's own dropout with its real rates. The runs happen on a shadow of the model (same weights,
own flags and buffers), so nothing of the user's moves. See `roles` for kinds and order, `resolution` for placements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.errors import BadInput
from dropscope.injection.roles import Site, Value, list_sites
from dropscope.model import Call, accepted, output_tensors, random_state_kept, shadow, unwrap
from dropscope.noise import Layout
from dropscope.tracing import (
    LAYERDROP,
    About,
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

_TRIALS = 16


@dataclass(frozen=True)
class SiteMap:
    """Everything `examine` learnt of a model: read by `resolve`, `injection` and `audit`."""

    sites: tuple[Site, ...]
    values: Mapping[Point, Value]
    own: Mapping[Point, OwnDropout]  # dropouts called in train mode, with their rates there
    dead: tuple[str, ...]  # dropout modules that are never called
    unreachable: tuple[str, ...]  # randomness of the model's own that no site stands for, each with its reason
    always_on: tuple[str, ...]  # dropouts that run in eval too
    nondeterministic: bool  # two plain passes differ for another reason
    chained: frozenset[Point] = frozenset()  # dropouts that flow into a sum and a layer norm at once

    def head(self) -> Site | None:
        return next((site for site in self.sites if site.kind == "head"), None)


def find_sites(model: nn.Module, example: Any) -> list[Site]:
    """Every site of `model` in call order, seen by running it on `example` (a tensor, a tuple or a dict of tensors).

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> [(site.name, site.kind, site.positions[0]) for site in find_sites(net, torch.zeros(1, 4))]
    [('0', 'linear', 'after_activation'), ('1', 'activation', 'output'), ('2', 'head', 'output')]
    """
    call = Call.of(example)
    with accepted(call):
        return list(examine(unwrap(model), call).sites)


def examine(model: nn.Module, call: Call) -> SiteMap:
    """Runs a shadow of the model: in eval at two batch sizes (which dimension counts examples?), once in train mode."""
    copy = shadow(model).eval()
    with torch.no_grad(), random_state_kept():
        two, three = (record(copy, call, size) for size in (2, 3))
        again = record(copy, call, 2)
        train = record_training(copy, call)
    layouts = {point: _layout(about, two.shapes[point], three.shapes.get(point)) for point, about in two.abouts.items()}
    folded = [point for point, layout in layouts.items() if layout is not None and layout.folded > 1]
    if folded:
        layouts.update(_verified(copy, call, folded, layouts))
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
        unreachable=(*unreachable, *_other_randomness(copy)),
        always_on=tuple(dict.fromkeys(p.name for p, found in two.own.items() if found.training and found.rate > 0)),
        nondeterministic=not _same(two.output, again.output),
        chained=frozenset(two.chains.found & three.chains.found),
    )


def _own_dropouts(
    copy: nn.Module, train: Recorder, two: Recorder, values: Mapping[Point, Value]
) -> tuple[dict[Point, OwnDropout], list[str]]:
    """The dropouts that train mode calls at a value we can disturb, and why the others are out of reach."""
    own, unreachable = {}, []
    with torch.no_grad(), random_state_kept():
        for point, found in train.own.items():
            if point not in values:
                unreachable += [f"{point.name}: a dropout of rate {found.rate:g} that runs in train mode only"] * (
                    found.rate > 0
                )
                continue
            module = copy.get_submodule(point.name) if point.name in train.called else None
            shown: OwnDropout | None = found
            if module is not None and is_foreign_dropout(module):
                shown = _tried(module, two.shapes[point], values[point].layout.batch_dim, found)
            if shown is None:
                unreachable.append(f"{point.name}: {type(module).__name__} is no Bernoulli dropout that keeps the mean")
            else:
                own[point] = shown
    return own, unreachable


def _dead(copy: nn.Module, train: Recorder) -> list[str]:
    """Dropout modules that nothing calls, but for those whose rate an attention reads and applies by itself."""
    served = {(point.name, found.rate) for point, found in train.own.items() if point.position == "weights"}
    return [
        name
        for name, module in copy.named_modules()
        if is_dropout(module)
        and name not in train.called
        and (name.rpartition(".")[0], dropout_rate(module)) not in served
    ]


def _other_randomness(copy: nn.Module) -> list[str]:
    """What a model draws in train mode that is no dropout of a value: said, never run."""
    found = []
    for name, module in copy.named_modules():
        label = name or type(module).__name__
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            found.append(
                f"{label}: dropout of rate {module.dropout:g} between its layers runs inside the recurrent kernel"
            )
        found += [f"{label}: LayerDrop of rate {getattr(module, n):g}" for n in LAYERDROP if is_rate(module, n)]
    config: Any = getattr(copy, "config", None)
    if not any("LayerDrop" in text for text in found):
        found += [f"config: LayerDrop of rate {getattr(config, n):g}" for n in LAYERDROP if is_rate(config, n)]
    if getattr(config, "apply_spec_augment", False) and getattr(config, "mask_time_prob", 0):
        found.append(f"config: SpecAugment of rate {config.mask_time_prob:g}")
    return found


def _layout(about: About, two: tuple[int, ...], three: tuple[int, ...] | None) -> Layout | None:
    """Which dimension grew with the batch; None where that cannot be told."""
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
    """Layouts of values that fold other indices into the example dimension, kept where an example's lie together.

    Two different examples in both orders: if the halves swap, each example owns a block of indices.
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


def _one_example(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    if layout.batch_dim is None:
        return shape
    rest = [size for dim, size in enumerate(shape) if dim != layout.batch_dim]
    return tuple([layout.folded, *rest] if layout.folded > 1 else rest)


def _same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(output_tensors(a), output_tensors(b), strict=True))


def require_sites(site_map: SiteMap) -> None:
    if not site_map.sites:
        raise BadInput(
            "a model needs at least one place for noise", "sites found", 0, "check that its forward calls layers"
        )


def _tried(module: nn.Module, shape: tuple[int, ...], batch_dim: int | None, found: OwnDropout) -> OwnDropout | None:
    """`found` with the rate and mask that `module` shows in train mode; None where it is no Bernoulli dropout."""
    module.training = True
    try:
        factors = torch.stack([module(torch.ones(shape)) for _ in range(_TRIALS)])
    except (TypeError, RuntimeError):
        return found  # it takes more than a value: its own word is all there is
    kept = factors != 0
    if not bool(kept.any()):
        return None
    low, high = float(factors[kept].min()), float(factors[kept].max())
    if not (math.isclose(low, high, rel_tol=1e-4) and low > 0.9999):
        return None
    rate = 1 - 1 / max(low, 1.0)
    rate = found.rate if math.isclose(rate, found.rate, abs_tol=1e-4) else rate
    mask = _mask(kept, shape, batch_dim) or found.mask
    rows = _TRIALS * (1 if batch_dim is None else shape[batch_dim])
    units = {"example": rows, "channel": rows * shape[1] if len(shape) > 1 else rows}.get(mask, kept.numel())
    dropped = 1 - float(kept.double().mean())
    if mask == "mixed" or abs(dropped - rate) > 6 * math.sqrt(max(rate, 1e-3) / units):
        return None
    return replace(found, rate=rate, mask=mask)


def _mask(kept: Tensor, shape: tuple[int, ...], batch_dim: int | None) -> str | None:
    """How drops lie over an example: `kept` has a leading dimension of trials. None where nothing was dropped."""
    if bool(kept.all()):
        return None
    own = [dim for dim in range(len(shape)) if dim != batch_dim and shape[dim] > 1]
    alike = [dim for dim in own if bool((kept == kept.narrow(dim + 1, 0, 1)).all())]
    if not alike:
        return "element"
    if alike == own:
        return "example"
    return "channel" if own[0] == 1 and alike == own[1:] else "mixed"
