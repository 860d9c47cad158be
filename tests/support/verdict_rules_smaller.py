"""Rules of smaller claims: collapse, families, artefacts, choice among able models, numbers, table 3, cost; and the
verdicts of `sweep`, `try` and `demo`.

Simulated studies like those of `support.verdict_rules`, which prints and the suite runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, holm, over_networks
from dropscope.report import Verdict, any_of, decide, decide_all
from dropscope.runs import judge
from dropscope.studies.segmentation_measures.claims import cost_ratios, cost_verdict
from dropscope.studies.segmentation_measures.evaluation import FOUR, ROUNDS
from dropscope.studies.transformer_profile import cells
from dropscope.studies.transformer_profile import published as profile
from dropscope.studies.transformer_profile.artefacts import still, varies
from dropscope.studies.transformer_profile.comparisons import family_estimate, family_or_size, hurts_more
from dropscope.studies.where_to_drop.claims.numbers import accuracy_estimate, of_batches
from dropscope.studies.where_to_drop.claims.usefulness import of_one
from dropscope.studies.where_to_drop.claims.verdicts import share
from dropscope.studies.where_to_drop.published import MARGIN
from support.crossed_studies import Components, draw_cells, labels
from support.profile_tables import NINETEEN
from support.simulated_sweeps import false_gain
from support.verdict_rules import Draw, Rule

_NETWORKS, _MODELS, _DECODERS, _CONTEXTS = 5, 19, 5, 50
_SUPPORTED: tuple[Verdict, ...] = ("supported",)
_CONTRADICTED: tuple[Verdict, ...] = ("contradicted",)


# --- transformers: models × contexts ----------------------------------------------------------------------------------


class _Answers:
    """As much of an evaluation as `cells` asks for: two items a context, with what share of passes answers them.

    `right` has for each configuration and group the probability of a right answer, `[models]` or one for all.
    """

    def __init__(self, draw: Draw, right: Mapping[tuple[str, str], np.ndarray | float], contexts: int = _CONTEXTS):
        self.names = tuple(f"m{m}" for m in range(_MODELS))
        self.replicates = {name: name for name in self.names}
        self.groups = list(dict.fromkeys(group for _, group in right))
        self.tables: dict[tuple[str, str, str], pd.DataFrame] = {}
        for number, group in enumerate(self.groups):
            context = np.repeat(np.arange(contexts) + contexts * number, 2)
            easy = 0.1 * draw.normal(size=contexts)[context - contexts * number]
            luck = draw.random((_MODELS, 2 * contexts))  # a model that is lucky without dropout is lucky with it
            base = pd.DataFrame({"context": context, "group": group, "label": np.arange(2 * contexts) % 2})
            base["probability"] = [np.array([0.5, 0.5])] * len(base)
            for (configuration, of), level in right.items():
                if of != group:
                    continue
                p = np.clip(np.broadcast_to(np.asarray(level, float), _MODELS)[:, None] + easy, 0.0, 1.0)
                p = np.where(np.broadcast_to(np.asarray(level), _MODELS)[:, None] == 0.5, 0.5, p)
                answers = luck < p if configuration == "deterministic" else np.clip(p + 0.7 * ((luck < p) - p), 0, 1)
                for m, name in enumerate(self.names):
                    self.tables[name, configuration, group] = base.assign(frequency=answers[m].astype(float))

    def has(self, model: str, *configurations: str) -> bool:
        return all((model, name, self.groups[0]) in self.tables for name in configurations)

    def outcomes(self, model: str, configuration: str, group: str = "overall") -> pd.DataFrame:
        if (model, configuration, group) in self.tables:
            return self.tables[model, configuration, group]
        return pd.concat([self.tables[model, configuration, one] for one in self.groups], ignore_index=True)


def _collapse(fallen: int, level: float) -> Callable[[Draw], Verdict]:
    """All models are right in .75 without dropout; with it, so many of them in `level`, the others in .7."""

    def study(draw: Draw) -> Verdict:
        noisy = np.where(np.arange(_MODELS) < fallen, level, 0.7)
        e = _Answers(draw, {("deterministic", "overall"): 0.75, ("baseline", "overall"): noisy}, 2 * _CONTEXTS)
        down = [name for name in e.names if cells.collapsed(e, name, "baseline", _MODELS)]  # type: ignore[arg-type]
        return cells.collapse_verdict(down)

    return study


def _able(lowest: int) -> np.ndarray:
    """Reasoning without dropout: some models are at chance, the others right in .8."""
    return np.where(np.arange(_MODELS) >= lowest, 0.8, 0.5)


def _decoder_gap(gap: float) -> Callable[[Draw], Verdict]:
    """Five models are at chance in reasoning, one of the five decoders among them."""
    decodes = np.where(np.arange(_MODELS) < _DECODERS, 1, -1) * gap
    chance = np.isin(np.arange(_MODELS), (0, 6, 7, 8, 9))
    groups = {"memory": 0.85 + decodes / 3, "reasoning": np.where(chance, 0.5, 0.75 - decodes / 6)}
    right = {(name, group): level for name in ("deterministic", "baseline") for group, level in groups.items()}

    def study(draw: Draw) -> Verdict:
        e = _Answers(draw, right)
        found = cells.able_cells(e, cells.cell_table(e, "baseline"), "memory", "reasoning")  # type: ignore[arg-type]
        decoders = {f"m{m}" for m in range(_DECODERS)}
        return decide(cells.gap_between_models(found, decoders, "memory", "reasoning"), "above", margin=profile.MARGIN)

    return study


def _fragile(more: float) -> Callable[[Draw], Verdict]:
    """High dropout costs the thirteen able models .1 of reasoning and `more` beyond that of memory."""

    def study(draw: Draw) -> Verdict:
        reasoning, memory = _able(6), 0.85
        right: dict[tuple[str, str], np.ndarray | float] = {
            ("deterministic", "memory"): memory, ("deterministic", "reasoning"): reasoning,
            ("high_both", "memory"): memory - 0.1 - more, ("high_both", "reasoning"): np.maximum(reasoning - 0.1, 0.5),
        }  # fmt: skip
        e = _Answers(draw, right)
        lost = cells.differences(e, "deterministic", "high_both")  # type: ignore[arg-type]
        found = cells.able_cells(e, lost, "memory", "reasoning")  # type: ignore[arg-type]
        return decide(cells.between_groups(found, "memory", "reasoning"), "above", margin=profile.MARGIN)

    return study


def _shared_items(mean: float) -> Callable[[Draw], Verdict]:
    """Models that hardly differ, on items that do: in most of them the loss has the sign of the items' luck."""
    shape = (_MODELS, 200)
    model, context = labels(shape)

    def study(draw: Draw) -> Verdict:
        value = draw_cells(draw, shape, Components(0.01, 0.3, 0.1), mean).ravel()
        table = pd.DataFrame({"model": [f"m{m}" for m in model], "context": context, "group": "", "value": value})
        return decide(cells.mean_of(table), "above", margin=profile.MARGIN)

    return study


