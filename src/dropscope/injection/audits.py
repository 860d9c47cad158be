"""Audits of noise: it must take effect where a placement asks for it, at the asked rate, and nowhere else.

Owns `audit` and its findings. It runs the model as `injected` does and judges only what happens to values, so it
catches a fault in any of the code before it. See `observer` for loops that Dropscope does not run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.display import Table, cut
from dropscope.errors import AuditFailed
from dropscope.injection.families import ignored_fields
from dropscope.injection.injector import Noise, disturbed
from dropscope.injection.resolution import ResolvedPlacement, SiteNoise, resolve
from dropscope.injection.sites import SiteMap, examine
from dropscope.injection.tally import Tally, disagreement, disagreement_of_adaptive, disagreement_of_own, state_mark
from dropscope.model import Call, accepted, device_of, output_tensors, random_state_kept, shadow, state_kept, unwrap
from dropscope.noise import Keys, disturb
from dropscope.placement import Placement, as_placement
from dropscope.tracing import Point

_EXAMPLES = 8
_PASSES = 4
_EFFECTS_AT_MOST = 200
_BY_ACCIDENT = 1e-6
_NOTES = 4  # lines of problems and remarks in a short form


@dataclass(frozen=True)
class Finding:
    """What an audit found at one site.

    Attributes:
        site: The site with its position, as a placement writes it.
        noise: The kind of noise: bernoulli, gaussian, multinomial, alpha, rate_in, or the name of your own.
        asked: The rate that the placement asks for.
        measured: The dropped fraction; for noise that drops no unit (gaussian, multinomial, some of your own), the rate
            that its variance implies; for rate_in, the share of the information that was lost. Noise of your own is
            not judged by it.
        units: How many units were counted.
        fired: Whether the site got noise at all.
        effect: Whether the output changed when this site alone got noise; None if that was not tried.
        problem: What is wrong, or None.
    """

    site: str
    noise: str
    asked: float
    measured: float | None
    units: int
    fired: bool
    effect: bool | None
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with this site."""
        return self.problem is None


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit; printed, a table.

    Attributes:
        placement: What was audited.
        findings: One `Finding` per site, in call order.
        problems: What is wrong with the model or the run as a whole.
        remarks: What is worth knowing and no failure.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> result = audit(net, "last=0.5", torch.randn(8, 4))
        >>> result.ok, len(result.findings), result.problems
        (True, 1, ())
    """

    placement: Placement
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems, at any site or as a whole."""
        return not self.problems and all(finding.ok for finding in self.findings)

    def raise_if_failed(self) -> Audit:
        """Returns itself if it is ok.

        Raises:
            AuditFailed: If it is not, with the first four problems.
        """
        if not self.ok:
            first = [f"{f.site}: {f.problem}" for f in self.findings if not f.ok]
            raise AuditFailed(f"the audit of '{self.placement}' failed: " + "; ".join([*self.problems, *first][:4]))
        return self

    def __str__(self) -> str:
        width = max([len(f.site) for f in self.findings] + [4])
        kinds = max([len(f.noise) for f in self.findings] + [11])
        lines = [f"audit of '{self.placement}': {'ok' if self.ok else 'FAILED'}"]
        if self.findings:
            lines.append(
                f"  {'site':<{width}}  {'noise':<{kinds}} {'asked':>6}  {'measured':>8}  {'units':>8}  fired  effect"
            )
        for f in self.findings:
            measured = "-" if f.measured is None else f"{f.measured:.4f}"
            effect = {True: "yes", False: "no", None: "-"}[f.effect]
            fired = "yes" if f.fired else "no"
            row = f"  {f.site:<{width}}  {f.noise:<{kinds}} {f.asked:>6.3f}  {measured:>8}  {f.units:>8}"
            row = f"{row}  {fired:<5}  {effect:<6}".rstrip()
            lines.append(row + ("" if f.ok else f"  <- {f.problem}"))
        lines += [f"  problem: {text}" for text in self.problems]
        lines += [f"  remark: {text}" for text in self.remarks]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self._table(sorted(self.findings, key=lambda finding: finding.ok)).short("print the audit").text()

    def _repr_html_(self) -> str:
        return self._table(self.findings).html()

    def _table(self, findings: Sequence[Finding]) -> Table:
        """The audit in a few columns; text of any length stays out of them."""
        rows = [
            (
                finding.site,
                f"{finding.asked:.3f}",
                "-" if finding.measured is None else f"{finding.measured:.4f}",
                "yes" if finding.fired else "no",
                {True: "yes", False: "no", None: "-"}[finding.effect],
            )
            for finding in findings
        ]
        notes = [f"{finding.site}: {finding.problem}" for finding in findings if not finding.ok]
        notes = [*(f"problem: {text}" for text in (*self.problems, *notes)), *(f"remark: {t}" for t in self.remarks)]
        if len(notes) > _NOTES:
            notes = [*notes[: _NOTES - 1], f"… and {len(notes) - _NOTES + 1} more problems and remarks"]
        caption = f"audit of '{cut(str(self.placement))}': {'ok' if self.ok else 'FAILED'}"
        return Table(
            ("site", "asked", "measured", "fired", "effect"), rows, caption, [cut(text, 160) for text in notes]
        )


