"""Every rule that prints a verdict, in simulated studies without an effect and with one.

`PYTHONPATH=tests python -m support.verdict_rules` prints the table of docs/verdicts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from dropscope.analysis import Estimate, crossed_mean, log_over_networks, over_networks, pool_effects, rank_correlation
from dropscope.report import Verdict, any_of, decide, decide_all
from dropscope.studies.segmentation_measures import published as segmentation
from dropscope.studies.transformer_profile import cells
from dropscope.studies.transformer_profile import published as profile
from dropscope.studies.where_to_drop.claims.verdicts import near
from dropscope.studies.where_to_drop.published import MARGIN, USEFUL
from support.crossed_studies import Components, draw_cells, labels

Draw = np.random.Generator
WRONG: tuple[Verdict, ...] = ("supported", "contradicted")


@dataclass(frozen=True)
class Rule:
    """A rule with a study in which it should decide nothing and one in which it should support the claim.

    `false` are the words that are wrong in the first.
    """

    name: str
    null_words: str
    effect_words: str
    null: Callable[[Draw], Verdict]
    effect: Callable[[Draw], Verdict]
    false: tuple[Verdict, ...] = WRONG
    studies: int = 240


# --- segmentation: experiments × patients -----------------------------------------------------------------------------

_AUPRC = Components(0.01, 0.03, 0.05)  # of a difference of AUC-PR: experiments, patients, images


def _pair(shape: tuple[int, int], mean: float) -> Callable[[Draw], Verdict]:
    places = labels(shape)
    return lambda draw: decide(
        crossed_mean(draw_cells(draw, shape, _AUPRC, mean).ravel(), *places), "above", margin=segmentation.MARGIN
    )


def _order(levels: Sequence[float]) -> Callable[[Draw], Verdict]:
    shape, pairs = (24, 40), ((0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
    places = labels(shape)

    def study(draw: Draw) -> Verdict:
        own = [draw_cells(draw, shape, _AUPRC, level) for level in levels]
        estimates = [crossed_mean((own[a] - own[b]).ravel(), *places) for a, b in pairs]
        return decide_all(estimates, "above", margin=segmentation.MARGIN)

    return study


def _same(mean: float) -> Callable[[Draw], Verdict]:
    shape, sd = (24, 40), Components(0.005, 0.01, 0.05)
    places = labels(shape)
    return lambda draw: decide(
        crossed_mean(draw_cells(draw, shape, sd, mean).ravel(), *places), "same", margin=segmentation.MARGIN
    )


# --- transformers: models × contexts ----------------------------------------------------------------------------------

_ACCURACY = Components(0.05, 0.15, 0.3)  # of an accuracy or a loss of it: models, contexts, items
_MODELS, _DECODERS, _CONTEXTS = 19, 5, 50  # contexts per task


def _table(draw: Draw, mean: np.ndarray | float = 0.0) -> pd.DataFrame:
    """19 models × two tasks of 50 contexts."""
    shape = (_MODELS, 2 * _CONTEXTS)
    model, context = labels(shape)
    task = np.where(context < _CONTEXTS, "memory", "reasoning")
    gap = 0.05 * draw.normal(size=(_MODELS, 1)) * np.where(task == "memory", 1, -1).reshape(shape)
    value = (draw_cells(draw, shape, _ACCURACY) + gap + mean).ravel()
    return pd.DataFrame({"model": [f"m{m}" for m in model], "context": context, "group": task, "value": value})


def _first(count: int) -> set[str]:
    return {f"m{m}" for m in range(count)}


def _task_effect(size: float) -> np.ndarray:
    return np.where(np.arange(2 * _CONTEXTS) < _CONTEXTS, size, 0.0)[None]


def _mean_loss(mean: float) -> Callable[[Draw], Verdict]:
    return lambda draw: decide(cells.mean_of(_table(draw, mean)), "above", margin=profile.MARGIN)


def _bias(size: float) -> Callable[[Draw], Verdict]:
    def study(draw: Draw) -> Verdict:
        found = cells.between_groups(_table(draw, _task_effect(size)), "memory", "reasoning")
        return decide(found, "above", margin=profile.MARGIN)

    return study


def _decoder_gap(size: float) -> Callable[[Draw], Verdict]:
    more = (np.arange(_MODELS) < _DECODERS)[:, None] * _task_effect(size)

    def study(draw: Draw) -> Verdict:
        found = cells.gap_between_models(_table(draw, more), _first(_DECODERS), "memory", "reasoning")
        return decide(found, "above", margin=profile.MARGIN)

    return study


def _sized(members: int, size: float) -> Callable[[Draw], Verdict]:
    more = np.where(np.arange(_MODELS) < members, size, 0.0)[:, None]
    return lambda draw: decide(
        cells.between_models(_table(draw, more), _first(members)), "above", margin=profile.MARGIN
    )


class _Items:
    """As much of an evaluation as `cells` asks for: items of one task, without dropout and with it."""

    def __init__(self, draw: Draw, loss: float) -> None:
        """Six models are at chance and cannot lose; the others answer right with .65 to .95, by model and context."""
        self.names = tuple(f"m{m}" for m in range(_MODELS))
        self.replicates = {name: name for name in self.names}
        context = np.repeat(np.arange(_CONTEXTS), 2)
        easy = 0.1 * draw.normal(size=_CONTEXTS)[context]
        self.tables = {}
        for number, name in enumerate(self.names):
            able = number >= 6
            p = np.clip(0.8 + 0.05 * draw.normal() + easy, 0.5, 1.0) if able else np.full(2 * _CONTEXTS, 0.5)
            plain = draw.random(2 * _CONTEXTS) < p
            noisy = np.clip(p - loss, 0.0, 1.0) if able else p
            # MC answers follow the plain ones, so that a lucky model is lucky in both.
            frequency = np.clip(noisy + 0.7 * (plain - p), 0.0, 1.0)
            base = pd.DataFrame({"context": context, "group": "reasoning", "label": np.arange(2 * _CONTEXTS) % 2})
            base["probability"] = [np.array([0.5, 0.5])] * len(base)
            self.tables[name, "deterministic"] = base.assign(frequency=plain.astype(float))
            self.tables[name, "high_both"] = base.assign(frequency=frequency)

    def has(self, model: str, *configurations: str) -> bool:
        return all((model, name) in self.tables for name in configurations)

    def outcomes(self, model: str, configuration: str, group: str = "overall") -> pd.DataFrame:
        return self.tables[model, configuration]


def _robust(loss: float) -> Callable[[Draw], Verdict]:
    def study(draw: Draw) -> Verdict:
        e = _Items(draw, loss)
        lost = cells.differences(e, "deterministic", "high_both", "reasoning")  # type: ignore[arg-type]
        found = cells.able_cells(e, lost, "reasoning")  # type: ignore[arg-type]
        return decide(cells.mean_of(found.assign(value=found.value - profile.ROBUST)), "below")

    return study


def _calibrated(size: float) -> Callable[[Draw], Verdict]:
    def study(draw: Draw) -> Verdict:
        table = _table(draw, size)
        own = table.groupby("model").value.mean()
        other = _table(draw, size)
        estimates = [over_networks(own.tolist()), cells.mean_of(table), cells.mean_of(other)]
        return decide_all(estimates, "below", margin=profile.SCORE_MARGIN)

    return study


def _steady(slope: float) -> Callable[[Draw], Verdict]:
    def study(draw: Draw) -> Verdict:
        size = draw.normal(size=_MODELS)
        spread = (slope * size + draw.normal(size=_MODELS)).tolist()
        return decide(rank_correlation(size.tolist(), spread, permutations=2000), "above")

    return study


# --- where to drop: networks ------------------------------------------------------------------------------------------

_NETWORKS = 5


def _over(draw: Draw, mean: float, sd: float = 1.0) -> list[float]:
    return draw.normal(mean, sd, _NETWORKS).tolist()


def _networks(mean: float) -> Callable[[Draw], Verdict]:
    return lambda draw: decide(over_networks(_over(draw, mean)), "below")


def _single(mean: float) -> Callable[[Draw], Verdict]:
    return lambda draw: decide_all([over_networks(_over(draw, mean)) for _ in range(6)], "below")


def _falls(curve: Sequence[float]) -> Callable[[Draw], Verdict]:
    """Slope and ends of a curve over nine values of p_mean, in five networks."""
    x = np.linspace(0.1, 0.9, 9) - 0.5

    def study(draw: Draw) -> Verdict:
        y = np.asarray(curve) + draw.normal(0, 1.0, (_NETWORKS, 1)) * x * 2 + draw.normal(0, 0.3, (_NETWORKS, 9))
        slopes, ends = (y @ x / (x @ x)).tolist(), (y[:, -1] - y[:, 0]).tolist()
        return decide_all([over_networks(slopes), over_networks(ends)], "below")

    return study


def _halves(ratio: float) -> Callable[[Draw], Verdict]:
    return lambda draw: decide(
        log_over_networks((ratio * np.exp(draw.normal(0, 0.4, _NETWORKS))).tolist(), null=0.5), "below", bound=0.5
    )


def _number(value: float, sd: float) -> Callable[[Draw], Verdict]:
    return lambda draw: near(log_over_networks((value * np.exp(draw.normal(0, sd, _NETWORKS))).tolist()), 0.079)


def _no_layers(share: float) -> Callable[[Draw], Verdict]:
    return lambda draw: decide(over_networks(_over(draw, share, 0.05)), "same", margin=MARGIN)


def _useful(correlation: float) -> Callable[[Draw], Verdict]:
    return lambda draw: decide_all(
        [over_networks(_over(draw, correlation, 0.1)) for _ in range(2)], "above", bound=USEFUL
    )


def _beats_plain(gain: float) -> Callable[[Draw], Verdict]:
    level = 1 - 0.05 / 5
    return lambda draw: any_of(
        [decide(over_networks(_over(draw, gain), level), "below", alpha=1 - level) for _ in range(5)]
    )


_FALL = [4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0]
_HUMP = [0.0, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.0]
# --- several studies --------------------------------------------------------------------------------------------------


def _pooled(studies: int, mean: float) -> Callable[[Draw], Verdict]:
    """Studies of five networks each, whose true effects differ by as much as their errors."""

    def study(draw: Draw) -> Verdict:
        spread = np.exp(draw.normal(0, 0.5, studies))
        cells = draw.normal(mean + draw.normal(size=studies) / np.sqrt(5), spread, (5, studies))
        pooled = pool_effects(cells.mean(0), stats.sem(cells))
        return decide(Estimate(pooled.value, pooled.low, pooled.high, pooled.p, studies, ""), "above")

    return study


_SUPPORTED: tuple[Verdict, ...] = ("supported",)

RULES = (
    Rule("a pair of measures, 24 × 40", "no difference", ".04 of AUC-PR", _pair((24, 40), 0.0), _pair((24, 40), 0.04)),
    Rule("a pair of measures, 5 × 200", "no difference", ".04", _pair((5, 200), 0.0), _pair((5, 200), 0.04)),
    Rule("a pair of measures, 144 × 40", "no difference", ".04", _pair((144, 40), 0.0), _pair((144, 40), 0.04)),
    Rule("order of the measures", "four alike", "steps of .06", _order([0.3] * 4), _order([0.42, 0.42, 0.36, 0.3])),
    Rule("two measures do not differ", "differ by the margin", "no difference", _same(segmentation.MARGIN), _same(0.0)),
    Rule("deterministic beats MC, 19 × 100", "no loss", ".07", _mean_loss(0.0), _mean_loss(0.07), studies=200),
    Rule("memory over reasoning", "no gap", ".15", _bias(0.0), _bias(0.15), studies=150),
    Rule("decoder gap, 5 and 14 models", "equal gaps", ".25", _decoder_gap(0.0), _decoder_gap(0.25), studies=120),
    Rule("size or specialisation, 3 and 16 models", "no difference", ".3", _sized(3, 0.0), _sized(3, 0.3), studies=150),
    Rule("reasoning is robust", "lost .05", "lost nothing", _robust(profile.ROBUST), _robust(0.0), studies=80),
    Rule("reasoning is robust: a true loss of .02", "lost .02", "lost nothing", _robust(0.02), _robust(0.0),
         false=("contradicted",), studies=80),
    Rule("calibration improves", "no change", "−.07", _calibrated(0.0), _calibrated(-0.07), studies=150),
    Rule("small models are steady", "unrelated", "correlation .8", _steady(0.0), _steady(1.4), studies=120),
    Rule("one rule over 5 networks", "no effect", "2 sd", _networks(0.0), _networks(-2.0), studies=400),
    Rule("best of all single layers", "all alike", "3 sd", _single(0.0), _single(-3.0)),
    Rule("falls with p_mean", "flat", "a fall", _falls([0.0] * 9), _falls(_FALL)),
    Rule("falls with p_mean: a hump", "rises and falls", "a fall", _falls(_HUMP), _falls(_FALL), false=_SUPPORTED),
    Rule("halves the penalty", "ratio .5", "ratio .2", _halves(0.5), _halves(0.2), studies=400),
    Rule("a published number", "twice as large", "the same", _number(0.158, 0.5), _number(0.079, 0.25), studies=400),
    Rule("no impact of the number of layers", "10 %", "none", _no_layers(MARGIN), _no_layers(0.0), studies=400),
    Rule("the penalty is useful", "correlation .3", "correlation .6", _useful(USEFUL), _useful(0.6)),
    Rule("beats a plain pass, best of 5", "no gain", "2 sd", _beats_plain(0.0), _beats_plain(-2.0)),
    Rule("pooled over 5 studies of 5 networks", "no effect", "2 sd", _pooled(5, 0.0), _pooled(5, 2.0)),
    Rule("pooled over 10 studies of 5 networks", "no effect", "1 sd", _pooled(10, 0.0), _pooled(10, 1.0)),
)  # fmt: skip


def shares(rule: Rule, seed: int = 17) -> tuple[float, float]:
    """(wrongly decided without the effect, supported with it)."""
    draw = np.random.default_rng(seed)
    wrong = np.mean([rule.null(draw) in rule.false for _ in range(rule.studies)])
    right = np.mean([rule.effect(draw) == "supported" for _ in range(max(50, rule.studies // 4))])
    return float(wrong), float(right)


if __name__ == "__main__":
    from support.verdict_rules_papers import RULES as OTHERS
    from support.verdict_rules_smaller import RULES as SMALLER

    print("| rule | without an effect | decided wrongly | with an effect | supported |\n|---|---|---|---|---|")
    for one in (*RULES, *OTHERS, *SMALLER):  # type: ignore[arg-type]
        size, power = shares(one)
        print(f"| {one.name} | {one.null_words} | {size:.3f} | {one.effect_words} | {power:.2f} |", flush=True)