def _families(between: float) -> Callable[[Draw], Verdict]:
    """Stds of the paper's 19 models, with a spread of .002 within a family and families at .015 ± `between`."""
    about = pd.DataFrame(NINETEEN, columns=["model", "family", "kind", "parameters"])

    def study(draw: Draw) -> Verdict:
        own = {family: between * (-1) ** number for number, family in enumerate(dict.fromkeys(about.family))}
        std = 0.015 + about.family.map(own) + 0.002 * draw.normal(size=_MODELS)
        found = family_estimate(family_or_size(about.assign(std=std)))
        return decide(found, "below", bound=1.0, margin=profile.ERROR_MARGIN)

    return study


def _spread(draw: Draw, *, on: bool) -> list[float]:
    """Std over 100 passes of the accuracy on 200 items, of which hardly any ever changes."""
    flips = draw.random((100, 200)) < (0.002 if on else 0.0)
    return [float((0.8 - flips.mean(1) / 2).std(ddof=1)) if flips.any() else 0.0]


def _hurts(size: float) -> Callable[[Draw], Verdict]:
    """19 models on 50 contexts; whether any of them, or the first, is decided."""

    def study(draw: Draw) -> Verdict:
        means = np.zeros(_MODELS)
        means[0] = size
        found = [over_networks(row.tolist()) for row in draw.normal(means[:, None], 0.3, (_MODELS, 50))]
        words = [hurts_more(e, p) for e, p in zip(found, holm([e.p for e in found]), strict=True)]
        if size == 0:
            return "undecided" if set(words) == {"undecided"} else "supported"
        return "supported" if words[0] == "FFN" else "undecided"

    return study