def audit(model: nn.Module, placement: Placement | str, example: Any, seed: int = 0) -> Audit:
    """Puts a placement into a model, runs it on a few examples, and reports what really happened.

    The model is left as it was.

    Args:
        model: Any `nn.Module`.
        placement: Where noise goes, as a `Placement` or its text.
        example: What the model is called with: a tensor, a tuple or a dict of tensors. The first eight examples are
            used. Also what `load_data` returns.
        seed: The seed of the noise.

    Returns:
        An `Audit` with a finding per site. Call `raise_if_failed()` on it to stop where something is wrong.

    Raises:
        BadInput: If the placement does not fit the model, or the model does not take the example.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> result = audit(net, "last=0.5", torch.randn(8, 4))
        >>> result.ok, result.findings[0].site, result.findings[0].asked
        (True, '2@input', 0.5)
    """
    model = shadow(unwrap(model))
    placement = as_placement(placement)
    call = Call.of(example, "example").to(device_of(model))
    with accepted(call, "example"):
        site_map = examine(model, call)
    return audit_resolved(Audited(model, site_map, call, seed), resolve(placement, site_map), placement)


@dataclass(frozen=True, eq=False)
class Audited:
    """What an audit runs: a model whose sites are known, on a batch of examples, under one seed."""

    model: nn.Module
    site_map: SiteMap
    call: Call
    seed: int = 0

    def forward(self) -> list[Tensor]:
        """The tensors that the model returns."""
        return output_tensors(self.call.run(self.model))

    def disturbed(self, resolved: ResolvedPlacement) -> AbstractContextManager[Noise]:
        """Noise in the model while open."""
        return disturbed(self.model, resolved, self.site_map, self.seed)


def audit_resolved(audited: Audited, resolved: ResolvedPlacement, placement: Placement) -> Audit:
    """`audit` for a placement already resolved."""
    model, site_map = audited.model, audited.site_map
    audited = replace(audited, call=audited.call.take(range(min(_EXAMPLES, audited.call.examples))))
    before = state_mark(model)
    with torch.no_grad(), state_kept(model), random_state_kept():
        state = torch.get_rng_state()
        tallies, outputs, coupled = _tallied(audited, resolved)
        effects = _effects(audited, resolved)
        drew = not torch.equal(state, torch.get_rng_state())
        problems = [f"{name} moved" for name, mark in state_mark(model).items() if before.get(name) != mark]
    remarks = [*_remarks(placement, resolved, site_map), *_shifts(resolved, tallies)]
    if drew and not site_map.nondeterministic:  # a LayerDrop that draws in eval too, and then drops nothing
        remarks.append("the model draws from torch's global random state, without effect on a plain pass")
    if resolved and not _vary(outputs) and _must_vary(resolved, tallies):
        problems.append("the outputs of different passes are identical")
    for field, rate in ignored_fields(getattr(model, "config", None)).items():
        name = type(model.config).__name__
        problems.append(f"config.{field}={rate:g} is no field of {name}: nothing reads it, so it switches nothing on")
    if site_map.nondeterministic:
        problems.append("two plain passes differ: there is randomness that no site stands for")
    findings = (
        _finding(point, spec, tallies.get(point), effect=effects.get(point), sites=len(resolved))
        for point, spec in resolved.items()
    )
    by_itself = "what it does to an example depends on the others of its batch: compute each row from its own uniforms"
    judged = tuple(
        replace(finding, problem=finding.problem or by_itself) if point in coupled else finding
        for point, finding in zip(resolved, findings, strict=True)
    )
    return Audit(placement, judged, tuple(problems), tuple(remarks))


