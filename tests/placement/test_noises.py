"""Noises by name: functions get names that texts keep, and one name never means two functions unnoticed."""

from __future__ import annotations

import functools

import pytest

from dropscope.placement import noises
from dropscope.placement.grid import PlacementGrid, PlacementSpace
from dropscope.placement.noises import own_noise, register_noise
from dropscope.placement.placement import Placement
from support.errors import refused


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noises, "_OWN", {})


def ramp(uniforms, rate):
    return uniforms / rate


def made(scale):
    def noise_of(uniforms, rate):
        return uniforms * scale

    return noise_of


def test_a_function_is_a_noise_under_its_name_and_its_text_round_trips():
    placement = Placement({"fc1": 0.5}, noise=ramp)
    assert placement.noise == "ramp"
    assert str(placement) == "fc1=0.5 noise=ramp"
    assert Placement.parse(str(placement)) == placement
    assert own_noise("ramp") is ramp
    assert own_noise("gaussian") is None


def test_a_name_can_be_chosen():
    hard = register_noise(lambda uniforms, rate: uniforms, name="hard")
    assert str(Placement({"fc1": 0.5}, noise=hard)) == "fc1=0.5 noise=hard"
    half = functools.partial(ramp, rate=0.5)
    with refused("noise"):
        Placement({"fc1": 0.5}, noise=half)
    register_noise(half, name="half")
    assert Placement({"fc1": 0.5}, noise=half).noise == "half"


def test_grids_and_spaces_take_functions():
    assert PlacementGrid(["fc1"], [0.5], noise=["gaussian", ramp]).noise == ("gaussian", "ramp")
    assert {p.noise for p in PlacementSpace.single_sites(["fc1", "fc2"], noise=ramp)} == {"ramp"}


def test_one_name_does_not_mean_two_functions_unnoticed():
    first = Placement({"fc1": 0.5}, noise=made(2))
    assert Placement({"fc1": 0.5}, noise=made(2)) == first  # a cell of a notebook that ran twice
    with refused("noise"):
        Placement({"fc1": 0.5}, noise=made(3))
    register_noise(made(3))  # in so many words
    assert Placement("fc1=0.5 noise=noise_of") == first


@pytest.mark.parametrize("name", ["gaussian", "alpha", "two words", "a=b", "", None])
def test_names_that_texts_cannot_hold_are_refused(name):
    with refused("noise"):
        register_noise(lambda uniforms, rate: uniforms, name=name)


def test_a_name_that_nobody_registered_is_refused():
    with refused("noise"):
        Placement("fc1=0.5 noise=zigzag")
    with refused("noise"):
        register_noise(ramp)
        Placement("fc1=0.5 noise=rampp")
    with refused("noise"):
        Placement({"fc1": 0.5}, noise=3)  # type: ignore[arg-type]
