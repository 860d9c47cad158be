"""Every effect that the study asks about, in one table: which comparison, of which measure, in which score.

Owns which comparisons there are. How each is computed and taken over networks is `analysis.effects`'.
"""

from __future__ import annotations

import pandas as pd

from dropscope.analysis import QUANTITIES, Choice, paired_differences, pairwise_contrasts, trends
from dropscope.studies.where_to_drop.gathered import JUDGED, PENALTIES, Gathered

BEFORE_AFTER = "before − after the activation"
INPUT_AFTER = "on the inputs − after the activation"
EARLY = "first half of the layers only − later layers too"


def effects(g: Gathered) -> pd.DataFrame:
    """A line per effect, statistic, measure and score: value, interval over networks, p, Holm's p of its family."""
    scores = [score for score in JUDGED if score in g.rows]
    parts = [
        pairwise_contrasts(g.rows, _kinds(g), scores),
        trends(g.rows, QUANTITIES, scores),
        *(trends(g.rows, [penalty], [s for s in ("aurc", "error_auroc") if s in g.rows]) for penalty in PENALTIES),
        *_positions(g, scores),
    ]
    return pd.concat([part for part in parts if not part.empty], ignore_index=True)


def alone_several(layer: str) -> str:
    return f"{layer} alone − several layers"


def alone_alone(layer: str, other: str) -> str:
    return f"{layer} alone − {other} alone"


def line(table: pd.DataFrame, effect: str, statistic: str, measure: str, score: str) -> pd.Series | None:
    """One line of the table, or None where the rows do not have what it compares."""
    found = table[
        (table["effect"] == effect)
        & (table["statistic"] == statistic)
        & (table["measure"] == measure)
        & (table["score"] == score)
    ]
    return None if found.empty else found.iloc[0]


def _kinds(g: Gathered) -> dict[str, tuple[Choice, Choice]]:
    def alone(layer: str) -> Choice:
        return lambda rows: g.only(layer, rows)

    kinds: dict[str, tuple[Choice, Choice]] = {}
    for layer in g.task.penultimate:
        kinds[alone_several(layer)] = alone(layer), lambda rows: rows["n_layers"] > 1
        for other in g.layers:
            if other != layer:
                kinds[alone_alone(layer, other)] = alone(layer), alone(other)
    half = len(g.layers) // 2
    if half:
        kinds[EARLY] = lambda rows: rows["last"] <= half, lambda rows: rows["last"] > half
    return kinds


def _positions(g: Gathered, scores: list[str]) -> list[pd.DataFrame]:
    position = g.every["position"]
    before, after = g.every[position == "before"], g.every[position == "after"]
    found = []
    if len(before) and len(after):
        found.append(paired_differences(before, after, BEFORE_AFTER, scores))
    if g.inputs is not None:
        found.append(paired_differences(g.inputs, after if len(after) else g.rows, INPUT_AFTER, scores))
    return found
