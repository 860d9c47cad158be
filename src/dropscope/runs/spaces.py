"""Spaces of placements to search: every site of a model at every rate, where to begin, and what is next to a placement.

Owns which placements are candidates. See `searches` for which of them are run, and on how many examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dropscope.checks import check_rate
from dropscope.errors import BadInput, Phrase
from dropscope.injection import SiteMap, resolve
from dropscope.placement import Placement, PlacementGrid, PlacementSpace
from dropscope.runs.candidates import Candidates, spread

SEARCH_RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
_COARSE = 3  # rates that a search begins with


@dataclass(frozen=True)
class Space:
    """Placements to search.

    Attributes:
        sites: Sites that get noise, in call order.
        rates: Rates to choose from, rising.
        own: The model's own dropout, where it has any.
        last: The penultimate rule, the input of the last layer, at every rate; empty for a model without such a layer.
    """

    sites: tuple[str, ...]
    rates: tuple[float, ...]
    own: tuple[Placement, ...]
    last: tuple[Placement, ...]

    @classmethod
    def of(cls, site_map: SiteMap, sites: Sequence[str] | None, rates: Sequence[float]) -> Space:
        """Everything that a model allows, or the sites that are named.

        Raises:
            BadInput: For rates that are none, sites that the model does not have, or a model without any.
        """
        for rate in rates:
            check_rate(rate, "rates")
        if not rates or min(rates) <= 0 or len(set(rates)) < len(rates):
            raise BadInput("rates must be above 0, each once", "rates", tuple(rates), "write rates=(0.1, 0.3, 0.5)")
        rates = tuple(sorted(rates))
        usual = Candidates.of(site_map, rates, 1)
        if sites is None:
            fit = {*usual.sites, *usual.left_out}
            names = tuple(dict.fromkeys(site.name for site in site_map.sites if site.name in fit))
        else:
            names = PlacementGrid(sites, rates).sites
            for name in names:
                _check_site(name, site_map)
        if not names:
            raise BadInput("model must have a site for noise", "model", Phrase("none"), "name a placement in sweep")
        own = tuple(placement for placement in usual.first if placement.own)
        last = tuple(Placement({"last": rate}) for rate in rates)
        return cls(names, rates, own, last if set(last) <= set(usual.first) else ())

    @property
    def size(self) -> int:
        """How many placements a sweep over every subset of the sites has, with a rate for each."""
        return (len(self.rates) + 1) ** len(self.sites) - 1

    @property
    def rules(self) -> tuple[Placement, ...]:
        """What people take without a search: the model's own dropout, and the penultimate rule."""
        return (*self.own, *self.last)

    def whole(self) -> list[Placement]:
        """Every placement of the grid, and the rules."""
        return list(dict.fromkeys((*self.rules, *PlacementGrid(self.sites, self.rates))))

    def opening(self, limit: int | None = None) -> list[Placement]:
        """Where a search begins: the rules, every single site and every suffix, at a few rates.

        Args:
            limit: Placements at most, beside the rules: one rate before several, sites spread over the depth.
        """
        coarse = spread(self.rates, _COARSE)
        middle = coarse[len(coarse) // 2]
        found: dict[Placement, None] = {}
        for rates in ((middle,), coarse):
            both = (PlacementSpace.suffixes(self.sites, rates), PlacementSpace.single_sites(self.sites, rates))
            found |= dict.fromkeys(placement for some in both for placement in some)
        every = list(found)
        if limit is not None and limit < len(every):
            count = len(self.sites)
            begun = 2 * count - 1  # suffixes and single sites at the middle rate
            every = every[:limit] if limit >= begun else list(spread(every[:begun], max(limit, 1)))
        return list(dict.fromkeys((*self.own, *(p for p in self.last if _rate(p) in coarse), *every)))

    def neighbours(self, placement: Placement) -> list[Placement]:
        """Placements one step away: another rate at one site or at all of them, a site more, a site less."""
        if placement in self.last:
            at = self.last.index(placement)
            return [self.last[i] for i in (at - 1, at + 1) if 0 <= i < len(self.last)]
        rates = {term.address: term.rate for term in placement.terms}
        if placement.own or not set(rates) <= set(self.sites):
            return []
        found = []
        for step in (-1, 1):
            found.append({site: self._near(rate, step) for site, rate in rates.items()})
            found += [{**rates, site: self._near(rate, step)} for site, rate in rates.items() if len(rates) > 1]
        found += [{s: r for s, r in rates.items() if s != site} for site in rates if len(rates) > 1]
        middle = sorted(rates.values())[len(rates) // 2]
        found += [{**rates, site: middle} for site in self._beside(tuple(rates))]
        return [p for p in dict.fromkeys(self._placed(chosen) for chosen in found) if p != placement]

    def _beside(self, taken: tuple[str, ...]) -> list[str]:
        """Sites that may be added: the nearest in call order first."""
        places = [self.sites.index(site) for site in taken]
        free = [site for site in self.sites if site not in taken]
        return sorted(free, key=lambda site: min(abs(self.sites.index(site) - place) for place in places))

    def _near(self, rate: float, step: int) -> float:
        at = self.rates.index(rate) + step
        return self.rates[min(max(at, 0), len(self.rates) - 1)]

    def _placed(self, rates: dict[str, float]) -> Placement:
        return Placement({site: rates[site] for site in self.sites if site in rates})


def _check_site(name: str, site_map: SiteMap) -> None:
    try:
        resolve(Placement({name: 0.5}), site_map)
    except BadInput as error:
        raise BadInput("sites must be sites of the model", "sites", name, error.remedy) from error


def _rate(placement: Placement) -> float:
    return placement.terms[0].rate
