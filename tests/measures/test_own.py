"""Measures of a user's own: the two forms are told apart, named, and what they return is checked."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from dropscope import measures
from dropscope.measures import of_passes, of_statistics, resolve
from dropscope.measures.statistics import CHEAP, PassStatistics, from_passes
from support.errors import refused


def passes_of(spatial: tuple[int, ...] = ()) -> Tensor:
    return torch.randn(20, 7, 4, *spatial, generator=torch.Generator().manual_seed(0)).softmax(2)


def wide(stats: PassStatistics) -> Tensor:
    return stats.class_variance.amax(-1)


def upper(passes, level=0.9):
    return passes.amax(2).quantile(level, 0)


FORMS = {
    "statistics": (lambda stats: stats.mean.amax(-1), "statistics"),
    "statistics by annotation": (wide, "statistics"),
    "a histogram": (lambda stats: stats.read("histogram").amax(-1).float().mean(-1), "statistics"),
    "the plain pass": (lambda stats: stats.predicted_deviation, "statistics"),
    "a method of tensors": (lambda p: p.std(0).amax(1), "passes"),
    "a quantile": (upper, "passes"),
    "a partial": (functools.partial(upper, level=0.5), "passes"),
    "maps alone": (lambda p: torch.nn.functional.avg_pool2d(p.var(0).sum(1), 3, 1, 1), "passes"),
    "whole numbers": (lambda p: p.argmax(2).mode(0).values, "passes"),
}


@pytest.mark.parametrize(("function", "form"), FORMS.values(), ids=FORMS)
def test_a_function_is_of_what_it_works_on(function: Any, form: str) -> None:
    assert resolve(function)[0].of == form


def test_a_function_of_statistics_gets_what_it_reads() -> None:
    assert resolve(lambda stats: stats.mean.amax(-1))[0].needs == CHEAP
    assert resolve(lambda stats: stats.predicted_deviation)[0].needs == (*CHEAP, "predicted_deviation")
    assert of_statistics(wide, needs=["class_moments"]).needs == ("class_moments",)
    with refused("measures"):
        of_statistics(wide, needs=["sum_p"])


def test_both_forms_take_stored_passes_of_any_origin() -> None:
    """Members of an ensemble or augmented inputs are passes too."""
    p = passes_of()
    torch.testing.assert_close(of_statistics(wide)(p), p.double().var(0, unbiased=False).amax(-1))
    torch.testing.assert_close(of_statistics(wide)(from_passes(p, ["class_moments"])), of_statistics(wide)(p))
    torch.testing.assert_close(of_passes(upper)(p), upper(p))
    assert of_statistics(wide)(passes_of((3, 5))).shape == (7, 3, 5)


def test_names_are_their_own_and_nobody_elses() -> None:
    half, low = functools.partial(upper, level=0.5), functools.partial(upper, level=0.1)
    rows = resolve([lambda p: p.std(0).amax(1), "bald", half, lambda stats: stats.mean.amax(-1), low, upper])
    assert [row.name for row in rows] == ["lambda_1", "bald", "upper_1", "lambda_2", "upper_2", "upper"]
    assert of_passes(lambda p: p.std(0).amax(1), name="deviation").name == "deviation"
    for twice in ([upper, of_passes(half, name="upper")], [wide, wide]):
        with refused("measures"):
            resolve(twice)
    for taken in ("prediction", "two words", ""):
        with refused("measures"):
            resolve([of_passes(upper, name=taken)])


WRONG = {
    "neither": lambda given: given.nothing_like_it,
    "over examples": lambda stats: stats.mean.amax(1),
    "one number for all": lambda p: p.std(),
    "no tensor": lambda p: 3.0,
    "two arguments": lambda stats, more: stats.mean.amax(-1),
    "no function": 3,
}


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG)
def test_what_is_no_measure_is_refused_in_one_line_that_names_both_forms(function: Any) -> None:
    with refused("measures") as caught:
        resolve([function])
    assert "\n" not in str(caught.value)
    if callable(function):
        assert all(form in str(caught.value) for form in ("stats", "passes"))


def test_a_form_that_is_asked_for_must_fit() -> None:
    with refused("measures"):
        of_passes(wide)
    with refused("measures"):
        of_statistics(upper)

    def unsure(given):
        return given.std(0).amax(1)

    unsure.of = "samples"
    with refused("measures"):
        resolve(unsure)


@pytest.mark.parametrize(
    "function",
    [
        lambda p: p.mean(0)[:, 0] + (float("nan") if len(p) == 20 else 0),
        lambda p: p.mean(0)[:, 0] / (0 if len(p) == 20 else 1),
        lambda p: p.mean(0)[:, 0] if len(p) < 20 else p,
        lambda p: p.mean(0)[:, 0] if len(p) < 20 else p.nothing_like_it,
    ],
    ids=["NaN", "infinity", "another shape", "an error"],
)
def test_what_a_measure_returns_is_checked_and_the_measure_named(function: Any) -> None:
    row = of_passes(function, name="shaky")
    with refused("measures") as caught:
        row(passes_of())
    assert "shaky" in str(caught.value)


def test_the_trial_draws_nothing() -> None:
    before = torch.get_rng_state()
    resolve([wide, upper])
    assert torch.equal(torch.get_rng_state(), before)


def test_built_in_functions_are_not_tried() -> None:
    assert not resolve([measures.bald])[0].own