def audit_union(
    audited: Audited, resolved: Sequence[ResolvedPlacement], placements: Sequence[Placement]
) -> list[Finding]:
    """Audits every point, noise and mask of many placements once.

    Two positions of one site share their mask, so each is tried in a union of its own. Of several rates the one nearest
    to one half is tried, in any order of the placements: a few examples are enough to judge it.

    Returns:
        What was found at every point.

    Raises:
        AuditFailed: If an audit fails. It names the placement that asks for the first failing site.
    """
    unions: list[ResolvedPlacement] = []
    taken: list[dict[tuple[str, int], Point]] = []
    asked_by: list[dict[Point, Placement]] = []
    for points, placement in zip(resolved, placements, strict=True):
        for point, spec in points.items():
            fitting = (
                number
                for number, (union, at) in enumerate(zip(unions, taken, strict=True))
                if at.get(point.site, point) == point and union.get(point, spec).style == spec.style
            )
            number = next(fitting, len(unions))
            if number == len(unions):
                unions.append({})
                taken.append({})
                asked_by.append({})
            kept = unions[number].get(point)
            if kept is None or abs(spec.rate - 0.5) < abs(kept.rate - 0.5):
                unions[number][point], asked_by[number][point] = spec, placement
            taken[number][point.site] = point
    findings: list[Finding] = []
    for union, by in zip(unions, asked_by, strict=True):
        result = audit_resolved(audited, union, next(iter(by.values())))
        failed = [point for point, finding in zip(union, result.findings, strict=True) if not finding.ok]
        replace(result, placement=by[failed[0]] if failed else result.placement).raise_if_failed()
        findings += result.findings
    return findings


def _tallied(
    audited: Audited, resolved: ResolvedPlacement
) -> tuple[dict[Point, Tally], list[list[Tensor]], set[Point]]:
    """What noise did at each point, the outputs of the passes, and points where one example disturbs another."""
    tallies: dict[Point, Tally] = {}
    coupled: set[Point] = set()

    def watch(point: Point, spec: SiteNoise, before: Tensor, after: Tensor, keys: Keys) -> None:
        tally = tallies.setdefault(point, Tally())
        if spec.noise == "alpha":
            tally.add_alpha(before, after, spec.rate, spec.mask, spec.layout)
        else:
            tally.add(before, after, spec.mask, spec.layout)
        if (spec.own is not None or spec.noise == "rate_in") and not _same_alone(spec, before, after, keys):
            coupled.add(point)

    outputs = []
    with audited.disturbed(resolved) as noise:
        noise.watcher = watch
        for number in range(_PASSES):
            noise.at(pass_=number)
            outputs.append(audited.forward())
    return tallies, outputs, coupled


def _same_alone(spec: SiteNoise, before: Tensor, after: Tensor, keys: Keys) -> bool:
    """Whether the last example gets the same noise by itself; noise of a user's own might mix examples."""
    if spec.layout.batch_dim is None or len(keys) < 2:
        return True
    last = before.shape[spec.layout.batch_dim] - spec.layout.folded
    one, there = (value.narrow(spec.layout.batch_dim, last, spec.layout.folded) for value in (before, after))
    alone = disturb(one, keys[-1:], spec.rate, spec.kind, spec.mask, spec.layout)
    return torch.allclose(alone, there, rtol=1e-4, atol=1e-6, equal_nan=True)


