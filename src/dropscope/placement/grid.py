"""Sequences of placements that are computed, not stored: the full grid, and smaller spaces for larger models.

Owns which placements there are and their fixed order. See `engine` for which of them are equal by mathematics.
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, combinations
from typing import Any, TypedDict, overload

from typing_extensions import Unpack

from dropscope.checks import check_choice, check_rate
from dropscope.errors import BadInput, Phrase
from dropscope.parameters import shares
from dropscope.placement.noises import noise_name
from dropscope.placement.placement import POSITIONS, Placement, Term, as_placement, parse_address

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class PlacementOptions(TypedDict, total=False):
    """What all placements of a space have in common."""

    position: str
    noise: str | Callable[..., Any]
    mask: str


def _placed(
    rates: Mapping[str, float],
    *,
    position: str = "auto",
    noise: str | Callable[..., Any] = "bernoulli",
    mask: str = "auto",
) -> Placement:
    """A placement of a space.

    Args:
        position: Where at a site, as in `Placement`.
        noise: Which noise, as in `Placement`.
        mask: What one draw covers, as in `Placement`.
    """
    return Placement(rates, position=position, noise=noise, mask=mask)


class PlacementSpace(Sequence[Placement]):
    """A sequence of placements that computes each when it is asked for.

    Use `single_sites`, `suffixes`, `subsets` or `random`, or `PlacementGrid` for all. Slices are spaces too, and `+`
    joins spaces and lists.

    Args:
        length: How many placements there are.
        at: The placement at an index.

    Raises:
        BadInput: Where there are more than a sequence can count.

    Examples:
        >>> few = PlacementSpace.single_sites(["conv1", "fc1"], rates=(.2, .5)) + ["none", "own"]
        >>> few
        PlacementSpace(6 placements)
        >>> [str(placement) for placement in few[1:5]]
        ['conv1=0.5', 'fc1=0.2', 'fc1=0.5', 'none']
    """

    def __init__(self, length: int, at: Callable[[int], Placement]) -> None:
        if length > sys.maxsize:
            remedy = "use PlacementSpace.subsets, .suffixes or .random, or name groups such as 'conv' instead of sites"
            raise BadInput(f"a space must have at most {sys.maxsize:,} placements", "length", length, remedy)
        self._length, self._at = length, at

    @staticmethod
    @shares(_placed)
    def single_sites(
        sites: Iterable[str],
        rates: Iterable[float] = RATES,
        **options: Unpack[PlacementOptions],
    ) -> PlacementSpace:
        """One site at a time: site by site, each at every rate.

        Args:
            sites: Names of sites or groups.
            rates: Rates above 0 and below 1.

        Raises:
            BadInput: Where a site, rate or option cannot be used.

        Examples:
            >>> [str(p) for p in PlacementSpace.single_sites(["a", "b"], rates=[.2, .5])]
            ['a=0.2', 'a=0.5', 'b=0.2', 'b=0.5']
        """
        return PlacementSpace.subsets(sites, rates, at_most=1, **options)

    @staticmethod
    @shares(_placed)
    def suffixes(
        sites: Iterable[str],
        rates: Iterable[float] = RATES,
        **options: Unpack[PlacementOptions],
    ) -> PlacementSpace:
        """The last k sites at one rate: k = 1, 2, …, all, each at every rate.

        Args:
            sites: Names of sites or groups, in order.
            rates: Rates above 0 and below 1.

        Raises:
            BadInput: Where a site, rate or option cannot be used.

        Examples:
            >>> [str(p) for p in PlacementSpace.suffixes(["a", "b", "c"], rates=[.5])]
            ['c=0.5', 'b=0.5,c=0.5', 'a=0.5,b=0.5,c=0.5']
        """
        names = _check_sites(sites, **options)
        return _over_rates([names[-k:] for k in range(1, len(names) + 1)], _check_rates(rates), options, product=False)

    @staticmethod
    @shares(_placed)
    def subsets(
        sites: Iterable[str],
        rates: Iterable[float] = RATES,
        at_most: int = 2,
        combine: str = "common",
        **options: Unpack[PlacementOptions],
    ) -> PlacementSpace:
        """Every subset of 1 to `at_most` sites, smaller ones first, each in the order of `itertools.combinations`.

        Args:
            sites: Names of sites or groups.
            rates: Rates above 0 and below 1.
            at_most: Sites of the largest subsets.
            combine: "common" gives all sites of a subset the same rate, "product" every combination of rates.

        Raises:
            BadInput: Where a site, rate or option cannot be used, or there are more than a million subsets.

        Examples:
            >>> [str(p) for p in PlacementSpace.subsets(["a", "b", "c"], rates=[.5])]
            ['a=0.5', 'b=0.5', 'c=0.5', 'a=0.5,b=0.5', 'a=0.5,c=0.5', 'b=0.5,c=0.5']
        """
        names = _check_sites(sites, **options)
        product = check_choice(combine, "combine", ("common", "product")) == "product"
        sizes = range(1, min(_check_whole(at_most, "at_most", 1), len(names)) + 1)
        if (count := sum(math.comb(len(names), size) for size in sizes)) > 10**6:
            received = Phrase(f"{at_most}, which makes {count:,} subsets")
            raise BadInput("at_most must give a million subsets at most", "at_most", received, "use .random")
        chosen = [subset for size in sizes for subset in combinations(names, size)]
        return _over_rates(chosen, _check_rates(rates), options, product=product)

    @staticmethod
    @shares(_placed)
    def random(
        sites: Iterable[str],
        count: int,
        low: float = 0.05,
        high: float = 0.95,
        seed: int = 0,
        **options: Unpack[PlacementOptions],
    ) -> PlacementSpace:
        """Independent draws: how many sites (1 to all), which ones, and for each a rate in [low, high].

        Rates are whole thousandths. Draw i depends on the seed and i alone, so a larger count only adds to the end.

        Args:
            sites: Names of sites or groups.
            count: How many draws.
            low: Lowest rate, at least 0.001.
            high: Highest rate, at most 0.999.
            seed: Same seed, same placements.

        Raises:
            BadInput: Where a site, rate, count, seed or option cannot be used.

        Examples:
            >>> [str(p) for p in PlacementSpace.random(["conv1", "fc1"], count=2)]
            ['conv1=0.75,fc1=0.136', 'conv1=0.614,fc1=0.532']
        """
        names, key = _check_sites(sites, **options), _check_whole(seed, "seed", 0)
        least, most = round(1000 * check_rate(low, "low")), round(1000 * check_rate(high, "high"))
        if not 1 <= least <= most <= 999:
            rule = "low and high must have 0.001 ≤ low ≤ high ≤ 0.999"
            raise BadInput(rule, "low, high", (low, high), "write low=0.05, high=0.95")

        def at(index: int) -> Placement:
            # Only Random.random is promised to give the same values in every version of Python: all is made from it.
            uniform = random.Random(f"{key}:{index}").random
            chosen = sorted(names, key=lambda _: uniform())[: 1 + int(uniform() * len(names))]
            return _placed({n: (least + int(uniform() * (most - least + 1))) / 1000 for n in chosen}, **options)

        return PlacementSpace(_check_whole(count, "count", 1), at)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Placement: ...
    @overload
    def __getitem__(self, index: slice) -> PlacementSpace: ...
    def __getitem__(self, index: int | slice) -> Placement | PlacementSpace:
        picked = range(self._length)[index]  # counts from the end, cuts slices and raises IndexError as a list does
        if isinstance(picked, range):
            return PlacementSpace(len(picked), lambda i: self._at(picked[i]))
        return self._at(picked)

    def index(self, value: Placement | str, start: int = 0, stop: int | None = None) -> int:
        """The index of a placement.

        Args:
            value: The placement, or its text.
            start: The first index to look at.
            stop: The index to stop before; None means the end.

        Raises:
            ValueError: Where it is not in the space.
        """
        at = self._find(as_placement(value), range(self._length)[start:stop])
        if at is None:
            raise ValueError(f"{value} is not in {self!r}")
        return at

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str | Placement) and self._find(as_placement(value), range(self._length)) is not None

    def _find(self, wanted: Placement, indices: range) -> int | None:
        return next((i for i in indices if self._at(i) == wanted), None)

    def __add__(self, other: Iterable[Placement | str]) -> PlacementSpace:
        return _join(self, other) if _is_many(other) else NotImplemented

    def __radd__(self, other: Iterable[Placement | str]) -> PlacementSpace:
        return _join(other, self) if _is_many(other) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return _join, (tuple(self),)  # the rule that computes the placements is a closure and cannot travel; they can

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length:,} placements)"


class PlacementGrid(PlacementSpace):
    """Every non-empty subset of the sites × a rate for each × positions × noise.

    Order: noise, then position, then counting up with one digit per site (0 = off, else the rates as given), the first
    site being the slowest. With sites in call order, neighbours so share the longest stretch of unchanged computation.

    Args:
        sites: Names of sites or groups. A site may carry its own `#call` and `@position`; with the latter, `positions`
            stays at "auto".
        rates: Rates above 0 and below 1.
        positions: Positions to try, as in `Placement`.
        noise: Noises to try, as in `Placement`.
        mask: What one draw covers, as in `Placement`.

    Attributes:
        sites: The sites, checked, as a tuple.
        rates: The rates, as a tuple.
        positions: The positions, as a tuple.
        noise: The names of the noises, as a tuple.
        mask: As given.

    Raises:
        BadInput: Where an axis is empty, has an entry twice, or an entry that cannot be used.

    Examples:
        >>> grid = PlacementGrid(["conv1", "conv2", "conv3", "fc1"], positions=("input", "output"))
        >>> grid
        PlacementGrid(19,998 placements)
        >>> print(grid[0], grid[9], grid[-1], sep="; ")
        fc1@input=0.1; conv3@input=0.1; conv1@output=0.9,conv2@output=0.9,conv3@output=0.9,fc1@output=0.9
        >>> grid.index("fc1@output=0.8")
        10006
    """

    def __init__(
        self,
        sites: Iterable[str],
        rates: Iterable[float] = RATES,
        positions: Iterable[str] = ("auto",),
        noise: Iterable[str | Callable[..., Any]] = ("bernoulli",),
        mask: str = "auto",
    ) -> None:
        self.positions = _check_axis(positions, "positions", lambda p: check_choice(p, "positions", POSITIONS))
        self.noise = _check_axis(noise, "noise", noise_name)
        self.rates, self.mask = _check_rates(rates), mask
        crossed = next((p for p in self.positions if p != "auto"), "auto")
        self.sites = _check_sites(sites, position=crossed, mask=mask)
        self._codes = (len(self.rates) + 1) ** len(self.sites) - 1
        super().__init__(self._codes * len(self.positions) * len(self.noise), self._count_up)

    def _count_up(self, index: int) -> Placement:
        block, code = divmod(index, self._codes)
        noise, position = divmod(block, len(self.positions))
        rates, code = {}, code + 1  # code 0 would be the empty subset
        for site in reversed(self.sites):
            code, digit = divmod(code, len(self.rates) + 1)
            if digit:
                rates[site] = self.rates[digit - 1]
        return Placement(rates, self.positions[position], self.noise[noise], self.mask)

    def _find(self, wanted: Placement, indices: range) -> int | None:
        """By arithmetic, not by search: one guess per block, checked against what stands there."""
        digits = {term.address: self.rates.index(term.rate) + 1 for term in wanted.terms if term.rate in self.rates}
        for block in range(len(self.positions) * len(self.noise)):
            position, code = self.positions[block % len(self.positions)], 0
            for site in self.sites:
                address = site if position == "auto" else f"{site}@{position}"
                code = code * (len(self.rates) + 1) + digits.get(address, 0)
            guess = block * self._codes + code - 1
            if code and guess in indices and self._count_up(guess) == wanted:
                return guess
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacementGrid, (self.sites, self.rates, self.positions, self.noise, self.mask)


def _over_rates(
    subsets: Sequence[Sequence[str]], rates: Sequence[float], options: PlacementOptions, *, product: bool
) -> PlacementSpace:
    ends = [0, *accumulate(len(rates) ** (len(subset) if product else 1) for subset in subsets)]

    def at(index: int) -> Placement:
        which = bisect_right(ends, index) - 1
        code, chosen = index - ends[which], {}
        for site in reversed(subsets[which]):
            rest, digit = divmod(code, len(rates))
            chosen[site] = rates[digit]
            code = rest if product else code
        return _placed(chosen, **options)

    return PlacementSpace(ends[-1], at)


def _join(*parts: Iterable[Placement | str]) -> PlacementSpace:
    spaces = [part if isinstance(part, PlacementSpace) else [as_placement(p) for p in part] for part in parts]
    ends = [0, *accumulate(len(space) for space in spaces)]

    def at(index: int) -> Placement:
        which = bisect_right(ends, index) - 1
        return spaces[which][index - ends[which]]

    return PlacementSpace(ends[-1], at)


def _is_many(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _check_axis(values: Iterable[Any], name: str, check: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not _is_many(values):
        raise BadInput(f"{name} must be a list", name, values, f"write [{values!r}]")
    checked = tuple(check(value) for value in values)
    if not checked or len(set(checked)) < len(checked):
        raise BadInput(f"{name} must have at least one entry, and none twice", name, checked, "list each entry once")
    return checked


def _check_rates(rates: Iterable[float]) -> tuple[float, ...]:
    checked = _check_axis(rates, "rates", lambda rate: check_rate(rate, "rates"))
    if 0 in checked:
        raise BadInput("rates must be above 0", "rates", checked, "leave 0 out: a space leaves sites out anyway")
    return checked


def _check_sites(sites: Iterable[str], **options: Unpack[PlacementOptions]) -> tuple[str, ...]:
    _placed({"any": 0.5}, **options)  # refuses bad options here, not at the first item
    position = options.get("position", "auto")

    def address(site: str) -> str:
        name, call, carried = parse_address(site)
        if carried is not None and position != "auto":
            rule = "sites must not state a position where one is given for all"
            raise BadInput(rule, "sites", site, f"write '{name}'")
        return Term(name, call, carried or "auto", 0.5).address

    return _check_axis(sites, "sites", address)


def _check_whole(value: int, name: str, least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    rule = f"{name} must be a whole number of at least {least}"
    raise BadInput(rule, name, value, f"write {name}={max(least, 1)}")
