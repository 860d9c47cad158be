"""Sizes and powers of the rules that print verdicts."""

from __future__ import annotations

import pytest

from support.verdict_rules import RULES, Rule, shares
from support.verdict_rules_papers import RULES as OTHERS
from support.verdict_rules_smaller import RULES as SMALLER

EVERY = (*RULES, *OTHERS, *SMALLER)


@pytest.mark.parametrize("rule", EVERY, ids=[rule.name for rule in EVERY])
def test_a_rule_rarely_decides_without_an_effect_and_usually_with_one(rule: Rule) -> None:
    wrong, right = shares(rule)
    assert wrong <= 0.07
    assert right >= 0.8
