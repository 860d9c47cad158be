"""A few inputs of every kind that is fuzzed, and all that ever failed. `benchmarks/fuzz.py` tries many."""

from __future__ import annotations

import pytest

from support.fuzzing import TARGETS
from support.fuzzing.findings import FINDINGS
from support.fuzzing.trials import attempt, generator

INPUTS = 25
FEW = {"argument lists": 1, "checkpoints": 2, "resumed runs": 2}  # which take longer


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_read_is_used_or_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trial = TARGETS[name].prepare(tmp_path)
    for number in range(FEW.get(name, INPUTS)):
        outcome = attempt(lambda: trial(generator(name, 0, number)))  # noqa: B023 - called here
        assert not outcome.problem, f"input {number}: {outcome.problem}\n{outcome.detail}"


@pytest.mark.parametrize("name", FINDINGS)
def test_what_once_failed_is_refused_in_one_line(name, tmp_path):
    outcome = attempt(lambda: FINDINGS[name](tmp_path))
    assert not outcome.problem, f"{outcome.problem}\n{outcome.detail}"
    assert outcome.refused
