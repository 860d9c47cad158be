"""Resolution of placements on a model: names and groups become points, each with its rate, noise and mask.

Owns what `attention`, `last`, `own` … mean, and refuses what names nothing. An explicit call wins over a site, a site
over a group, a group over `own`. A name that a site and a group share is refused where the two differ and the group has
sites here: `all.conv` is always the group, `conv@output` the site. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from dropscope.errors import BadInput, Phrase, nearest
from dropscope.injection.roles import Site
from dropscope.injection.sites import SiteMap
from dropscope.noise import Layout, OwnNoise, multinomial_draws
from dropscope.placement import GROUPS, Own, Placement, Term, own_noise
from dropscope.tracing import Point

_ALL = ("conv", "linear", "ffn", "recurrent")


@dataclass(frozen=True)
class SiteNoise:
    """Noise at one point: everything `noise.disturb` needs except the keys."""

    rate: float
    noise: str
    mask: str
    layout: Layout
    own: OwnNoise | None = None  # where the noise is a function of the user's

    @property
    def kind(self) -> str | OwnNoise:
        """The noise as `noise.disturb` takes it."""
        return self.own or self.noise

    def fitted(self, point: Point, value: Tensor, examples: int) -> SiteNoise:
        """The noise as this value takes it: a longer text has more tokens, which may lie in the examples' dimension."""
        layout = self.layout
        size = None if layout.batch_dim is None else value.shape[layout.batch_dim]
        if size is None or size == examples * layout.folded:
            return self
        if layout.folded == 1 or size % examples:
            remedy = f"call the model on {examples} examples at a time along dimension 0"
            what = f"dimension {layout.batch_dim} of {point.address} must count examples"
            raise BadInput(what, point.name, Phrase(f"shape {tuple(value.shape)}"), remedy)
        return replace(self, layout=replace(layout, folded=size // examples))

    @property
    def style(self) -> tuple[str, str]:
        """What placements must share at a point to be planned together."""
        return self.noise, self.mask


ResolvedPlacement: TypeAlias = dict[Point, SiteNoise]  # in call order; empty for the plain placement


def resolve(placement: Placement, site_map: SiteMap) -> ResolvedPlacement:
    """Every point of the model that gets noise under `placement`, in call order; empty for the plain placement."""
    resolved: ResolvedPlacement = {}
    for own in sorted(placement.own, key=lambda o: o.group is not None):
        resolved.update(_own(own, site_map))
    for term in sorted(placement.terms, key=lambda t: (not _is_group(t, site_map), t.call is not None)):
        for point in _points(term, site_map):
            resolved[point] = _site_noise(point, term.rate, _kind(term, placement), placement.mask, site_map)
    resolved = {p: resolved[p] for p in site_map.values if p in resolved and resolved[p].rate > 0}
    if not resolved and not placement.is_none:
        remedy = "raise a rate above 0, or write 'none'"
        raise BadInput("placement must have at least one live site", "placement", str(placement), remedy)
    return resolved


def _kind(term: Term, placement: Placement) -> str:
    if not term.adaptive:
        return placement.noise
    if placement.noise != "bernoulli":
        what = "noise must be bernoulli where a placement says rate_in: it drops units"
        raise BadInput(what, "noise", placement.noise, f"write {term} alone, or a rate")
    return "rate_in"


def _is_group(term: Term, site_map: SiteMap) -> bool:
    if not term.is_group:
        return False
    sites = [site for site in site_map.sites if site.module == term.name]
    if not sites:
        return True
    if term.position != "auto" or term.call is not None:
        return False
    named, grouped = _at_position(term, sites), _group(term.name, site_map)
    if not grouped or set(named) == set(grouped):
        return bool(grouped)
    shown = ", ".join(point.address for point in grouped[:2]) + (", …" if len(grouped) > 2 else "")
    site, group = f"{named[0].name}@{named[0].position}={term.rate:g}", f"all.{term.name}={term.rate:g}"
    what = f"placement must say which {term.name!r} it means: a group and a site of this model have that name"
    raise BadInput(what, "placement", str(term), f"write {site} for the site, {group} for the group ({shown})")


def _points(term: Term, site_map: SiteMap) -> list[Point]:
    if _is_group(term, site_map):
        found = _group(term.name.removeprefix("all."), site_map)
        if not found:
            remedy = f"this model has the groups {', '.join(_groups(site_map))}: write {_example(site_map)}"
            raise BadInput(f"group {term.name!r} must match at least one site", "placement", str(term), remedy)
        if term.position == "auto":
            return found
        members = {point.site for point in found}
        return _at_position(term, [site for site in site_map.sites if (site.module, site.call) in members])
    sites = [site for site in site_map.sites if site.module == term.name]
    if not sites:
        names = list(dict.fromkeys(site.module for site in site_map.sites))
        remedy = nearest(term.name, [*names, *_groups(site_map)])
        raise BadInput("placement must name sites of the model", "placement", term.name, remedy)
    if term.call is not None:
        sites = [site for site in sites if site.call == term.call]
        if not sites:
            remedy = f"leave #{term.call} out for every call"
            raise BadInput(f"the model must call {term.name!r} that often", "placement", term.address, remedy)
    return _at_position(term, sites)


def _at_position(term: Term, sites: list[Site]) -> list[Point]:
    if term.position == "auto":
        # Later calls may lack the position auto means for the first (a block's second residual sum): those differ.
        main = sites[0].positions[0] if term.call is not None else min(sites, key=lambda s: s.call).positions[0]
        return [Point(site.module, site.call, main) for site in sites if main in site.positions]
    found = [Point(site.module, site.call, term.position) for site in sites if term.position in site.positions]
    if not found:
        have = list(dict.fromkeys(position for site in sites for position in site.positions))
        what = f"position of {term.name!r} must be one of {', '.join(have)}"
        raise BadInput(what, "position", term.position, f"write {term.name}@{have[0]}={term.rate:g}")
    return found


def _group(name: str, site_map: SiteMap) -> list[Point]:
    sites = site_map.sites
    if name in ("last", "head"):
        head = site_map.head()
        return [] if head is None or "input" not in head.positions else [Point(head.module, head.call, "input")]
    if name == "attention":
        return [p for p in site_map.values if p.position == "weights"]
    if name == "residual":
        return [p for p in site_map.values if p.position == "branch"]
    if name == "embedding":
        own = [Point(s.module, s.call, s.positions[0]) for s in sites if s.role == "embedding"]
        return own or [Point(s.module, s.call, "output") for s in sites if s.kind == "embedding"]
    kinds = {"all": _ALL, "linear": ("linear", "ffn")}.get(name, (name,))
    return [Point(s.module, s.call, s.positions[0]) for s in sites if s.kind in kinds]


def _groups(site_map: SiteMap) -> list[str]:
    """The groups that have a site in this model."""
    return [name for name in GROUPS if _group(name, site_map)]


def _example(site_map: SiteMap) -> str:
    """A placement that this model takes."""
    named = {site.module for site in site_map.sites}
    groups = [name for name in ("attention", "last", *GROUPS) if name not in named and _group(name, site_map)]
    return "attention=0.1" if groups[:1] == ["attention"] else f"{groups[0] if groups else min(named)}=0.5"


def _own(own: Own, site_map: SiteMap) -> ResolvedPlacement:
    """The model's own dropout, at the rates its train mode uses."""
    roles = {Point(s.module, s.call, position): s.role for s in site_map.sites for position in ("weights", "output")}
    chosen = {p: found for p, found in site_map.own.items() if own.group is None or roles.get(p) == own.group}
    positive = {p: found for p, found in chosen.items() if found.rate > 0}
    if not positive:
        remedy = (
            "write own for all of it"
            if site_map.has_own
            else (f"name a site or a group with a rate, as in {_example(site_map)}")
        )
        what = "placement 'own' needs a model that calls dropout of its own at a rate above 0"
        raise BadInput(what, "placement", Phrase(_own_evidence(own, site_map, chosen)), remedy)
    resolved = {}
    for point, found in positive.items():
        rate = found.rate * own.scale
        if rate >= 1:
            name, remedy = f"rate of {point.name!r}", f"scale own by less than {1 / found.rate:g}"
            raise BadInput(f"{name} must be in [0, 1)", name, rate, remedy)
        resolved[point] = SiteNoise(rate, found.noise, found.mask, _own_layout(point, found.mask, site_map))
    return resolved


def _own_evidence(own: Own, site_map: SiteMap, chosen: Mapping[Point, object]) -> str:
    if chosen:
        return f"{len(chosen)} dropouts, all at rate 0"
    reasons = []
    if own.group is not None and site_map.own:
        roles = sorted({site.role for site in site_map.sites if site.role})
        reasons.append(f"none in {own.group!r}, but in {', '.join(roles)}")
    reasons += [f"{name} is never called" for name in site_map.dead[:3]]
    reasons += list(site_map.unreachable[:3])
    return "; ".join(reasons) or "none of it"


def _own_layout(point: Point, mask: str, site_map: SiteMap) -> Layout:
    layout = site_map.values[point].layout
    # torch's channel dropouts always count dimension 1.
    return replace(layout, channel_dim=1) if mask == "channel" else layout


def _site_noise(point: Point, rate: float, kind: str, mask: str, site_map: SiteMap) -> SiteNoise:
    value = site_map.values[point]
    if mask == "auto":
        mask = "channel" if value.layout.channel_dim == 1 else "element"
    if mask == "channel" and point.position == "weights":
        name = f"mask of {point.name!r}"
        raise BadInput(f"{name} must be element: attention weights have no channels", name, mask, "use mask=element")
    if kind == "multinomial" and rate > 0:
        units = value.shape[-1] if mask == "element" else value.shape[0 if value.layout.channel_dim == 1 else -1]
        if multinomial_draws(units, rate) < 1:
            name = f"rate of {point.name!r}"
            what = f"{name} must leave multinomial noise over {units} units at least one draw"
            raise BadInput(what, name, rate, "use a lower rate, or noise=gaussian")
    function = own_noise(kind)
    return SiteNoise(rate, kind, mask, value.layout, None if function is None else OwnNoise(kind, function))
