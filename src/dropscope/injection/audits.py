"""Does noise take effect where a placement asks for it, at the asked rate, and nowhere else?

Owns `audit` and its findings. It runs the model as `injected` does and judges only what it sees happen to values, so
it catches a fault anywhere before it. Other people's loops are `watch.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.errors import AuditFailed
from dropscope.injection.families import ignored_fields
from dropscope.injection.injector import disturbed
from dropscope.injection.resolution import SiteNoise, resolve
from dropscope.injection.sites import SiteMap, examine
from dropscope.injection.tally import Tally, disagreement, state_mark
from dropscope.model import arguments, copied, count_examples, flat, state_kept, take, unwrap
from dropscope.placement import Placement, as_placement
from dropscope.tracing import Point

_EXAMPLES = 8
_PASSES = 4
_EFFECTS_AT_MOST = 200
_BY_ACCIDENT = 1e-6


@dataclass(frozen=True)
class Finding:
    """One site of the audit. `measured` is the dropped fraction, or for other noises the rate its variance implies."""

    site: str
    noise: str
    asked: float
    measured: float | None
    units: int
    fired: bool
    effect: bool | None  # did the output move when only this site was live? None: not tried
    problem: str | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class Audit:
    """The outcome: findings per site, problems of the whole, and remarks that are no failure."""

    placement: Placement
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems and all(finding.ok for finding in self.findings)

    def raise_if_failed(self) -> Audit:
        if not self.ok:
            first = [f"{f.site}: {f.problem}" for f in self.findings if not f.ok]
            raise AuditFailed(f"the audit of '{self.placement}' failed: " + "; ".join([*self.problems, *first][:4]))
        return self

    def __str__(self) -> str:
        width = max([len(f.site) for f in self.findings] + [4])
        lines = [f"audit of '{self.placement}': {'ok' if self.ok else 'FAILED'}"]
        if self.findings:
            lines.append(
                f"  {'site':<{width}}  {'noise':<11} {'asked':>6}  {'measured':>8}  {'units':>8}  fired  effect"
            )
        for f in self.findings:
            measured = "-" if f.measured is None else f"{f.measured:.4f}"
            effect = {True: "yes", False: "no", None: "-"}[f.effect]
            fired = "yes" if f.fired else "no"
            row = f"  {f.site:<{width}}  {f.noise:<11} {f.asked:>6.3f}  {measured:>8}  {f.units:>8}"
            row = f"{row}  {fired:<5}  {effect:<6}".rstrip()
            lines.append(row + ("" if f.ok else f"  <- {f.problem}"))
        lines += [f"  problem: {text}" for text in self.problems]
        lines += [f"  remark: {text}" for text in self.remarks]
        return "\n".join(lines)


def audit(model: nn.Module, placement: Placement | str, example: Any, seed: int = 0) -> Audit:
    """Puts `placement` into `model`, runs it on a few of the examples, and reports what really happened.

    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    >>> found = audit(net, "last=0.5", torch.randn(8, 4))
    >>> found.ok, found.findings[0].site, found.findings[0].asked
    (True, '2@input', 0.5)
    """
    model = unwrap(model)
    placement = as_placement(placement)
    args, kwargs = arguments(example)
    site_map = examine(model, args, kwargs)
    return audit_live(model, placement, resolve(placement, site_map), args, kwargs, site_map, seed)


def audit_live(
    model: nn.Module,
    placement: Placement,
    live: dict[Point, SiteNoise],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site_map: SiteMap,
    seed: int = 0,
) -> Audit:
    """`audit` for values already resolved; of the examples given, the first eight are run."""
    size = min(_EXAMPLES, count_examples(args, kwargs))
    args, kwargs = take(args, kwargs, range(size))
    before, state = state_mark(model), torch.get_rng_state()
    with torch.no_grad(), state_kept(model):
        tallies, outputs = _noisy(model, live, seed, args, kwargs, site_map)
        effects = _effects(model, live, seed, args, kwargs, site_map)
        problems = [f"{name} moved" for name, mark in state_mark(model).items() if before.get(name) != mark]
    remarks = list(_remarks(placement, live, site_map))
    if not torch.equal(state, torch.get_rng_state()):
        torch.set_rng_state(state)
        if not site_map.nondeterministic:  # a LayerDrop that draws in eval too, and then drops nothing
            remarks.append("the model draws from torch's global random state, without effect on a plain pass")
    if live and not _vary(outputs) and _must_vary(live, tallies):
        problems.append("the outputs of different passes are identical")
    for field, rate in ignored_fields(getattr(model, "config", None)).items():
        name = type(model.config).__name__
        problems.append(f"config.{field}={rate:g} is no field of {name}: nothing reads it, so it switches nothing on")
    if site_map.nondeterministic:
        problems.append("two plain passes differ: there is randomness that no site stands for")
    findings = tuple(
        _finding(point, spec, tallies.get(point), effects.get(point), len(live)) for point, spec in live.items()
    )
    return Audit(placement, findings, tuple(problems), tuple(remarks))


def _noisy(
    model: nn.Module,
    live: dict[Point, SiteNoise],
    seed: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site_map: SiteMap,
) -> tuple[dict[Point, Tally], list[list[Tensor]]]:
    tallies: dict[Point, Tally] = {}

    def watch(point: Point, spec: SiteNoise, before: Tensor, after: Tensor, keys: Tensor) -> None:
        tally = tallies.setdefault(point, Tally())
        if spec.noise == "alpha":
            tally.add_alpha(before, after, spec.rate, spec.mask, spec.layout)
        else:
            tally.add(before, after, spec.mask, spec.layout)

    outputs = []
    with disturbed(model, live, site_map, seed) as noise:
        noise.watcher = watch
        for number in range(_PASSES):
            noise.at(pass_=number)
            outputs.append(_called(model, args, kwargs))
    return tallies, outputs


def _effects(
    model: nn.Module,
    live: dict[Point, SiteNoise],
    seed: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site_map: SiteMap,
) -> dict[Point, bool]:
    """Whether the output moves when one site alone is live, site by site."""
    if len(live) > _EFFECTS_AT_MOST:
        return {}
    with disturbed(model, {}, site_map):
        plain = _called(model, args, kwargs)
    return {point: _moves(model, point, spec, seed, args, kwargs, site_map, plain) for point, spec in live.items()}


def _moves(
    model: nn.Module,
    point: Point,
    spec: SiteNoise,
    seed: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site_map: SiteMap,
    plain: list[Tensor],
) -> bool:
    with disturbed(model, {point: spec}, site_map, seed) as noise:
        for number in range(_PASSES):
            noise.at(pass_=number)
            noisy = _called(model, args, kwargs)
            if any(not torch.equal(a, b) for a, b in zip(noisy, plain, strict=True)):
                return True
    return False


def _called(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    args, kwargs = copied(args, kwargs)
    return flat(model(*args, **kwargs))


def _vary(outputs: list[list[Tensor]]) -> bool:
    first = outputs[0]
    return any(not torch.equal(a, b) for later in outputs[1:] for a, b in zip(first, later, strict=True))


def _must_vary(live: dict[Point, SiteNoise], tallies: dict[Point, Tally]) -> bool:
    """Whether passes without a difference are no accident: at low rates and few units it can be that none drops."""
    dropping = [
        (spec.rate, tallies[point].units)
        for point, spec in live.items()
        if point in tallies and spec.noise in ("bernoulli", "alpha")
    ]
    none_dropped = sum(units * math.log1p(-rate) for rate, units in dropping)
    return len(dropping) < len(live) or none_dropped < math.log(_BY_ACCIDENT)


def _finding(point: Point, spec: SiteNoise, tally: Tally | None, effect: bool | None, sites: int) -> Finding:
    name = f"{point.name}{f'#{point.call}' if point.call else ''}@{point.position}"
    if tally is None:
        return Finding(name, spec.noise, spec.rate, None, 0, False, effect, "it did not fire")
    measured = tally.rate
    if spec.noise not in ("bernoulli", "alpha") and tally.variance is not None:
        measured = tally.variance / (1 + tally.variance)
    problem = disagreement(tally, spec.rate, spec.noise, sites)
    if problem is None and effect is False:
        problem = "the output does not depend on it"
    return Finding(name, spec.noise, spec.rate, measured, tally.units, True, effect, problem)


def _remarks(placement: Placement, live: dict[Point, SiteNoise], site_map: SiteMap) -> Iterable[str]:
    yield from (f"{name} is a dropout that is never called" for name in site_map.dead)
    yield from (f"{name} runs in eval mode too: it is switched off here" for name in site_map.always_on)
    if placement.own:
        yield from (f"not reproduced by 'own': {text}" for text in site_map.unreachable)
        roles = {Point(s.module, s.call, p): s.role for s in site_map.sites for p in s.positions}
        if live and all(roles.get(point) == "head" for point in live):
            yield "the only live dropout is in the classifier head: the body of the model stays deterministic"