def _effects(audited: Audited, resolved: ResolvedPlacement) -> dict[Point, bool]:
    """For each site, whether the output changes when it alone gets noise: on two examples, or on all of them."""
    if len(resolved) > _EFFECTS_AT_MOST:
        return {}
    moved: dict[Point, bool] = {}
    for examples in sorted({min(2, audited.call.examples), audited.call.examples}):
        few = replace(audited, call=audited.call.take(range(examples)))
        still = {point: spec for point, spec in resolved.items() if not moved.get(point)}
        if still:
            with few.disturbed({}):
                plain = few.forward()
            moved |= {point: _moves(few, {point: spec}, plain) for point, spec in still.items()}
    return {point: moved[point] for point in resolved}


def _moves(audited: Audited, alone: ResolvedPlacement, plain: list[Tensor]) -> bool:
    with audited.disturbed(alone) as noise:
        for number in range(_PASSES):
            noise.at(pass_=number)
            if any(not torch.equal(a, b) for a, b in zip(audited.forward(), plain, strict=True)):
                return True
    return False


def _vary(outputs: list[list[Tensor]]) -> bool:
    first = outputs[0]
    return any(not torch.equal(a, b) for later in outputs[1:] for a, b in zip(first, later, strict=True))


def _must_vary(resolved: ResolvedPlacement, tallies: dict[Point, Tally]) -> bool:
    """Whether equal passes cannot be chance: at low rates and with few units it may be that none drops."""
    dropping = [
        (spec.rate, tallies[point].units)
        for point, spec in resolved.items()
        if point in tallies and (spec.noise in ("bernoulli", "alpha", "rate_in") or spec.own is not None)
    ]
    none_dropped = sum(units * math.log1p(-rate) for rate, units in dropping)
    return len(dropping) < len(resolved) or none_dropped < math.log(_BY_ACCIDENT)


def _finding(point: Point, spec: SiteNoise, tally: Tally | None, *, effect: bool | None, sites: int) -> Finding:
    name = point.address
    if tally is None:
        return Finding(name, spec.noise, spec.rate, None, 0, fired=False, effect=effect, problem="it did not fire")
    measured = tally.rate
    smooth = spec.noise not in ("bernoulli", "alpha") if spec.own is None else not tally.dropped
    if smooth and tally.variance is not None:
        measured = tally.variance / (1 + tally.variance)
    if spec.noise == "rate_in":
        measured, problem = tally.loss, disagreement_of_adaptive(tally, spec.rate, sites)
    elif spec.own is None:
        problem = disagreement(tally, spec.rate, spec.noise, sites)
    else:
        problem = disagreement_of_own(tally, spec.rate, sites)
    if problem is None and effect is False:
        problem = "the output does not depend on it"
    return Finding(name, spec.noise, spec.rate, measured, tally.units, fired=True, effect=effect, problem=problem)


def _shifts(resolved: ResolvedPlacement, tallies: dict[Point, Tally]) -> Iterable[str]:
    """Noise of a user's own that does not keep the mean: allowed, and worth knowing."""
    for point, spec in resolved.items():
        shift = tallies[point].shift if spec.own is not None and point in tallies else None
        if shift is not None:
            found = f"the factors of {spec.noise!r} at {point.address} average {1 + shift:.2f}, not 1: passes shift"
            yield f"{found}; divide what it returns by its mean, as dropout divides by 1 - rate"


def _remarks(placement: Placement, resolved: ResolvedPlacement, site_map: SiteMap) -> Iterable[str]:
    yield from (f"{name} is a dropout that is never called" for name in site_map.dead)
    yield from (f"{name} runs in eval mode too: it is switched off here" for name in site_map.always_on)
    if placement.own:
        yield from (f"not reproduced by 'own': {text}" for text in site_map.unreachable)
        roles = {Point(s.module, s.call, p): s.role for s in site_map.sites for p in s.positions}
        if resolved and all(roles.get(point) == "head" for point in resolved):
            yield "the only live dropout is in the classifier head: the body of the model stays deterministic"
