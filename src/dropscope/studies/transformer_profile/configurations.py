"""Configurations as placements, the paper's five and others: an attention and an FFN rate become sites of one model.

Owns both meanings of the rates. `config`: the paper's, what the config fields of the model's family reach (the hidden
field also touches attention outputs, embeddings and some heads). `component`: exactly the attention weights and the
output of the feed-forward blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from dropscope.checks import check_choice, check_rate
from dropscope.errors import BadInput, Phrase
from dropscope.injection import FIELDS, SiteMap, examine, resolve, with_rates
from dropscope.model import Call, random_state_kept
from dropscope.placement import Placement
from dropscope.tracing import Point

MODES = ("config", "component")


@dataclass(frozen=True)
class Configuration:
    name: str
    attention: float = 0.0
    ffn: float = 0.0

    @property
    def deterministic(self) -> bool:
        return self.attention == self.ffn == 0


CONFIGURATIONS = (
    Configuration("deterministic"),
    Configuration("baseline", 0.1, 0.1),
    Configuration("high_attention", 0.6, 0.1),
    Configuration("high_ffn", 0.1, 0.6),
    Configuration("high_both", 0.6, 0.6),
)


def rates_of(text: str, name: str = "configurations") -> Configuration:
    """A configuration from its two rates, ATTENTION/FFN; one of the paper's keeps its name.

    >>> rates_of("0.2/0.2"), rates_of(".6/.1").name
    (Configuration(name='rates_0.2_0.2', attention=0.2, ffn=0.2), 'high_attention')
    """
    try:
        attention, ffn = (float(part) for part in text.split("/"))
    except ValueError as error:
        remedy = "write 0.2/0.2, the rate of attention and that of the feed-forward blocks"
        raise BadInput(f"{name} must be pairs of rates", name, text, remedy) from error
    check_rate(attention, name), check_rate(ffn, name)
    known = next((c for c in CONFIGURATIONS if (c.attention, c.ffn) == (attention, ffn)), None)
    return known or Configuration(f"rates_{attention:g}_{ffn:g}", attention, ffn)


def grid_of(rates: Sequence[float]) -> tuple[Configuration, ...]:
    """Every attention rate with every FFN rate, 0 among both: the points of a response surface."""
    each = sorted({0.0, *(check_rate(rate, "surface") for rate in rates)})
    return tuple(Configuration(f"rates_{a:g}_{f:g}", a, f) for a in each for f in each)


# Rates nobody configures: where they turn up in a model that was built with them, their field was read.
_TELL_ATTENTION, _TELL_HIDDEN = 0.3141592653589793, 0.2718281828459045


@dataclass(frozen=True, eq=False)
class Reach:
    """Which rate each of a model's own dropouts follows: "attention", "ffn", or a number for one with its own."""

    follows: Mapping[Point, str | float]
    remarks: tuple[str, ...]


def config_reach(model: nn.Module, example: Call, site_map: SiteMap, *, as_it_came: bool = True) -> Reach:
    """What the config fields of the model's family reach, found by building a shadow with tell-tale rates.

    A head with a field of its own keeps the rate its config gives it. For a family without known fields, what a
    dropout serves decides: attention weights follow the attention rate, the head keeps its own, the rest the FFN rate.
    `as_it_came`: the model was built with the rates of its checkpoint, not with those of a configuration.
    """
    config: Any = getattr(model, "config", None)
    family = getattr(config, "model_type", None)
    roles = {(site.module, site.call): site.role for site in site_map.sites}
    if family in FIELDS:
        with random_state_kept():
            shadow = type(model)(with_rates(config, attention=_TELL_ATTENTION, hidden=_TELL_HIDDEN)).eval()
        shadow = shadow.to(example.tensors[0].device)
        names = {_TELL_ATTENTION: "attention", _TELL_HIDDEN: "ffn"}
        own = examine(shadow, example).own
        follows: dict[Point, str | float] = {point: names.get(each.rate, each.rate) for point, each in own.items()}
    else:
        follows = {}
        for point, dropout in site_map.own.items():
            role = roles.get((point.name, point.call))
            follows[point] = "attention" if role == "attention" else dropout.rate if role == "head" else "ffn"
    silent = as_it_came and not site_map.has_own
    remarks = _remarks(follows, roles, site_map, known=family in FIELDS, silent=silent)
    return Reach(follows, tuple(remarks))


def _remarks(
    follows: Mapping[Point, str | float],
    roles: Mapping[tuple[str, int], str | None],
    site_map: SiteMap,
    *,
    known: bool,
    silent: bool,
) -> list[str]:
    remarks = []
    if site_map.own and silent:
        remarks.append(
            "every dropout field of the checkpoint is 0: left so, its passes would all be alike; here they are set"
        )
    kept = {point.name: rate for point, rate in follows.items() if isinstance(rate, float) and rate > 0}
    for name, rate in kept.items():
        field = " has its own field and" if known else ""
        remarks.append(f"the head's dropout {name}{field} keeps its rate {rate:g}; off in deterministic")
    if "ffn" not in {roles.get((p.name, p.call)) for p, rate in follows.items() if rate == "ffn"}:
        remarks.append(
            "no called dropout lies in the feed-forward blocks: in config mode the FFN rate reaches other parts only"
        )
    remarks += [f"{name} is a dropout that is never called" for name in site_map.dead]
    return remarks


def placement_of(configuration: Configuration, mode: str, reach: Reach | None) -> Placement:
    """The placement of a configuration; `reach` is needed in `config` mode.

    >>> print(placement_of(CONFIGURATIONS[2], "component", None), placement_of(CONFIGURATIONS[0], "component", None))
    attention=0.6,ffn=0.1 none
    """
    check_choice(mode, "rates", MODES)
    if configuration.deterministic:
        return Placement.none()
    if mode == "component":
        return Placement({"attention": configuration.attention, "ffn": configuration.ffn})
    assert reach is not None
    by_name: dict[str | float, float] = {"attention": configuration.attention, "ffn": configuration.ffn}
    rates = {
        f"{point.name}#{point.call}@{point.position}": by_name.get(rule, rule) for point, rule in reach.follows.items()
    }
    live = {address: float(rate) for address, rate in rates.items() if float(rate) > 0}
    if not live:
        what = f"configuration {configuration.name!r} must reach a dropout of the model"
        got = Phrase(f"none at {configuration.attention:g} / {configuration.ffn:g}")
        raise BadInput(what, "rates", got, "write rates='component'")
    return Placement(live, mask="element")


def layers_of(site_map: SiteMap) -> list[tuple[int, str, str]]:
    """(layer, component, site) of every attention and feed-forward block in call order, each a site of its own."""
    layers = []
    for component in ("attention", "ffn"):
        try:
            points = resolve(Placement({component: 0.5}), site_map)
        except BadInput:
            continue  # a model without attention weights, or without a known feed-forward block
        layers += [(i, component, f"{p.name}#{p.call}@{p.position}") for i, p in enumerate(points)]
    return sorted(layers)
