"""What every judged claim of a study keeps to: its verdict follows from its evidence, and it is registered."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from dropscope.report import Claim, ClaimRule, judge


def check_claims(claims: Sequence[Claim], rules: Sequence[ClaimRule]) -> None:
    assert claims
    for claim in claims:
        if claim.evidence:
            assert judge(claim.evidence, one_is_enough=claim.one_is_enough) == claim.verdict, claim
        if not claim.arithmetic:
            rule = next((rule for rule in rules if fnmatchcase(claim.name, rule.name)), None)
            assert rule is not None, f"{claim.name} is not registered"
            assert not (rule.margin and claim.margin) or rule.margin == claim.margin, claim.name
