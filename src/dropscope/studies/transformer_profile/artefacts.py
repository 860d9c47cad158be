"""Claims about published spreads that are settings left on or off. A std is 0 or not, so that no interval is needed."""

from __future__ import annotations

import pandas as pd

from dropscope.report import Claim, Verdict
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.rows import OVERALL, PLAIN
from dropscope.studies.transformer_profile.tables import Findings


def artefact_claims(f: Findings) -> list[Claim]:
    """Published spreads that are settings left on or off, where a model of that family was evaluated."""
    made = []
    neo = _of_family(f, "gpt_neo")
    if len(neo) and f.e.mc is not None:
        std = pick(f.levels, f.e.mc, OVERALL, "std").reindex(neo).dropna()
        fired = all(bool(f.e.setting(name, f.e.mc).audit_ok) for name in std.index)
        made.append(Claim(
            "gpt_neo_steady", "GPT-Neo does not react to dropout at all", "baseline std .000",
            f"baseline std {_listed(f, std)}; audit {'passed' if fired else 'FAILED'}",
            still(list(std)) if fired else "undecided",
            "its config defaults to rates of 0, so nothing was on; here every site that should fire is audited",
            estimand="std over passes, which is 0 or not",
        ))  # fmt: skip
    albert = _of_family(f, "albert")
    if len(albert):
        std = pick(f.levels, PLAIN, OVERALL, "std").reindex(albert).dropna()
        made.append(Claim(
            "albert_deterministic", "ALBERT varies even without dropout", "deterministic std .0129",
            f"deterministic std {_listed(f, std)}",
            varies(list(std)),
            "its classifier has a dropout of its own, which was left on; std over passes, exactly 0 where all is off",
            estimand="std over passes, which is 0 or not",
        ))  # fmt: skip
    return made


def still(stds: list[float]) -> Verdict:
    """Of "does not vary over passes", which needs no interval: a std is 0 or not."""
    return "undecided" if not stds else "contradicted" if min(stds) > 0 else "supported"


def varies(stds: list[float]) -> Verdict:
    """Of "varies over passes", likewise."""
    return "undecided" if not stds else "contradicted" if max(stds) == 0 else "supported"


def _of_family(f: Findings, family: str) -> list[str]:
    known = f.e.models.family.astype(str).str.lower().str.replace("-", "_")
    return [str(name) for name in f.e.models.model[known == family]]


def _listed(f: Findings, values: pd.Series) -> str:
    return ", ".join(f"{value:.4f} ({f.e.short_names[str(name)]})" for name, value in values.items()) or "not measured"
