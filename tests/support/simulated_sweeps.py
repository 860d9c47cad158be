"""Sweeps whose rows are simulated, with scores that are known: what their intervals cover and contain.

`PYTHONPATH=tests python -m support.simulated_sweeps` prints what 1,000 of them show, and the false gains of picking.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import measures, scores
from dropscope.runs.finalists import AGAINST, Finalists, values_table
from dropscope.runs.intervals import interval_table
from dropscope.runs.rows import score_all
from dropscope.runs.verdicts import judge

CLASSES = 4
RANKINGS = ("entropy", "random", "inverted")  # errors are found, not found, and put first
SETTINGS = {  # examples, sharpness of the probabilities, how much too sure they are
    "85 % of 300": (300, 4.5, 1.0),
    "85 % of 300, too sure": (300, 4.5, 2.0),
    "96 % of 500": (500, 18.0, 1.0),
    "96 % of 1,000": (1000, 18.0, 1.0),
}
_CHOSEN = scores.resolve()


def draw_examples(draw: np.random.Generator, n: int, sharpness: float, too_sure: float) -> tuple[Tensor, Tensor]:
    """Probabilities `[n, classes]` and labels that come from them, made too sure afterwards."""
    logits = torch.from_numpy(sharpness * draw.normal(size=(n, CLASSES)))
    edges = logits.softmax(1).cumsum(1)
    labels = (torch.from_numpy(draw.random((n, 1))) > edges).sum(1).clamp_max(CLASSES - 1)
    return (too_sure * logits).softmax(1), labels


def rankings_of(draw: np.random.Generator, p: Tensor) -> dict[str, Tensor]:
    entropy = measures.plain_entropy(p)
    return dict(zip(RANKINGS, (entropy, torch.from_numpy(draw.random(len(p))), -entropy), strict=True))


def values_of(uncertainty: Tensor, p: Tensor, labels: Tensor) -> dict[str, float]:
    right = p.argmax(1) == labels
    found = score_all(_CHOSEN, uncertainty, right, scores.confidences_of(p, labels))
    return {name: float(value) for name, value in found.items()} | {"accuracy": float(right.double().mean())}


@cache
def truth(setting: str) -> dict[tuple[str, str], float]:
    """Score of each ranking on 300,000 examples; penalties and the calibration error that are 0 there, exactly."""
    _, sharpness, too_sure = SETTINGS[setting]
    draw = np.random.default_rng(0)
    p, labels = draw_examples(draw, 300_000, sharpness, too_sure)
    found = {}
    for name, uncertainty in rankings_of(draw, p).items():
        values = values_of(uncertainty, p, labels)
        if name != "inverted":
            values |= dict.fromkeys((score for score in values if score.endswith("_penalty")), 0.0)
        found |= {(name, score): value for score, value in values.items()}
    if too_sure == 1:
        found |= {(name, "ece"): 0.0 for name in RANKINGS}
    return found


def simulated_intervals(setting: str, seed: int) -> pd.DataFrame:
    """The table of intervals of one sweep with three rows; every third has ten examples to a group."""
    n, sharpness, too_sure = SETTINGS[setting]
    draw = np.random.default_rng(seed)
    p, labels = draw_examples(draw, n, sharpness, too_sure)
    ids, right = np.arange(n).astype(str), p.argmax(1) == labels
    every = {("none", name): function(p) for name, function in measures.PLAIN_TABLE.items()}
    every |= {("last=0.5", name): uncertainty for name, uncertainty in rankings_of(draw, p).items()}
    frames = [values_table(ids, *key, uncertainty, right) for key, uncertainty in every.items()]
    rows = [
        {"placement": placement, "measure": name, "equivalent_to": None, **values_of(uncertainty, p, labels)}
        for (placement, name), uncertainty in every.items()
    ]
    confidences = dict.fromkeys(("none", "last=0.5"), scores.confidences_of(p, labels))
    groups = [i // 10 for i in range(n)] if seed % 3 == 2 else None
    finalists = Finalists(pd.concat(frames, ignore_index=True), confidences)
    table = interval_table(finalists, pd.DataFrame(rows), _CHOSEN, groups, seed, torch.device("cpu"), show=False)
    return table[table.placement != "none"]


def contained(table: pd.DataFrame) -> pd.Series:
    """Whether each interval that there is contains what it is of, in both columns."""
    own = (table.low <= table.value) & (table.value <= table.high)
    apart = table.minus_single_pass
    between = (table.minus_single_pass_low <= apart) & (apart <= table.minus_single_pass_high)
    return (own & between)[table.low.notna()]


def covered(table: pd.DataFrame, setting: str) -> pd.Series:
    """Whether each interval contains the score itself (`truth`); NaN where there is none."""
    known = table.apply(lambda row: truth(setting)[row.measure, row.score], axis=1)
    return ((table.low <= known + 1e-9) & (known <= table.high)).where(table.low.notna())


def false_gain(seed: int, rows: int, signal: float = 1.5, n: int = 300, accuracy: float = 0.85) -> tuple[bool, bool]:
    """Whether the best of `rows` rankings is called better than the plain one on the examples that picked it: by an
    interval that does not know of the choice, and by one that does. All rows find errors with `signal`, the plain one
    with 1.5, and half of their noise is the same."""
    draw = np.random.default_rng(seed)
    right = draw.random(n) < accuracy
    shared = draw.normal(size=n)
    signals = np.array([1.5] + [signal] * rows)[:, None]
    values = signals * ~right + 0.7 * shared + 0.7 * draw.normal(size=(rows + 1, n))
    found = scores.aurc(torch.from_numpy(values), torch.from_numpy(right).expand(rows + 1, -1))
    best = 1 + int(found[1:].argmin())
    tables = [pd.DataFrame({"uncertainty": values[i], "correct": right}) for i in (best, 0)]
    naive, aware = (judge(("best", "bald", AGAINST), *tables, picked_from=of, seed=seed).word for of in (1, rows))
    return naive == "better", aware == "better"


if __name__ == "__main__":
    every = []
    for setting in SETTINGS:
        tables = [simulated_intervals(setting, seed) for seed in range(250)]
        every += tables
        joined = pd.concat(tables, ignore_index=True)
        share = covered(joined, setting).groupby([joined.score, joined.measure], sort=False).mean().unstack()
        refused = joined.low.isna().groupby(joined.measure).mean().iloc[0]
        print(f"\n{setting}: share of intervals that cover, {refused:.3f} of the sweeps without one\n{share.round(3)}")
    inside = pd.concat([contained(table) for table in every])
    print(f"\n{len(every)} sweeps, {len(inside)} rows of intervals, {int((~inside).sum())} without their estimate")
    for rows, studies in ((45, 400), (3_645, 200)):
        naive, aware = np.mean([false_gain(seed, rows) for seed in range(studies)], 0)
        power = {s: np.mean([false_gain(seed, rows, s)[1] for seed in range(100)]) for s in (2.0, 2.5, 3.0)}
        print(f"best of {rows}: false gains {naive:.3f} by its own interval, {aware:.3f} widened; power {power}")
