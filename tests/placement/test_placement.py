"""Placement: closed cases of the text form, what is refused and how, then properties over placements and garbage."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dropscope.placement
from dropscope.errors import BadInput
from dropscope.placement.noises import NOISES
from dropscope.placement.placement import (
    GROUPS,
    MASKS,
    POSITIONS,
    Own,
    Placement,
    Term,
    as_placement,
    parse_address,
)
from support.errors import refused

CANONICAL = [
    ("none", "none"),
    ("fc1=.8", "fc1=0.8"),
    ("fc1=7e-1", "fc1=0.7"),
    (
        "conv2=.7, conv3 = .8 ,fc1=0.40 noise=gaussian mask=element",
        "conv2=0.7,conv3=0.8,fc1=0.4 noise=gaussian mask=element",
    ),
    ("\tfc1=.5\n mask = element  noise =gaussian ", "fc1=0.5 noise=gaussian mask=element"),
    ("fc1=.5 noise=bernoulli mask=auto", "fc1=0.5"),
    ("fc1@auto=.5", "fc1=0.5"),
    ("b=.1,a@output=.1,a@input=.1,a#10=.1,a#2=.1,a=.1", "a=0.1,a@input=0.1,a@output=0.1,a#2=0.1,a#10=0.1,b=0.1"),
    ("encoder.layer.0.attention.self@weights=.6", "encoder.layer.0.attention.self@weights=0.6"),
    ("block:dropout#03=.1", "block:dropout#3=0.1"),
    ("größe=0.1", "größe=0.1"),
    ("noise=0.5 noise=gaussian", "noise=0.5 noise=gaussian"),
    # Zero is no site, except where something broader would put noise there.
    ("fc1=0", "none"),
    ("fc1=-0.0,fc2=0 noise=gaussian", "none"),
    ("none noise=gaussian mask=element", "none"),
    ("conv1=0,fc1=.5", "fc1=0.5"),
    ("all=.1,conv1=0", "all=0.1,conv1=0"),
    ("all=.1,conv1=-0.0", "all=0.1,conv1=0"),
    ("own,conv1=0", "own,conv1=0"),
    ("fc1=.5,fc1#1=0", "fc1=0.5,fc1#1=0"),
    ("attention=0,ffn=0", "none"),
    ("attention=0,fc1=.5", "fc1=0.5"),
    ("own*1", "own"),
    ("own.all*2", "own*2"),
    ("own * 2.50", "own*2.5"),
    ("fc1=.5,own.ffn*0.5,own.attention,own", "own,own.attention,own.ffn*0.5,fc1=0.5"),
    ("own,own.attention*0", "own,own.attention*0"),
    ("own*0", "none"),
    ("own*0,own.ffn*0,fc1=.5", "fc1=0.5"),
    ("fc1 = rate_in(.10),conv2=.3", "conv2=0.3,fc1=rate_in(0.1)"),
    ("fc1=rate_in(0)", "none"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_text_has_one_canonical_form(text: str, canonical: str) -> None:
    placement = Placement.parse(text)
    assert str(placement) == canonical
    assert repr(placement) == f"Placement({canonical!r})"
    assert Placement.parse(canonical) == placement == eval(repr(placement))
    assert placement.is_none == (canonical == "none")


def test_parts_can_be_read() -> None:
    placement = Placement.parse("fc1#2@input=.8,all=.1,own.ffn*2 noise=multinomial mask=channel")
    assert placement.terms == (Term("all", None, "auto", 0.1), Term("fc1", 2, "input", 0.8))
    assert placement.own == (Own("ffn", 2.0),)
    assert (placement.noise, placement.mask) == ("multinomial", "channel")
    assert [term.is_group for term in placement.terms] == [True, False]
    assert {t.address: t.rate for t in placement.terms} == {"all": 0.1, "fc1#2@input": 0.8}


def test_a_share_of_information_may_stand_in_place_of_a_rate() -> None:
    (term,) = Placement.parse("fc1@input=rate_in(.25)").terms
    assert (term.rate, term.adaptive, str(term)) == (0.25, True, "fc1@input=rate_in(0.25)")
    assert Placement({"fc1": "rate_in(0.25)"}) != Placement({"fc1": 0.25})
    for text in ("fc1=rate_in(1)", "fc1=rate_in(-.1)", "fc1=rate_in()", "fc1=rate_in(half)", "fc1=rate_in(.1"):
        with refused("rate of 'fc1'"):
            Placement.parse(text)


def test_position_is_the_default_of_terms_that_name_none() -> None:
    assert Placement({"fc1": 0.8}, position="input") == Placement.parse("fc1@input=.8")
    assert str(Placement({"a": 0.1, "b@output": 0.1, "c@auto": 0.1, "own": 1}, position="input")) == (
        "own,a@input=0.1,b@output=0.1,c=0.1"
    )
    assert Placement("fc1=.8 noise=gaussian", position="input", noise="multinomial", mask="element") == Placement.parse(
        "fc1@input=.8 noise=gaussian mask=element"
    )


def test_every_form_stands_for_the_same_placement() -> None:
    placement = Placement({"own.attention": 2, "fc1": np.float64(0.5), "fc2": Fraction(1, 4)})
    assert as_placement(placement) is placement
    assert as_placement("own.attention*2,fc1=.5,fc2=.25") == placement
    assert as_placement({"own.attention": 2.0, "fc2": 0.25, "fc1": 0.5}) == placement
    assert Placement.none() == Placement.parse("none") == Placement({"fc1": 0}) == as_placement("none")
    assert placement != str(placement)


def test_placement_is_frozen_and_travels() -> None:
    placement = Placement.parse("fc1=.8 noise=gaussian")
    with pytest.raises(AttributeError):
        placement.noise = "bernoulli"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(placement)) == copy.deepcopy(placement) == placement


def test_key_and_hash_are_the_same_in_every_process() -> None:
    code = "from dropscope.placement import Placement as P; p = P('fc1=.8'); print(p.key, hash(p), P.none().key)"
    source = str(Path(dropscope.__file__).parents[1])
    command = [sys.executable, "-c", code]
    runs = {
        subprocess.run(
            command, env={"PYTHONPATH": source, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    placement = Placement.parse("fc1=0.8")
    assert runs == {f"{placement.key} {hash(placement)} {Placement.none().key}\n"}
    # SHA-256 of "none": a stored run is found again only as long as this never changes.
    assert Placement.none().key == "140bedbf9c3f6d56"


REFUSED = [  # text, what the error is about, and a part of its remedy
    ("", "placement", "write 'none'"),
    ("  ", "placement", "write 'none'"),
    ("fc1", "placement", "write 'fc1=0.5'"),
    ("fc1=1.0", "rate of 'fc1'", ""),
    ("fc1=1", "rate of 'fc1'", ""),
    ("fc1=-0.1", "rate of 'fc1'", ""),
    ("fc1=nan", "rate of 'fc1'", ""),
    ("fc1=inf", "rate of 'fc1'", ""),
    ("fc1=1e999", "rate of 'fc1'", ""),
    ("fc1=abc", "rate of 'fc1'", ""),
    ("fc1=", "rate of 'fc1'", ""),
    ("fc1=0_1", "rate of 'fc1'", ""),
    ("fc1=٠.٥", "rate of 'fc1'", ""),
    ("fc1=.5=.5", "rate of 'fc1'", ""),
    ("=0.5", "site", ""),
    ("@input=0.5", "site", ""),
    ("fc1=.5,", "placement", ""),
    (",", "placement", ""),
    ("fc1=.5,,fc2=.5", "placement", ""),
    ("fc*=.5", "site", ""),
    ("\x00=.5", "site", ""),
    ("\ud800=.5", "site", ""),
    ("fc1#-1=.5", "call", ""),
    ("fc1#x=.5", "call", ""),
    ("fc1#=.5", "call", ""),
    ("fc1#" + "9" * 5000 + "=.5", "call", ""),
    ("fc1@=.5", "position", ""),
    ("fc1@inptu=.5", "position", "'input'"),
    ("fc1@input#0=.5", "position", "'input'"),
    ("fc1=.5 noise=gausian", "noise", "'gaussian'"),
    ("fc1=.5 mask=elements", "mask", "'element'"),
    ("fc1=.5 nois=gaussian", "placement", "'noise'"),
    ("fc1=.5 position=input", "placement", "write fc1@input"),
    ("fc1=.5 fc2=.5", "placement", "write 'fc1=.5,fc2=.5'"),
    ("fc1=.5 noise=gaussian noise=gaussian", "placement", ""),
    ("fc1=.5 noise", "noise", ""),
    ("fc1=.5,noise=gaussian", "placement", "write 'fc1=0.5 noise=gaussian'"),
    ("noise=gaussian", "placement", ""),
    ("none,fc1=.5", "placement", ""),
    ("none=.5", "site", ""),
    ("own=.5", "site", "write 'own', 'own*2'"),
    ("own@input=.5", "site", ""),
    ("own*2=.5", "site", ""),
    ("own*-1", "scale of 'own'", ""),
    ("own*", "scale of 'own'", ""),
    ("own*nan", "scale of 'own'", ""),
    ("own.attentoin", "group of 'own'", "'attention'"),
    ("own.attention=.5", "site", "write 'own', 'own*2'"),
    ("own.", "group of 'own'", ""),
    ("own,own*2", "own", ""),
    ("own,own.all", "own", ""),
    ("fc1=.5,fc1=.5", "site", ""),
    ("fc1=.5,fc1@auto=.4", "site", ""),
    ("fc1#1=.5,fc1#01=.4", "site", ""),
]


@pytest.mark.parametrize(("text", "name", "remedy"), REFUSED, ids=range(len(REFUSED)))
def test_refused_text_says_what_to_write(text: str, name: str, remedy: str) -> None:
    with refused(name) as caught:
        Placement.parse(text)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("fc1:0.5", "fc1=0.5"),
        ("fc1 : 0.5, fc2: .25", "fc1=0.5,fc2=0.25"),
        ("block:relu:0.5", "block:relu=0.5"),
        ("fc1@input:0.5 noise=gaussian", "fc1@input=0.5 noise=gaussian"),
        ("fc1 0.5", "fc1=0.5"),
        ("fc1 0.5, fc2 0.3", "fc1=0.5,fc2=0.3"),
        ("fc1(0.5)", "fc1=0.5"),
        ("fc1=50%", "fc1=0.5"),
        ("fc1=12.5 %,fc2=20%", "fc1=0.125,fc2=0.2"),
        ("fc1=50", "fc1=0.5"),
        ("fc1==0.5", "fc1=0.5"),
        ("fc1->0.5", "fc1=0.5"),
        ("fc1=0,5", "fc1=0.5"),
        ("fc1=,5 fc2=0,25", "fc1=0.5,fc2=0.25"),
        ('{"fc1": 0.5, "fc2": 0.25}', "fc1=0.5,fc2=0.25"),
        ("{'fc1': 0.5}", "fc1=0.5"),
        ("'fc1=0.5'", "fc1=0.5"),
        ("fc1=.5;conv=.2", "fc1=0.5,conv=0.2"),
        ("fc1=0,5; conv=0,2", "fc1=0.5,conv=0.2"),
        ("fc1=.5 | conv=.2", "fc1=0.5,conv=0.2"),
        ("fc1=.5 + conv=.2", "fc1=0.5,conv=0.2"),
        ("fc1=.5 conv=.2 mask=element", "fc1=0.5,conv=0.2 mask=element"),
        ("fc1=.5,", "fc1=0.5"),
    ],
)
def test_a_text_that_is_almost_a_placement_is_refused_with_the_one_it_means(text: str, meant: str) -> None:
    with pytest.raises(BadInput) as caught:
        Placement(text)
    written = re.fullmatch("write '(.*)'", caught.value.remedy)
    assert written is not None, caught.value.remedy
    assert Placement(written[1]) == Placement(meant)


@pytest.mark.parametrize(
    ("rates", "name"),
    [
        ({}, "rates"),
        (None, "rates"),
        (3, "rates"),
        (["fc1"], "rates"),
        (b"fc1=.5", "rates"),
        ({"fc1": True}, "rate of 'fc1'"),
        ({"fc1": "0.5"}, "rate of 'fc1'"),
        ({"fc1": None}, "rate of 'fc1'"),
        ({"fc1": 10**400}, "rate of 'fc1'"),
        ({"fc1": float("nan")}, "rate of 'fc1'"),
        ({1: 0.5}, "site"),
        ({"": 0.5}, "site"),
        ({"own*2": 1}, "site"),
        ({"own": -1}, "scale of 'own'"),
        ({"own": True}, "scale of 'own'"),
        ({"none": 0.5}, "site"),
        ({"a": 0.1, "a@auto": 0.1}, "site"),
        ({"a b": 0.1}, "site"),
    ],
)
def test_refused_rates(rates: object, name: str) -> None:
    with refused(name):
        Placement(rates)  # type: ignore[arg-type]
    with refused(name if isinstance(rates, dict) else "placement"):
        as_placement(rates)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"position": "inptu"}, {"noise": "normal"}, {"mask": None}, {"position": 3}])
def test_refused_options(options: dict[str, str]) -> None:
    with refused(next(iter(options))):
        Placement({"fc1": 0.5}, **options)


@pytest.mark.parametrize("site", ["fc1=0.5", "fc1 0.5", "fc1 = .5"])
def test_a_site_with_a_rate_is_told_to_leave_it_out(site: str) -> None:
    with refused("site") as caught:
        dropscope.placement.PlacementGrid([site])
    assert "'fc1'" in caught.value.remedy


def test_own_takes_no_position() -> None:
    with refused("position"):
        Placement({"own": 1}, position="input")


def test_refused_values_of_the_wrong_type() -> None:
    with refused("text"):
        Placement.parse(3)  # type: ignore[arg-type]
    with refused("site"):
        parse_address(None)  # type: ignore[arg-type]


names = st.one_of(
    st.sampled_from(["fc1", "conv1", "encoder.layer.0.attention.self", "block:dropout", "a-b/c", *GROUPS]),
    st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="=,@#*"), min_size=1).filter(
        lambda name: name not in ("own", "none") and not name.startswith("own.") and name.isprintable()
    ),
)
addresses = st.builds(
    lambda name, call, position: name + ("" if call is None else f"#{call}") + (position and f"@{position}"),
    names,
    st.none() | st.integers(0, 12),
    st.just("") | st.sampled_from(POSITIONS[1:]),
)
rates = st.one_of(st.just(0.0), st.sampled_from([0.1, 0.5, 0.9]), st.floats(0, 1, exclude_max=True))
owns = st.sampled_from(["own", *(f"own.{group}" for group in GROUPS[1:])])
scales = st.floats(0, allow_infinity=False, allow_nan=False)
mappings = st.builds(
    lambda terms, own: {**terms, **own},
    st.dictionaries(addresses, rates, max_size=5),
    st.dictionaries(owns, scales, max_size=3),
).filter(bool)
placements = st.builds(Placement, mappings, noise=st.sampled_from(NOISES), mask=st.sampled_from(MASKS))


@given(placements)
def test_text_round_trips_exactly(placement: Placement) -> None:
    again = Placement.parse(str(placement))
    assert again == placement
    assert (str(again), again.key, hash(again)) == (str(placement), placement.key, hash(placement))
    spelt = {term.address: term.rate for term in placement.terms} | {own.address: own.scale for own in placement.own}
    assert not spelt or Placement(spelt, noise=placement.noise, mask=placement.mask) == placement


@given(mappings, st.randoms(use_true_random=False))
def test_order_and_spelling_do_not_matter(mapping: dict[str, float], shuffler) -> None:
    items = list(mapping.items())
    shuffler.shuffle(items)
    assert Placement(dict(items)) == Placement(mapping)
    text = " , ".join(
        f"{key}*{value!r}" if key.split(".")[0] == "own" else f"{key} = {value!r}" for key, value in items
    )
    assert Placement.parse(f" {text}  ") == Placement(mapping)


@given(placements, placements)
def test_equal_exactly_where_texts_and_keys_are(one: Placement, other: Placement) -> None:
    assert (one == other) == (str(one) == str(other)) == (one.key == other.key)


def _is_refused_or_round_trips(text: str) -> None:
    try:
        placement = Placement.parse(text)
    except BadInput:
        return
    assert Placement.parse(str(placement)) == placement
    assert len(placement.key) == 16


@given(st.text())
@example("own.all,own")
@example("a=.5\x1fnoise=gaussian")
def test_any_text_is_refused_or_a_placement(text: str) -> None:
    _is_refused_or_round_trips(text)


@given(
    placements,
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from("=,@#*. \t0-e:xn\ud800") | st.just("")), max_size=6),
)
def test_any_damaged_text_is_refused_or_a_placement(placement: Placement, edits: list[tuple[int, str]]) -> None:
    text = str(placement)
    for place, character in edits:
        place %= len(text) + 1
        text = text[:place] + character + text[place + (not character) :]
    _is_refused_or_round_trips(text)
