"""Calibration of every evaluation by group (ECE, Brier, NLL, AURC), and its change from the deterministic pass.

Owns the resampling of contexts, shared by all configurations so that differences are paired. AURC ranks by predictive
entropy, with the labels of the averaged probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import scores
from dropscope.analysis import absolute_sum_interval, resamples, t_interval
from dropscope.studies.transformer_profile.rows import PLAIN, Evaluations

REPLICATES = 1_000
FEWEST_ERRORS = 10  # with fewer, no interval of a risk holds what it promises
_AT_ONCE = 1 << 17  # counts handled at once: more do not stay in the cache

# Each with the column that ranks and the column of what is right
RISKS = {
    "aurc": ("predictive_entropy", "correct"),
    "aurc_plain_labels": ("predictive_entropy", "plain_correct"),
    "aurc_plain_labels_bald": ("bald", "plain_correct"),
}
CALIBRATION = ("ece", "brier", "nll", "aurc")
SCORES = (*CALIBRATION, "accuracy", "aurc_plain_labels", "aurc_plain_labels_bald")


@dataclass(frozen=True)
class ScoreReplicates:
    """Every score of one evaluation and group: on its items, and on each bootstrap replicate `[replicates]`."""

    value: dict[str, float]
    replicates: dict[str, Tensor]
    bins: tuple[np.ndarray, np.ndarray]  # terms of the calibration error: their means, and those of every replicate
    contexts: int
    errors: int  # or right answers, where these are fewer

    def freedom(self, name: str) -> int:
        """Degrees of freedom; risks rest on errors, and with fewer than ten of them have none."""
        if not name.startswith("aurc"):
            return self.contexts - 1
        return min(self.errors, self.contexts) - 1 if self.errors >= FEWEST_ERRORS else 0

    def interval(self, name: str) -> tuple[float, float]:
        """95 %, which contains the value and may reach 0 where chance alone may have made a calibration error."""
        if self.freedom(name) < 1:
            return math.nan, math.nan
        if name == "ece":
            return absolute_sum_interval(*self.bins, self.freedom(name))
        return t_interval(
            self.value[name], self.replicates[name].numpy(), self.freedom(name), log=name.startswith("aurc")
        )

    def apart(self, plain: ScoreReplicates, name: str) -> tuple[float, float]:
        """95 % interval of the difference to the deterministic pass."""
        freedom = min(self.freedom(name), plain.freedom(_rival(name)))
        if freedom < 1:
            return math.nan, math.nan
        return t_interval(difference(self, plain, name), paired_difference(self, plain, name).numpy(), freedom)


Key = tuple[str, str, str]  # model, configuration, group


def replicate(e: Evaluations, replicates: int = REPLICATES, seed: int = 0) -> dict[Key, ScoreReplicates]:
    """Scores of every evaluation and group. Evaluations on the same contexts share their resamples."""
    drawn: dict[tuple[str, ...], list[Tensor]] = {}
    scored = {}
    for model in e.names:
        for configuration in (PLAIN, *e.stochastic):
            if not e.has(model, configuration):
                continue
            for group in e.all_groups:
                items = e.outcomes(model, configuration, group)
                contexts = tuple(str(c) for c in items.context)
                if contexts not in drawn:
                    enough = len(set(contexts)) > 1
                    drawn[contexts] = resamples(len(items), contexts, replicates, seed) if enough else []
                plain = e.outcomes(model, PLAIN, group) if e.has(model, PLAIN) else None
                scored[model, configuration, group] = score_items(
                    _tensors(items, plain), drawn[contexts], len(set(contexts))
                )
    return scored


def calibration_table(scored: Mapping[Key, ScoreReplicates]) -> pd.DataFrame:
    """A row per evaluation and group: each score with its 95 % interval over contexts."""
    rows = []
    for (model, configuration, group), one in scored.items():
        row: dict[str, object] = {"model": model, "configuration": configuration, "group": group}
        for name in CALIBRATION:
            low, high = one.interval(name)
            row |= {name: one.value[name], f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def difference_table(scored: Mapping[Key, ScoreReplicates]) -> pd.DataFrame:
    """Each score minus that of the deterministic pass on the same contexts; below 0 is better, except for accuracy."""
    rows = []
    for (model, configuration, group), noisy in scored.items():
        plain = scored.get((model, PLAIN, group))
        if configuration == PLAIN or plain is None:
            continue
        for name in SCORES:
            low, high = noisy.apart(plain, name)
            rows.append({
                "model": model, "configuration": configuration, "group": group, "score": name,
                "deterministic": plain.value[_rival(name)], "mc": noisy.value[name],
                "difference": difference(noisy, plain, name), "low": low, "high": high,
            })  # fmt: skip
    return pd.DataFrame(rows)


def difference(noisy: ScoreReplicates, plain: ScoreReplicates, name: str) -> float:
    """One score, MC − deterministic."""
    return noisy.value[name] - plain.value[_rival(name)]


def paired_difference(noisy: ScoreReplicates, plain: ScoreReplicates, name: str) -> Tensor:
    """The same on every replicate, `[replicates]`."""
    return noisy.replicates[name] - plain.replicates[_rival(name)]


def _rival(name: str) -> str:
    """The plain pass has no BALD: whatever ranks, it is compared with the plain pass's entropy."""
    return "aurc" if name.startswith("aurc") else name


