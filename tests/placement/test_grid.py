"""Grids and spaces: sizes in closed form, one contract for every sequence, what is refused, then properties."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropscope.placement.grid import RATES, PlacementGrid, PlacementSpace
from dropscope.placement.noises import NOISES
from dropscope.placement.placement import POSITIONS, Placement
from support.errors import refused

CIFAR = ["conv1", "conv2", "conv3", "fc1"]
MANY = [f"layer.{i}" for i in range(40)]


def texts(placements: Sequence[Placement]) -> list[str]:
    return [str(placement) for placement in placements]


def test_the_papers_grid() -> None:
    """Benyamina and Jemelen, table 1: 10⁴ − 1 rate vectors, two positions, each placement once."""
    assert len(PlacementGrid(CIFAR)) == 9_999
    grid = PlacementGrid(CIFAR, positions=("before_activation", "after_activation"))
    assert len(grid) == len(set(grid)) == 19_998
    assert "19,998" in repr(grid)
    assert Placement({"conv2": 0.7, "conv3": 0.8, "fc1": 0.4}, position="after_activation") in grid


def test_order_is_fixed() -> None:
    grid = PlacementGrid(["b", "a"], rates=(0.5, 0.2), positions=("input", "auto"), noise=("gaussian", "bernoulli"))
    first = ["a@input=0.5", "a@input=0.2", "b@input=0.5", "a@input=0.5,b@input=0.5", "a@input=0.2,b@input=0.5"]
    assert texts(grid[:5]) == [f"{text} noise=gaussian" for text in first]
    assert texts(grid[8:11]) == ["a=0.5 noise=gaussian", "a=0.2 noise=gaussian", "b=0.5 noise=gaussian"]
    assert texts(grid[16:17]) == ["a@input=0.5"]
    assert str(grid[-1]) == "a=0.2,b=0.2"


def test_neighbours_change_in_the_last_sites() -> None:
    """The tree of shared work is walked in this order: the first site changes once per full count of all others."""
    first = [sum(t.rate for t in p.terms if t.name == "conv1") for p in PlacementGrid(CIFAR)]
    assert first == sorted(first)


def test_sites_may_carry_calls_and_positions() -> None:
    grid = PlacementGrid(["fc1#0@input", "fc1#1", "attention@auto"], rates=[0.5], mask="element")
    assert texts(grid)[-1] == "attention=0.5,fc1#0@input=0.5,fc1#1=0.5 mask=element"
    assert [grid.index(placement) for placement in grid] == list(range(7))


def test_a_grid_takes_no_memory() -> None:
    grid = PlacementGrid(MANY[:18])
    assert len(grid) == 10**18 - 1
    assert grid.index(grid[123_456_789_012_345]) == 123_456_789_012_345
    assert str(grid[1:][::-2][10**17].terms[0]) == "layer.0=0.7"
    assert len(grid + grid) == 2 * len(grid)


def test_single_sites() -> None:
    space = PlacementSpace.single_sites(["a", "b"], rates=(0.1, 0.2), noise="gaussian")
    assert texts(space) == [f"{text} noise=gaussian" for text in ("a=0.1", "a=0.2", "b=0.1", "b=0.2")]
    assert len(PlacementSpace.single_sites(MANY)) == 360


def test_suffixes() -> None:
    space = PlacementSpace.suffixes(["c", "b", "a"], rates=(0.1, 0.2), position="input")
    assert texts(space)[:3] == ["a@input=0.1", "a@input=0.2", "a@input=0.1,b@input=0.1"]
    assert str(space[-1]) == "a@input=0.2,b@input=0.2,c@input=0.2"
    assert len(space) == 6


@pytest.mark.parametrize("combine", ["common", "product"])
def test_subsets_are_those_of_itertools(combine: str) -> None:
    sites, rates = ["a", "b", "c", "d"], (0.1, 0.5, 0.3)
    expected = [
        Placement(dict(zip(chosen, values, strict=True)))
        for size in (1, 2, 3)
        for chosen in itertools.combinations(sites, size)
        for values in (
            itertools.product(rates, repeat=size) if combine == "product" else zip(*[rates] * size, strict=True)
        )
    ]
    assert list(PlacementSpace.subsets(sites, rates, at_most=3, combine=combine)) == expected


def test_all_subsets_are_the_grid() -> None:
    space = PlacementSpace.subsets(CIFAR, rates=(0.2, 0.6), at_most=9, combine="product")
    grid = PlacementGrid(CIFAR, rates=(0.2, 0.6))
    assert len(space) == len(grid)
    assert set(space) == set(grid)


def test_random_draws() -> None:
    space = PlacementSpace.random(MANY, count=300, low=0.2, high=0.4, seed=7)
    assert list(space) == list(PlacementSpace.random(MANY, count=900, low=0.2, high=0.4, seed=7)[:300])
    assert list(space) != list(PlacementSpace.random(MANY, count=300, low=0.2, high=0.4, seed=8))
    drawn = [term.rate for placement in space for term in placement.terms]
    assert (min(drawn), max(drawn)) == (0.2, 0.4)
    assert all(rate == round(rate, 3) for rate in drawn)
    assert {len(placement.terms) for placement in space} == set(range(1, 41))
    assert {term.name for placement in space for term in placement.terms} == set(MANY)
    # A stored sweep resumes on the same placements only as long as this never changes.
    assert texts(PlacementSpace.random(["a", "b"], count=3)) == ["a=0.75,b=0.136", "a=0.614,b=0.532", "a=0.395,b=0.393"]


SPACES = {
    "grid": PlacementGrid(["a", "b"], rates=(0.1, 0.2), positions=("input", "output"), noise=("bernoulli", "gaussian")),
    "grid of one": PlacementGrid(["a"], rates=(0.5,)),
    "slice": PlacementGrid(CIFAR)[500:20:-7],
    "single sites": PlacementSpace.single_sites(CIFAR, mask="element"),
    "suffixes": PlacementSpace.suffixes(CIFAR),
    "pairs": PlacementSpace.subsets(CIFAR, rates=(0.1, 0.5), combine="product"),
    "random": PlacementSpace.random(CIFAR, count=20),
    "joined": ["none", Placement("own")] + PlacementSpace.suffixes(CIFAR) + [] + PlacementGrid(["x"]) + ("own*2",),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_contract_of_a_sequence(space: PlacementSpace) -> None:
    listed = list(space)
    assert isinstance(space, Sequence)
    assert len(space) == len(listed) > 0
    assert all(isinstance(placement, Placement) for placement in listed)
    assert [space[i] for i in range(-len(listed), len(listed))] == listed * 2
    assert list(reversed(space)) == listed[::-1]
    assert [space.index(p) for p in listed] == [listed.index(p) for p in listed]
    assert all(p in space and str(p) in space for p in listed)
    assert "elsewhere=0.5" not in space
    assert 3 not in space
    assert list(pickle.loads(pickle.dumps(space))) == listed
    assert f"{len(listed):,}" in repr(space)
    for outside in (len(listed), -len(listed) - 1):
        with pytest.raises(IndexError):
            space[outside]
    with pytest.raises(ValueError, match="is not in"):
        space.index("elsewhere=0.5")
    with pytest.raises(ValueError, match="is not in"):
        space.index(listed[0], 1, 1)
    with refused("placement"):
        assert "not a placement" in space
    with pytest.raises(TypeError):
        space + "none"
    with pytest.raises(TypeError):
        3 + space  # type: ignore[operator]


@given(st.sampled_from(sorted(SPACES)), st.slices(12))
def test_slices_are_those_of_a_list(name: str, cut: slice) -> None:
    assert list(SPACES[name][cut]) == list(SPACES[name])[cut]


@pytest.mark.parametrize(
    ("arguments", "name", "remedy"),
    [
        ({"sites": []}, "sites", ""),
        ({"sites": "conv1"}, "sites", "write ['conv1']"),
        ({"sites": None}, "sites", ""),
        ({"sites": ["a", "a"]}, "sites", ""),
        ({"sites": ["a", "a@auto"]}, "sites", ""),
        ({"sites": ["own"]}, "site", ""),
        ({"sites": ["a=0.5"]}, "site", ""),
        ({"sites": [1]}, "site", ""),
        ({"rates": []}, "rates", ""),
        ({"rates": 0.5}, "rates", ""),
        ({"rates": [0.0, 0.5]}, "rates", ""),
        ({"rates": [1.0]}, "rates", ""),
        ({"rates": ["0.5"]}, "rates", ""),
        ({"rates": [0.5, 0.5]}, "rates", ""),
        ({"positions": ["inptu"]}, "positions", "'input'"),
        ({"positions": []}, "positions", ""),
        ({"positions": "input"}, "positions", "write ['input']"),
        ({"positions": ["input", "input"]}, "positions", ""),
        ({"sites": ["a@output"], "positions": ["input"]}, "sites", ""),
        ({"sites": ["a@input"], "positions": ["auto", "input"]}, "sites", ""),
        ({"noise": ["gausian"]}, "noise", "'gaussian'"),
        ({"mask": "elements"}, "mask", "'element'"),
        ({"sites": MANY}, "length", "use PlacementSpace"),
    ],
)
def test_refused_grid(arguments: dict, name: str, remedy: str) -> None:
    with refused(name) as caught:
        PlacementGrid(**{"sites": CIFAR, **arguments})
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PlacementSpace.subsets(CIFAR, at_most=0), "at_most"),
        (lambda: PlacementSpace.subsets(CIFAR, at_most=True), "at_most"),
        (lambda: PlacementSpace.subsets(CIFAR, combine="prodcut"), "combine"),
        (lambda: PlacementSpace.subsets(MANY, at_most=20), "at_most"),
        (lambda: PlacementSpace.suffixes(CIFAR, noise="normal"), "noise"),
        (lambda: PlacementSpace.suffixes(["a@input"], position="output"), "sites"),
        (lambda: PlacementSpace.single_sites([]), "sites"),
        (lambda: PlacementSpace.single_sites(CIFAR, rates=[0]), "rates"),
        (lambda: PlacementSpace.random(CIFAR, count=0), "count"),
        (lambda: PlacementSpace.random(CIFAR, count=2.0), "count"),  # type: ignore[arg-type]
        (lambda: PlacementSpace.random(CIFAR, count=sys.maxsize + 1), "length"),
        (lambda: PlacementSpace.random(CIFAR, count=1, seed=-1), "seed"),
        (lambda: PlacementSpace.random(CIFAR, count=1, low=0.6, high=0.4), "low, high"),
        (lambda: PlacementSpace.random(CIFAR, count=1, low=0), "low, high"),
        (lambda: PlacementSpace.random(CIFAR, count=1, high=0.9999), "low, high"),
        (lambda: PlacementSpace.suffixes(CIFAR) + ("conv1",), "placement"),  # noqa: RUF005
    ],
)
def test_refused_space(make, name: str) -> None:
    with refused(name):
        make()


@given(
    st.lists(st.sampled_from(["a", "b#1", "c:dropout", "attention"]), min_size=1, unique=True),
    st.lists(st.sampled_from(RATES), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(POSITIONS), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(NOISES), min_size=1, unique=True),
    st.data(),
)
def test_index_undoes_item(sites: list, rates: list, positions: list, noise: list, data: st.DataObject) -> None:
    grid = PlacementGrid(sites, rates, positions, noise)
    assert len(grid) == ((len(rates) + 1) ** len(sites) - 1) * len(positions) * len(noise)
    place = data.draw(st.integers(0, len(grid) - 1))
    assert grid.index(grid[place]) == grid.index(str(grid[place])) == place
    assert 0 < len(grid[place].terms) <= len(sites)
