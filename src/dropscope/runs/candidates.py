"""Candidates of a first try: placements worth trying on a model that nobody has looked at, and what fits a budget.

Owns what is tried where no sites are named: the model's own dropout, the input of the last layer, the last block, and
every single site, at a few rates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dropscope.display import headed
from dropscope.errors import BadInput
from dropscope.injection import SiteMap, resolve
from dropscope.placement import Placement
from dropscope.progress import format_duration
from dropscope.runs.verdicts import short_placement

Item = TypeVar("Item")
_TRIED = ("conv", "linear", "recurrent", "ffn", "attention")
_IN_BLOCKS = ("conv", "linear", "recurrent", "ffn")  # what `all` stands for
_BLOCK = re.compile(r"(?P<block>.*\.\d+|\d+)\.\w.*")
_LEAST_PASSES = 20
_MOST_SITES = 24  # single sites: more take long to set up, and neighbours differ little


@dataclass(frozen=True)
class Candidates:
    """Placements to try.

    Attributes:
        first: Tried whatever the budget: the model's own dropout, the last layer's input, the last block.
        sites: The single sites, in call order.
        rates: Rates of each single site.
        passes: Passes per placement.
        remarks: What was left out, and why.
        left_out: The single sites that were.
    """

    first: tuple[Placement, ...]
    sites: tuple[str, ...]
    rates: tuple[float, ...]
    passes: int
    remarks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, site_map: SiteMap, rates: Sequence[float], passes: int) -> Candidates:
        """Everything worth trying on a model."""
        own = [Placement.parse("own")] if site_map.has_own else []
        last = [Placement({"last": rate}) for rate in rates]
        block = last_block(site_map)
        blocks = [Placement(dict.fromkeys(block, rate)) for rate in rates] if len(block) > 1 else []
        first = [placement for placement in (*own, *last, *blocks) if _resolves(placement, site_map)]
        sites = dict.fromkeys(site.name for site in site_map.sites if site.kind in _TRIED)
        fit = tuple(name for name in sites if _resolves(Placement({name: rates[0]}), site_map))
        kept = spread(fit, _MOST_SITES)
        left_out = tuple(name for name in fit if name not in kept)
        remarks = (f"{len(kept)} of {len(fit)} single sites, spread over the depth",) if left_out else ()
        return cls(tuple(first), kept, tuple(rates), passes, remarks, left_out)

    @property
    def placements(self) -> list[Placement]:
        """All of them, each once."""
        return list(dict.fromkeys((*self.first, *(placement for site in self.sites for placement in self.at(site)))))

    def at(self, site: str) -> list[Placement]:
        """A single site at every rate."""
        return [Placement({site: rate}) for rate in self.rates]

    def within(self, expected: float, budget: float, asked: float | None = None) -> Candidates:
        """What fits a budget, where all would take `expected` seconds: fewer passes first, then fewer sites.

        `asked` is the budget as the user knows it, of which this is the part for choosing.
        """
        if expected <= budget or not self.placements:
            return self
        passes = max(min(_LEAST_PASSES, self.passes), int(self.passes * budget / expected))
        each = expected * passes / self.passes / len(self.placements)
        room = int(budget / max(each, 1e-9)) - len(self.first)
        count = min(len(self.sites), max(room // len(self.rates), 0 if self.first else 1))
        kept = spread(self.sites, count)
        remarks = [f"{passes} passes instead of {self.passes}"] if passes < self.passes else []
        if count < len(self.sites):
            some = f"{count} of {len(self.sites)} single sites, spread over the depth"
            remarks.append(some if count else f"none of the {len(self.sites)} single sites")
        whole, everything = asked or budget, expected + max(0.0, (asked or budget) - budget)
        reason = f"to keep to a budget of {format_duration(whole)} (all would take {format_duration(everything)})"
        left_out = (*self.left_out, *(site for site in self.sites if site not in kept))
        said = (*self.remarks, f"{' and '.join(remarks)}, {reason}")
        return replace(self, sites=kept, passes=passes, remarks=said, left_out=left_out)


@dataclass(frozen=True)
class TrialPlan:
    """What a trial would do. Prints itself.

    Attributes:
        candidates: What would be tried, and what would be left out.
        choosing: Examples that choose.
        judging: Examples that judge.
        engine: "shared" or "loop".
        seconds: Expected time in all.
    """

    candidates: Candidates
    choosing: int
    judging: int
    engine: str
    seconds: float

    def facts(self) -> dict[str, Any]:
        """The plan in values that JSON can hold."""
        kept = self.candidates
        return {
            "placements": [str(placement) for placement in kept.placements],
            "left_out": [str(placement) for site in kept.left_out for placement in kept.at(site)],
            "passes": kept.passes,
            "remarks": list(kept.remarks),
            "choosing": self.choosing,
            "judging": self.judging,
            "engine": self.engine,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        kept = self.candidates
        rates = ", ".join(f"{rate:g}" for rate in kept.rates)
        work = f"{len(kept.placements)} placements × {kept.passes} passes × {self.choosing} examples"
        lines = headed("tries", f"{work}, {self.engine} engine")
        lines += [line for first in kept.first for line in headed("", short_placement(str(first)))]
        if kept.sites:
            lines += headed("", f"each of these at {rates}: {', '.join(kept.sites)}")
        lines += headed("judges", f"the best of them on {self.judging} other examples")
        lines += [line for remark in kept.remarks for line in headed("remark", remark)]
        if kept.left_out:
            lines += headed("left out", f"each of these at {rates}: {', '.join(kept.left_out)}")
        return "\n".join([*lines, *headed("expected", f"{format_duration(self.seconds)} in all")])


def spread(sites: Sequence[Item], count: int) -> tuple[Item, ...]:
    """At most `count` of the sites, evenly over their order.

    >>> spread("abcdef", 2)
    ('b', 'e')
    """
    if count >= len(sites):
        return tuple(sites)
    return tuple(sites[(2 * i + 1) * len(sites) // (2 * count)] for i in range(count))


def last_block(site_map: SiteMap) -> tuple[str, ...]:
    """The sites of the last numbered block, such as `layer3.2` or `encoder.layer.11`.

    Blocks are told by their names: everything below the last number of a module's path is one block.
    """
    sites = [site.name for site in site_map.sites if site.kind in _IN_BLOCKS]
    found = [(match["block"], name) for name in sites if (match := _BLOCK.fullmatch(name))]
    return tuple(dict.fromkeys(name for block, name in found if block == found[-1][0]))


def _resolves(placement: Placement, site_map: SiteMap) -> bool:
    try:
        return bool(resolve(placement, site_map))
    except BadInput:  # a model without a final layer has no `last`
        return False