# --- where to drop: networks ------------------------------------------------------------------------------------------


def _accuracy(truth: float) -> Callable[[Draw], Verdict]:
    """Five networks of one accuracy on 10,000 shared images, against .71 to .76."""
    return lambda draw: decide(
        accuracy_estimate((truth + 0.004 * draw.normal() + 0.004 * draw.normal(size=_NETWORKS)).tolist(), 10_000),
        "same", bound=0.7267, margin=(0.0167, 0.0333),
    )  # fmt: skip


def _pair_order(mean: float) -> Callable[[Draw], Verdict]:
    """Both penalties of table 3's two placements, which go together."""

    def study(draw: Draw) -> Verdict:
        shared = draw.normal(mean, 0.3, _NETWORKS)
        both = [over_networks((shared + draw.normal(0, 0.1, _NETWORKS)).tolist()) for _ in range(2)]
        return decide_all([share(e, 1.0) for e in both], "below", margin=MARGIN)

    return study


def _batches(ratio: float) -> Callable[[Draw], Verdict]:
    """A published cell that is `ratio` times a batch of 128, beside 390 of ours."""

    def study(draw: Draw) -> Verdict:
        ours = 0.02 * np.exp(draw.normal(0, 0.2, 390))
        low, high = np.quantile(ours, [0.025, 0.975])
        published = ratio * 0.02 * float(np.exp(draw.normal(0, 0.05)))
        return of_batches(Estimate(float(ours.mean()), 0.0, 0.0, np.nan, 5, ""), (low, high), 390, published)

    return study


def _last_layer(change: float) -> Callable[[Draw], Verdict]:
    """Slope on the last masked layer of four, in five networks whose mean penalty is .02; change from end to end."""

    def study(draw: Draw) -> Verdict:
        slopes = 0.02 * draw.normal(change, 0.15, _NETWORKS) / 3
        return decide(share(over_networks(slopes.tolist()), 0.02, 3), "above", margin=MARGIN)

    return study


def _early(change: float) -> Callable[[Draw], Verdict]:
    return lambda draw: decide(
        share(over_networks((0.02 * draw.normal(change, 0.15, _NETWORKS)).tolist()), 0.02), "below", margin=MARGIN
    )


def _positions(difference: float) -> Callable[[Draw], Verdict]:
    """Fifteen paired differences, three scores of five measures, as shares of the mean score."""

    def study(draw: Draw) -> Verdict:
        shared = draw.normal(difference, 0.02, _NETWORKS)
        lines = [over_networks((shared + draw.normal(0, 0.01, _NETWORKS)).tolist()) for _ in range(15)]
        return decide_all(lines, "same", margin=MARGIN)

    return study


def _one_network(signal: float) -> Callable[[Draw], Verdict]:
    """Two measures, each with a placement chosen on other examples, on 300 test images of one network."""
    level = 1 - 0.05 / 2

    def study(draw: Draw) -> Verdict:
        verdicts = []
        right = draw.random(300) < 0.85
        plain = pd.DataFrame({"uncertainty": 1.5 * ~right + draw.normal(size=300), "correct": right})
        for _ in range(2):
            own = plain.assign(uncertainty=signal * ~right + draw.normal(size=300))
            judged = judge(("last=0.5", "bald", "plain_entropy"), own, plain)
            row = pd.Series(
                {"difference": judged.difference, "low": judged.low, "high": judged.high, "errors": judged.errors}
            )
            verdicts.append(decide(of_one(row, level), "below", alpha=1 - level))
        return any_of(verdicts)

    return study


# --- segmentation, and runs -------------------------------------------------------------------------------------------