def _tensors(items: pd.DataFrame, plain: pd.DataFrame | None) -> dict[str, Tensor]:
    tensors = {
        "probability": torch.tensor(np.stack([np.asarray(p, float) for p in items.probability])),
        "label": torch.tensor(items.label.to_numpy(np.int64, copy=True)),
    }
    for name in ("correct", "predictive_entropy", "bald"):
        tensors[name] = torch.tensor(items[name].to_numpy(bool if name == "correct" else float, copy=True))
    right = items if plain is None else plain
    return tensors | {"plain_correct": torch.tensor(right.correct.to_numpy(bool, copy=True))}


def score_items(tensors: Mapping[str, Tensor], indices: Sequence[Tensor], contexts: int) -> ScoreReplicates:
    """Every score of items, given by column, and of their resamples; `contexts` is the number of contexts."""
    terms = scores.calibration_terms(scores.confidences_of(tensors["probability"], tensors["label"]))
    right = int(tensors["correct"].sum())
    errors = min(right, len(terms) - right)
    once = torch.ones(1, len(terms), dtype=torch.float64)
    value = {name: float(score) for name, score in _weighted(tensors, terms, once).items()}
    bins = terms[:, :-2].mean(0).numpy()
    if not indices:
        nothing = {name: torch.empty(0, dtype=torch.float64) for name in SCORES}
        return ScoreReplicates(value, nothing, (bins, terms[:0, :-2].numpy()), 1, errors)
    at_once = max(1, _AT_ONCE // len(terms))
    parts, means = [], []
    for start in range(0, len(indices), at_once):
        drawn = indices[start : start + at_once]
        counts = torch.stack([torch.bincount(chosen, minlength=len(terms)) for chosen in drawn]).double()
        parts.append(_weighted(tensors, terms, counts))
        means.append(_means(terms[:, :-2], counts))
    replicates = {name: torch.cat([part[name] for part in parts]) for name in SCORES}
    return ScoreReplicates(value, replicates, (bins, torch.cat(means).numpy()), contexts, errors)


def _weighted(tensors: Mapping[str, Tensor], terms: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Every score of items that count so often, `[replicates]`."""
    found = scores.calibration_of(_means(terms, counts))
    found["accuracy"] = _means(tensors["correct"].double()[:, None], counts)[:, 0]
    return found | {
        name: scores.weighted_aurc(tensors[ranks], tensors[right], counts) for name, (ranks, right) in RISKS.items()
    }


def _means(values: Tensor, counts: Tensor) -> Tensor:
    return counts @ values / counts.sum(1, keepdim=True)
