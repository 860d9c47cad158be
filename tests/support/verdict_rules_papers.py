"""Rules for claims that came later: the first layer is highest, shapes of rates, scale, stability, the gap; and the
recommendation of MC dropout for a model.

Simulated studies like those of `support.verdict_rules`, which prints and the suite runs both.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch

from dropscope.analysis import over_networks, resamples
from dropscope.report import Verdict, decide, decide_all
from dropscope.studies.transformer_profile import cells
from dropscope.studies.transformer_profile import published as profile
from dropscope.studies.transformer_profile.calibration import score_items
from dropscope.studies.transformer_profile.recommendations import changes_of, earns_passes
from dropscope.studies.transformer_profile.robustness import differ
from dropscope.studies.where_to_drop.claims.verdicts import moves
from support.crossed_studies import Components, draw_cells, labels
from support.verdict_rules import Draw, Rule

_NETWORKS, _MODELS, _CONTEXTS = 5, 19, 50
_ACCURACY = Components(0.05, 0.15, 0.3)
_MILLIONS = [c.millions for c in profile.CHECKPOINTS]  # the paper's own, .1 to 355


# --- where to drop: networks ------------------------------------------------------------------------------------------


def _highest(mean: float) -> Callable[[Draw], Verdict]:
    """The first layer against three others alone and several layers, in five networks that share its noise."""

    def study(draw: Draw) -> Verdict:
        own = draw.normal(mean, 0.7, _NETWORKS)
        return decide_all([over_networks((own - draw.normal(0, 0.7, _NETWORKS)).tolist()) for _ in range(4)], "above")

    return study


def _shape(change: float) -> Callable[[Draw], Verdict]:
    """Change from end to end as a share of the mean score, and the rank correlation that goes with it."""

    def study(draw: Draw) -> Verdict:
        own = draw.normal(change, 0.15, _NETWORKS)
        ranks = np.tanh(2 * own + draw.normal(0, 0.05, _NETWORKS))
        return moves(over_networks(own.tolist()), over_networks(ranks.tolist()))

    return study


# --- transformers: models × contexts ----------------------------------------------------------------------------------


_LOSS = Components(0.02, 0.15, 0.3)  # of a loss of accuracy, which differs less between models than accuracy does


def _scale(slope: float) -> Callable[[Draw], Verdict]:
    """Loss of accuracy that grows with the logarithm of the parameters, in the paper's 19 sizes."""
    shape = (_MODELS, 2 * _CONTEXTS)
    model, context = labels(shape)
    size = {f"m{m}": float(np.log10(millions)) for m, millions in enumerate(_MILLIONS)}
    more = slope * np.array(list(size.values()))[:, None]

    def study(draw: Draw) -> Verdict:
        value = (draw_cells(draw, shape, _LOSS) + more).ravel()
        table = pd.DataFrame({"model": [f"m{m}" for m in model], "context": context, "group": "", "value": value})
        return decide(cells.slope_on(table, size), "same", margin=profile.SCALE_MARGIN)

    return study


class _Passes:
    """As much of an evaluation as quarters ask for: shares of right passes, from items that flip more or less often."""

    def __init__(self, draw: Draw, gain: float) -> None:
        """Steady models are more accurate by `gain`. Accuracies lie around .5, where spread says nothing about them."""
        self.names = tuple(f"m{m}" for m in range(_MODELS))
        self.replicates = {name: name for name in self.names}
        context = np.repeat(np.arange(2 * _CONTEXTS), 2)
        easy = 0.1 * draw.normal(size=2 * _CONTEXTS)[context]
        firmness = np.exp(draw.normal(0, 1.0, _MODELS))
        steady = firmness < np.median(firmness)  # extreme shares of right passes: answers that hardly flip
        self.tables = {}
        for number, name in enumerate(self.names):
            p = np.clip(0.5 + 0.05 * draw.normal() + easy + gain * (steady[number] - 0.5), 0.02, 0.98)
            share = draw.beta(p * firmness[number], (1 - p) * firmness[number])
            base = {"context": context, "group": "overall", "label": 0, "frequency": share}
            self.tables[name, "deterministic"] = self.tables[name, "baseline"] = pd.DataFrame(base)

    def has(self, model: str, *configurations: str) -> bool:
        return all((model, name) in self.tables for name in configurations)

    def outcomes(self, model: str, configuration: str, group: str = "overall") -> pd.DataFrame:
        return self.tables[model, configuration]


