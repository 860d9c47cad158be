"""The answer of the study in three lines: dropout or not, what it costs, and what that rests on.

Owns the sentences; verdicts come from `claims`, recommendations from `recommendations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dropscope.report import Claim, count_verdicts
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.presets import PRESETS
from dropscope.studies.transformer_profile.recommendations import Recommendation, lowered, overall_only
from dropscope.studies.transformer_profile.rows import HIGH_BOTH, MEMORY, OVERALL, PLAIN, REASONING, Evaluations, short
from dropscope.studies.transformer_profile.tables import Findings

_NAMED = 5  # networks that are named one by one
_PAPERS = {short(name) for name in PRESETS["paper"].models}


def answer(f: Findings, claims: Sequence[Claim]) -> list[str]:
    """Three lines, most important first."""
    return [_dropout_or_not(f), _price(f), _evidence(f, claims)]


def _dropout_or_not(f: Findings) -> str:
    every = overall_only(f.recommendations)
    earned = [one for one in every if one.choice != PLAIN]
    if not every:
        return "No model has both a deterministic and a stochastic evaluation, so nothing is recommended."
    able = [one for one in every if one.above_chance]
    if not able:
        which = f.e.short_names[every[0].model] if len(every) == 1 else f"all {len(every)} networks"
        is_ = "is" if len(every) == 1 else "are"
        return f"No recommendation: {which} {is_} at chance with and without dropout, so nothing follows about it."
    if len(every) == 1:
        (one,) = every
        name = f.e.short_names[one.model]
        if earned:
            rates = f"attention {one.attention_rate:g}, FFN {one.ffn_rate:g}"
            why = f"{one.choice} ({rates}), {one.passes} passes; {one.reason}"
            return f"**Use MC dropout** in {name}: {why}.{_scaling([one])}"
        return f"**Keep one deterministic pass** of {name}: {one.reason}."
    at_chance = len(every) - len(able)
    which = f"the {len(able)} networks above chance" if at_chance else f"{len(able)} networks"
    said = f" Nothing follows about the {at_chance} at chance." if at_chance else ""
    if not earned:
        return f"**Keep one deterministic pass**: in none of {which} is MC dropout shown to be better.{said}"
    names = [f"{f.e.short_names[one.model]} ({one.choice})" for one in earned[:_NAMED]]
    more = f" and {len(earned) - _NAMED} more" if len(earned) > _NAMED else ""
    kept = len(able) - len(earned)
    kept_words = f" Keep one deterministic pass in the other {kept}." if kept else ""
    return (
        f"**MC dropout lowers {_lowered(earned)} in {len(earned)} of {which}**: {', '.join(names)}{more}."
        f"{_scaling(earned)}{kept_words}{said}"
    )


def _lowered(earned: Sequence[Recommendation]) -> str:
    found = sorted({name for one in earned for name in lowered({"nll": one.nll, "aurc": one.aurc})}, reverse=True)
    return f"{found[0]}, and nothing else," if len(found) == 1 else " or ".join(found)


def _scaling(earned: Sequence[Recommendation]) -> str:
    """What else a lower NLL may come from."""
    only = all(lowered({"nll": one.nll, "aurc": one.aurc}) == ["NLL"] for one in earned)
    return " Temperature scaling may lower NLL as well, at no cost per example." if only else ""


def _price(f: Findings) -> str:
    """Mean accuracy of single passes without dropout, at the baseline and at high rates, by group, of the networks that
    are above chance without dropout."""
    floors = pick(f.levels, PLAIN, OVERALL, "floor")
    able = [name for name in floors.index if not floors[name]]
    if not able:
        return "No network is above chance without dropout, so nothing follows about what dropout costs."
    parts = []
    for group in f.e.all_groups:
        shown = [
            f"{values.reindex(able).mean():.3f} {name.replace('_', ' ')}"
            for name in dict.fromkeys((PLAIN, f.e.mc, HIGH_BOTH))
            if name is not None and len(values := pick(f.levels, name, group).dropna())
        ]
        own = pick(f.levels, PLAIN, group, "floor").reindex(able)
        low = int((own != "").sum())
        count = f"{low} of them " if len(able) > 1 else ""
        parts.append(f"{group} {', '.join(shown)}{f' ({count}at chance in it)' if low else ''}")
    if len(floors) == 1:
        return f"Accuracy of single passes: {'; '.join(parts)}."
    rest = len(floors) - len(able)
    which = f"the {len(able)} networks above chance" if rest else f"{len(able)} networks"
    never = f" The other {rest} never learned: at chance even without dropout." if rest else ""
    return f"Mean accuracy of single passes of {which}: {'; '.join(parts)}.{never}"


def _evidence(f: Findings, claims: Sequence[Claim]) -> str:
    levels = f.levels[f.levels["group"] == OVERALL]
    settings = f.e.configurations[f.e.configurations.model.isin(f.e.names)]
    failed = int((~settings.audit_ok.astype(bool)).sum())
    audits = f"{failed} of {len(settings)} audits FAILED" if failed else f"all {len(settings)} audits passed"
    judged = f"; {count_verdicts(claims)}" if claims else ""
    items, contexts = int(levels["items"].max()), int(levels.contexts.max())
    return (
        f"Evidence: {networks_words(f.e)}, {items} test items of {contexts} contexts, {int(levels.passes.max())} "
        f"passes, {audits}{judged}."
    )


def networks_words(e: Evaluations) -> str:
    """How many networks of how many models, and which of them are the paper's."""
    networks, models = len(e.names), set(e.models.get("counts_as", e.models.model))
    each = f"{networks // len(models)} trainings of each of " if networks % len(models) == 0 else "trainings of "
    of = f" ({each}{len(models)} model{'s' * (len(models) > 1)})" if len(models) < networks else ""
    whose = (
        f", {papers_models(models) or 'none'} of the paper's {len(_PAPERS)} models"
        if e.domains == (MEMORY, REASONING)
        else ""
    )
    return f"{networks} network{'s' * (networks > 1)}{of}{whose}"


def papers_models(names: Iterable[str]) -> int:
    """How many of the paper's checkpoints are among these networks, at whatever depth."""
    return len({short(str(name).partition(" (")[0]) for name in names} & _PAPERS)
