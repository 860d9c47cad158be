"""Sweeps that meet a full disk, a read-only folder, damage, Ctrl-C or little memory; many in `benchmarks/soak.py`."""

from __future__ import annotations

import pytest

from support import hardships


@pytest.fixture(scope="module")
def whole():
    return hardships.small_sweep()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", hardships.HARDSHIPS)
def test_the_rows_are_those_of_a_run_that_met_nothing(name, seed, whole, tmp_path):
    hardships.meet(name, tmp_path, seed, whole)
