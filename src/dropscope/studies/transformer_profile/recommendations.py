"""Recommendations by model and group: one deterministic pass, or MC dropout in which configuration, on what evidence.

Owns the rule. MC dropout costs as many passes as it takes, so it must earn them: a configuration is recommended only if
its NLL or its AURC is lower (all configurations and both scores judged at once), neither score is higher and the
accuracy is not lower, each by its interval; its audit passed, and there is something to judge by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from dropscope.analysis import simultaneous_intervals
from dropscope.studies.transformer_profile.calibration import Key, ScoreReplicates, difference, paired_difference
from dropscope.studies.transformer_profile.rows import OVERALL, PLAIN, Evaluations

CRITERIA = ("nll", "aurc")
FEWEST_CONTEXTS = 30  # with fewer, a bootstrap over contexts promises more than it holds
RULE = (
    "MC dropout is recommended where its NLL or AURC is lower than that of one deterministic pass, with simultaneous "
    "95 % intervals over all configurations and both scores (max-statistic bootstrap over contexts), neither is "
    "higher, accuracy is not lower, the audit passed, it is above chance with dropout on and there are at least "
    f"{FEWEST_CONTEXTS} contexts; otherwise one deterministic pass, which costs a fraction."
)


@dataclass(frozen=True)
class Change:
    """A score of MC dropout minus that of the deterministic pass."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


@dataclass(frozen=True)
class Recommendation:
    """`choice` is "deterministic" or a configuration; `rival` the configuration whose changes stand as evidence; of a
    network that is not above chance with or without dropout nothing is recommended."""

    model: str
    group: str
    choice: str
    rival: str
    passes: int
    attention_rate: float
    ffn_rate: float
    nll: Change
    aurc: Change
    accuracy: Change
    aurc_plain_labels: Change
    aurc_plain_labels_bald: Change
    audit_ok: bool
    reason: str
    above_chance: bool = True


def recommend(e: Evaluations, levels: pd.DataFrame, scored: Mapping[Key, ScoreReplicates]) -> list[Recommendation]:
    """One recommendation per model and group, of the models that have a deterministic and a stochastic evaluation."""
    recommendations = []
    for model in e.names:
        rivals = [name for name in e.stochastic if e.has(model, PLAIN, name)]
        groups = e.all_groups if rivals else ()
        recommendations += [_recommend(e, levels, scored, model, group, rivals) for group in groups]
    return recommendations


def recommendation_table(recommendations: list[Recommendation]) -> pd.DataFrame:
    rows = []
    for one in recommendations:
        row: dict[str, object] = {}
        for name, value in asdict(one).items():
            row |= (
                {name: value["value"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
                if isinstance(value, dict)
                else {name: value}
            )
        rows.append(row)
    return pd.DataFrame(rows)


def _recommend(
    e: Evaluations,
    levels: pd.DataFrame,
    scored: Mapping[Key, ScoreReplicates],
    model: str,
    group: str,
    rivals: list[str],
) -> Recommendation:
    changes = changes_of(scored, model, group, rivals)
    level = levels[(levels.model == model) & (levels["group"] == group)].set_index("configuration")
    floors, contexts = level.floor, int(level.contexts[PLAIN])
    better = [name for name in rivals if earns_passes(changes[name]) and not floors[name]]
    better = better if contexts >= FEWEST_CONTEXTS else []
    eligible = [name for name in better if bool(e.setting(model, name).audit_ok)]
    rival = min(eligible or rivals, key=lambda name: changes[name]["nll"].value)
    change, setting = changes[rival], e.setting(model, rival)
    return Recommendation(
        model=model, group=group, choice=rival if eligible else PLAIN, rival=rival,
        passes=len(e.accuracies(model, rival, group)),
        attention_rate=float(setting.attention_rate), ffn_rate=float(setting.ffn_rate),
        **change, audit_ok=bool(setting.audit_ok),
        reason=_reason(better, eligible, rival, change, (bool(floors[PLAIN]), bool(floors[rival])), contexts),
        above_chance=not (floors[PLAIN] and floors[rival]),
    )  # fmt: skip


def changes_of(
    scored: Mapping[Key, ScoreReplicates], model: str, group: str, rivals: list[str]
) -> dict[str, dict[str, Change]]:
    """How each configuration changes each score; the intervals of the criteria hold for all configurations at once."""
    plain = scored[model, PLAIN, group]
    changes: dict[str, dict[str, Change]] = {name: {} for name in rivals}
    for name in rivals:
        noisy = scored[model, name, group]
        for score in ("accuracy", "aurc_plain_labels", "aurc_plain_labels_bald"):
            changes[name][score] = Change(difference(noisy, plain, score), *noisy.apart(plain, score))
    pairs = [(name, score) for name in rivals for score in CRITERIA]
    values = [difference(scored[model, name, group], plain, score) for name, score in pairs]
    drawn = np.stack([paired_difference(scored[model, name, group], plain, score).numpy() for name, score in pairs])
    for (name, score), value, (low, high) in zip(pairs, values, simultaneous_intervals(values, drawn), strict=True):
        changes[name][score] = Change(value, low, high)
    return changes


def earns_passes(change: Mapping[str, Change]) -> bool:
    """Whether a criterion is better and nothing is worse, each by its interval."""
    better = any(change[score].high < 0 for score in CRITERIA)
    worse = any(change[score].low > 0 for score in CRITERIA) or change["accuracy"].high < 0
    return better and not worse


def lowered(change: Mapping[str, Change]) -> list[str]:
    """The criteria that are lower, by their intervals."""
    return [name.upper() for name in CRITERIA if change[name].high < 0]


def _reason(
    better: list[str],
    eligible: list[str],
    rival: str,
    change: Mapping[str, Change],
    at_chance: tuple[bool, bool],
    contexts: int,
) -> str:
    numbers = f"NLL {change['nll']}, AURC {change['aurc']}, accuracy of the averaged passes {change['accuracy']}"
    if eligible:
        return f"{' and '.join(lowered(change))} lower than that of one pass: {numbers}"
    if better:
        return f"{', '.join(better)} would be better, but the audit failed; {numbers}"
    if all(at_chance):
        return f"not above chance with or without dropout; {rival} has {numbers}"
    if at_chance[1]:
        return f"not above chance with dropout; {rival} has {numbers}"
    if contexts < FEWEST_CONTEXTS:
        return f"{contexts} contexts are too few to say that dropout is better; {rival} has {numbers}"
    return f"no configuration is shown to be better; the one of lowest NLL, {rival}, has {numbers}"


def overall_only(recommendations: list[Recommendation]) -> list[Recommendation]:
    """Those over all items, which the summary prints."""
    return [one for one in recommendations if one.group == OVERALL]
