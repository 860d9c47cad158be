"""Checks of single arguments: the value comes back, or an error about it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dropscope.checks import (
    check_choice,
    check_count,
    check_new_file,
    check_passes,
    check_rate,
    check_seed,
    check_training_seed,
    finite_number,
)
from support.errors import refused


@pytest.mark.parametrize("rate", [0, 0.0, 0.5, np.float32(0.25), np.nextafter(1, 0)])
def test_a_rate_comes_back_as_a_float(rate: float) -> None:
    checked = check_rate(rate, "rate of 'fc1'")
    assert type(checked) is float
    assert checked == rate


@pytest.mark.parametrize("rate", [1, 1.0, -0.1, math.nan, math.inf, "0.5", None, True, 10**400])
def test_what_is_no_rate_is_refused(rate: object) -> None:
    with refused("rate of 'fc1'") as caught:
        check_rate(rate, "rate of 'fc1'")
    assert caught.value.received is rate


def test_a_percentage_is_told_its_rate() -> None:
    with refused("rate of 'fc1'") as caught:
        check_rate(12.5, "rate of 'fc1'")
    assert "0.125" in caught.value.remedy


def test_minus_zero_is_zero() -> None:
    assert math.copysign(1, finite_number(-0.0) or 0.0) == 1


def test_a_choice_is_one_of_the_words_and_the_closest_is_suggested() -> None:
    assert check_choice("mean", "label", ("mean", "plain")) == "mean"
    with refused("label") as caught:
        check_choice("plian", "label", ("mean", "plain"))
    assert "'plain'" in caught.value.remedy
    with refused("label") as caught:
        check_choice(["xyz"], "label", ("mean", "plain"))
    assert caught.value.remedy == "write label='mean'"
    with refused("noise of 'fc1'") as caught:
        check_choice("xyz", "noise of 'fc1'", ("bernoulli", "gaussian"))
    assert "'gaussian'" in caught.value.remedy


@pytest.mark.parametrize("count", [0, -1, 2.0, "2", True, None, 10**400])
def test_what_is_no_count_is_refused(count: object) -> None:
    with refused("batch_size") as caught:
        check_count(count, "batch_size", 32)
    assert "batch_size=32" in caught.value.remedy
    with refused("passes"):
        check_passes(count)
    assert check_count(3, "batch_size", 32) == check_passes(3) == 3


@pytest.mark.parametrize("seed", [0.0, "0", None, False])
def test_what_is_no_seed_is_refused(seed: object) -> None:
    with refused("seed"):
        check_seed(seed)
    assert check_seed(-3) == -3


@pytest.mark.parametrize("seed", [-1, 2**63, 0.0, None])
def test_training_needs_a_seed_that_torch_and_numpy_take(seed: object) -> None:
    with refused("seed"):
        check_training_seed(seed)
    assert check_training_seed(7) == 7


def test_a_file_to_write_is_new_or_may_be_replaced(tmp_path: Path) -> None:
    endings = (".csv", ".parquet")
    there = tmp_path / "there.csv"
    assert check_new_file(str(there), "out", endings) == there
    there.touch()
    assert check_new_file(str(there), "out", endings, overwrite=True) == there
    for file, overwrite, remedy in (
        (there, None, "move"),
        (there, False, "overwrite=True"),
        (tmp_path / "nowhere" / "a.csv", True, "nowhere"),
        (tmp_path / "a.xlsx", True, "out=a.csv"),
    ):
        with refused("out") as caught:
            check_new_file(str(file), "out", endings, overwrite=overwrite)
        assert remedy in caught.value.remedy