def _steady(gain: float) -> Callable[[Draw], Verdict]:
    """One of the three groups, each of which is tested at a third of .05."""
    level = 1 - 0.05 / profile.QUARTILE_TESTS
    return lambda draw: differ([
        cells.steadiest_minus_least(_Passes(draw, gain), "baseline", "overall", level)  # type: ignore[arg-type]
    ])  # fmt: skip


def _compressed(lost: float) -> Callable[[Draw], Verdict]:
    """Gap lost at three high configurations: 19 models × two tasks of 50 contexts."""
    shape = (_MODELS, 2 * _CONTEXTS)
    model, context = labels(shape)
    task = np.where(context < _CONTEXTS, "memory", "reasoning")
    effect = np.where(np.arange(2 * _CONTEXTS) < _CONTEXTS, lost, 0.0)[None]

    def study(draw: Draw) -> Verdict:
        shared = draw_cells(draw, shape, _ACCURACY)  # of the pass without dropout, which all three are compared with
        estimates = []
        for _ in range(3):
            value = ((shared + draw_cells(draw, shape, _ACCURACY)) / np.sqrt(2) + effect).ravel()
            table = pd.DataFrame({"model": [f"m{m}" for m in model], "context": context, "group": task, "value": value})
            estimates.append(cells.between_groups(table, "memory", "reasoning"))
        return decide_all(estimates, "above", margin=profile.MARGIN)

    return study


def _recommended(too_sure: float) -> Callable[[Draw], Verdict]:
    """One model, 100 contexts of two items: four configurations beside a plain pass whose logits are too large."""
    contexts = 2 * _CONTEXTS
    context = np.repeat(np.arange(contexts), 2)
    labels_of = torch.tensor(np.arange(2 * contexts) % 2)
    names = ("deterministic", "a", "b", "c", "d")

    def study(draw: Draw) -> Verdict:
        drawn = resamples(2 * contexts, [str(c) for c in context], 200, int(draw.integers(1 << 31)))
        shared = draw.normal(1.5, 1.0, contexts)[context] + draw.normal(0, 1.5, 2 * contexts)
        scored = {}
        for name in names:
            towards_label = (shared + draw.normal(0, 0.5, len(shared))) * (too_sure if name == "deterministic" else 1.0)
            right = torch.tensor(1 / (1 + np.exp(-towards_label)))
            p = torch.where(labels_of[:, None] == torch.arange(2), right[:, None], 1 - right[:, None])
            entropy = -torch.xlogy(p, p).sum(-1)
            given = {"probability": p, "label": labels_of, "predictive_entropy": entropy, "bald": entropy}
            correct = dict.fromkeys(("correct", "plain_correct"), right > 0.5)
            scored["m", name, "overall"] = score_items(given | correct, drawn, contexts)
        changes = changes_of(scored, "m", "overall", list(names[1:]))
        return "supported" if any(earns_passes(change) for change in changes.values()) else "undecided"

    return study


RULES = (
    Rule("the first layer is highest", "all alike", "3 sd", _highest(0.0), _highest(3.0)),
    Rule("moves with skewness or kurtosis", "flat", "half the mean", _shape(0.0), _shape(0.5), studies=400),
    Rule("robustness and scale", "the margin", "unrelated", _scale(profile.SCALE_MARGIN), _scale(0.0), studies=150),
    Rule("steady and unsteady models differ, one group", "unrelated", ".25", _steady(0.0), _steady(0.25), studies=120),
    Rule("high dropout compresses the gap", "no change", ".15", _compressed(0.0), _compressed(0.15), studies=80),
    Rule("MC dropout earns its passes, four configurations", "a plain pass like them", "three times too sure",
         _recommended(1.0), _recommended(3.0), studies=120),
)  # fmt: skip
