"""Candidates of a first try: placements worth trying on a model that nobody has looked at, and how many fit a budget.

Owns what is tried where no sites are named: the model's own dropout, the input of the last layer, the last block, and
every single site, at a few rates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dropscope.errors import BadInput
from dropscope.injection import SiteMap, resolve
from dropscope.placement import Placement
from dropscope.progress import format_duration

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
    """

    first: tuple[Placement, ...]
    sites: tuple[str, ...]
    rates: tuple[float, ...]
    passes: int
    remarks: tuple[str, ...] = ()

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
        left_out = (f"{len(kept)} of {len(fit)} single sites, spread over the depth",) if len(kept) < len(fit) else ()
        return cls(tuple(first), kept, tuple(rates), passes, left_out)

    @property
    def placements(self) -> list[Placement]:
        """All of them, each once."""
        single = (Placement({site: rate}) for site in self.sites for rate in self.rates)
        return list(dict.fromkeys((*self.first, *single)))

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
        reason = (
            f"to keep to a budget of {format_duration(asked or budget)} (all would take {format_duration(expected)})"
        )
        return replace(self, sites=kept, passes=passes, remarks=(*self.remarks, f"{' and '.join(remarks)}, {reason}"))


def spread(sites: Sequence[str], count: int) -> tuple[str, ...]:
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