def _cost(ratio: float) -> Callable[[Draw], Verdict]:
    """Seven rounds of timing on a busy machine, which slows whole rounds and single timings."""

    def study(draw: Draw) -> Verdict:
        busy = np.exp(0.3 * draw.random(ROUNDS))
        timings = {name: busy * np.exp(0.1 * draw.normal(size=ROUNDS)) for name in FOUR}
        timings[FOUR[0]] = ratio * timings[FOUR[0]]
        return cost_verdict(cost_ratios({name: seconds.tolist() for name, seconds in timings.items()}))

    return study


_WORDS: dict[str, Verdict] = {"better": "supported", "worse": "contradicted", "undecided": "undecided"}


def _other_examples(signal: float) -> Callable[[Draw], Verdict]:
    """A placement that was chosen on other examples, and the plain pass, which finds errors with a signal of 1.5."""

    def study(draw: Draw) -> Verdict:
        right = draw.random(300) < 0.85
        shared = draw.normal(size=300)
        sides = [
            pd.DataFrame({"uncertainty": s * ~right + 0.7 * shared + 0.7 * draw.normal(size=300), "correct": right})
            for s in (signal, 1.5)
        ]
        return _WORDS[judge(("last=0.5", "bald", "plain_entropy"), *sides).word]

    return study


def _picked(signal: float, n: int) -> Callable[[Draw], Verdict]:
    def study(draw: Draw) -> Verdict:
        return "supported" if false_gain(int(draw.integers(1 << 31)), 45, signal, n)[1] else "undecided"

    return study


RULES = (
    Rule("some models collapse", "all at chance + .1", "one at chance", _collapse(_MODELS, 0.6), _collapse(1, 0.5),
         false=_SUPPORTED, studies=60),
    Rule("decoder gap, of models above chance", "equal gaps", ".3", _decoder_gap(0.0), _decoder_gap(0.3), studies=40),
    Rule("memory is fragile, of models above chance", "equal losses", ".2", _fragile(0.0), _fragile(0.2), studies=40),
    Rule("19 models that share 200 items", "no loss", ".1", _shared_items(0.0), _shared_items(0.1), studies=200),
    Rule("family over size", "unrelated", "families at ± 6 sd", _families(0.0), _families(0.012),
         false=_SUPPORTED, studies=200),
    Rule("a model does not vary", "it does", "it does not", lambda d: still(_spread(d, on=True)),
         lambda d: still(_spread(d, on=False)), false=_SUPPORTED, studies=200),
    Rule("a model varies", "it does not", "it does", lambda d: varies(_spread(d, on=False)),
         lambda d: varies(_spread(d, on=True)), false=_SUPPORTED, studies=200),
    Rule("attention or FFN hurts more, 19 tests", "neither", "one by .25", _hurts(0.0), _hurts(0.25), studies=100),
    Rule("accuracy as published", ".71, the margin", ".735", _accuracy(0.71), _accuracy(0.735), studies=400),
    Rule("order of table 3", "no difference", "the mean score", _pair_order(0.0), _pair_order(-1.0), studies=400),
    Rule("a cell of table 3", "three times", "the same", _batches(3.0), _batches(1.0), false=_SUPPORTED, studies=200),
    Rule("a cell of table 3: contradicted", "the same", "the same", _batches(1.0), _batches(1.0), false=_CONTRADICTED,
         studies=200),
    Rule("rises with the last layer", "flat", "half the mean", _last_layer(0.0), _last_layer(0.5), studies=400),
    Rule("early layers are best", "no difference", "half the mean", _early(0.0), _early(-0.5), studies=400),
    Rule("position makes no difference", "10 %", "none", _positions(MARGIN), _positions(0.0), studies=100),
    Rule("beats a plain pass, one network", "no gain", "signal 3 for 1.5", _one_network(1.5), _one_network(3.0),
         studies=60),
    Rule("averaged variance is cheapest", "all alike", "half the time", _cost(1.0), _cost(0.5)),
    Rule("try, demo: on other examples", "no gain", "signal 2.5 for 1.5", _other_examples(1.5), _other_examples(2.5),
         studies=120),
    Rule("sweep: the best of 45 rows", "no gain", "signal 2.5 for 1.5, n = 600", _picked(1.5, 300), _picked(2.5, 600),
         studies=60),
)  # fmt: skip
