"""The answer of the study in three lines: dropout or not, what it costs, and what that rests on.

Owns the sentences; verdicts come from `claims`, recommendations from `recommendations`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dropscope.report import Claim, count_verdicts
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.recommendations import overall_only
from dropscope.studies.transformer_profile.rows import HIGH_BOTH, OVERALL, PLAIN
from dropscope.studies.transformer_profile.tables import Findings

_NAMED = 5  # models that are named one by one


def answer(f: Findings, claims: Sequence[Claim]) -> list[str]:
    """Three lines, most important first."""
    return [_dropout_or_not(f), _price(f), _evidence(f, claims)]


def _dropout_or_not(f: Findings) -> str:
    every = overall_only(f.recommendations)
    earned = [one for one in every if one.choice != PLAIN]
    if not every:
        return "No model has both a deterministic and a stochastic evaluation, so nothing is recommended."
    if len(every) == 1:
        (one,) = every
        name = f.e.short_names[one.model]
        if earned:
            rates = f"attention {one.attention_rate:g}, FFN {one.ffn_rate:g}"
            return f"**Use MC dropout** in {name}: {one.choice} ({rates}), {one.passes} passes; {one.reason}."
        return f"**Keep one deterministic pass** of {name}: {one.reason}."
    names = [f"{f.e.short_names[one.model]} ({one.choice})" for one in earned[:_NAMED]]
    if not earned:
        return f"**Keep one deterministic pass**: in none of {len(every)} models does MC dropout earn its passes."
    more = f" and {len(earned) - _NAMED} more" if len(earned) > _NAMED else ""
    kept = f"; keep one deterministic pass in the other {len(every) - len(earned)}" if len(earned) < len(every) else ""
    return f"**MC dropout earns its passes in {len(earned)} of {len(every)} models**: {', '.join(names)}{more}{kept}."


def _price(f: Findings) -> str:
    """Mean accuracy over models without dropout, at the baseline and at high rates, by group; chance said."""
    parts = []
    for group in f.e.all_groups:
        shown = [
            f"{values.mean():.3f} {name.replace('_', ' ')}"
            for name in dict.fromkeys((PLAIN, f.e.mc, HIGH_BOTH))
            if name is not None and len(values := pick(f.levels, name, group).dropna())
        ]
        floors = pick(f.levels, PLAIN, group, "floor")
        low = int((floors != "").sum())
        count = f"{low} of {len(floors)} " if len(floors) > 1 else ""
        at_chance = f" ({count}at chance without dropout)" if low else ""
        parts.append(f"{group} {', '.join(shown)}{at_chance}")
    mean = "Mean accuracy over models" if len(f.e.names) > 1 else "Accuracy"
    return f"{mean}: {'; '.join(parts)}."


def _evidence(f: Findings, claims: Sequence[Claim]) -> str:
    levels = f.levels[f.levels["group"] == OVERALL]
    settings = f.e.configurations[f.e.configurations.model.isin(f.e.names)]
    failed = int((~settings.audit_ok.astype(bool)).sum())
    audits = f"{failed} of {len(settings)} audits FAILED" if failed else f"all {len(settings)} audits passed"
    models = f"{len(f.e.names)} model{'s' * (len(f.e.names) > 1)}"
    judged = f"; {count_verdicts(claims)}" if claims else ""
    return (
        f"Evidence: {models}, {int(levels['items'].max())} test items of {int(levels.contexts.max())} contexts, "
        f"{int(levels.passes.max())} passes, {audits}{judged}."
    )
