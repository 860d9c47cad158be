"""Spaces of placements: where a search begins, and what lies next to a placement."""

from __future__ import annotations

import torch
from torch import nn

from dropscope.injection import examine
from dropscope.model import Call
from dropscope.placement import Placement
from dropscope.runs.spaces import Space
from support.errors import refused


def space(sites: list[str] | None = None, rates: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)) -> Space:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Dropout(0.2),
                        nn.Linear(8, 3))  # fmt: skip
    return Space.of(examine(net, Call.of(torch.zeros(2, 4))), sites, rates)


def test_every_site_is_tried_beside_the_rules() -> None:
    every = space()
    assert every.sites == ("0", "2", "4")
    assert every.size == 5**3 - 1
    assert [str(p) for p in every.rules] == ["own", "last=0.1", "last=0.2", "last=0.3", "last=0.5"]
    assert len(every.whole()) == every.size + 5


def test_a_search_begins_with_single_sites_and_suffixes() -> None:
    texts = [str(p) for p in space().opening()]
    assert {"own", "2=0.3", "0=0.3", "2=0.3,4=0.3", "0=0.3,2=0.3,4=0.3"} <= set(texts)
    assert len(texts) == len(set(texts))


def test_a_limit_keeps_the_rules_and_one_rate_before_several() -> None:
    for limit in (1, 2, 5, 9, 100):
        few = space().opening(limit)
        assert {"own"} <= {str(p) for p in few}
        assert len(few) <= limit + 1 + 3
    assert {term.rate for p in space().opening(5) if not p.own for term in p.terms if term.name != "last"} == {0.3}


def test_neighbours_are_one_step_away() -> None:
    texts = {str(p) for p in space().neighbours(Placement.parse("2=0.2,4=0.3"))}
    assert {"2=0.1,4=0.2", "2=0.3,4=0.5", "2=0.1,4=0.3", "2=0.2,4=0.5", "2=0.2", "4=0.3"} <= texts
    assert "0=0.3,2=0.2,4=0.3" in texts
    assert "2=0.2,4=0.3" not in texts


def test_rules_have_neighbours_of_their_own_kind() -> None:
    assert [str(p) for p in space().neighbours(Placement.parse("last=0.1"))] == ["last=0.2"]
    assert space().neighbours(Placement.parse("own")) == []


def test_sites_and_rates_are_checked() -> None:
    assert space(["2", "0"]).sites == ("2", "0")
    with refused("sites"):
        space(["conv9"])
    for rates in ((), (0.0,), (0.1, 0.1)):
        with refused("rates"):
            space(rates=rates)
