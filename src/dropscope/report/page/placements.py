"""Placements of a sweep in a report: every row packed for the explorer, and what each site does at each rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dropscope.display import natural
from dropscope.errors import BadInput
from dropscope.placement import Placement
from dropscope.report.page.content import Explorer, Network, Node, PackedColumn, Section
from dropscope.report.page.packing import pack, pack_numbers, pack_texts
from dropscope.runs import Run
from dropscope.scores import TABLE as SCORES

_BUDGET = 1_350_000  # characters that packed columns may take
_RATES = 12  # columns of a heat map
_COLUMNS = (
    "aurc",
    "aurc_minus_single_pass",
    "accuracy",
    "error_auroc",
    "isotonic_penalty",
    "cost",
    "ece",
    "nll",
    "augrc",
    "rearrangement_penalty",
)
_TITLES = {
    "aurc": "AURC↓",
    "aurc_minus_single_pass": "vs plain↓",
    "accuracy": "accuracy↑",
    "error_auroc": "AUROC↑",
    "isotonic_penalty": "penalty↓",
    "cost": "cost↓",
    "ece": "ECE↓",
    "nll": "NLL↓",
    "augrc": "AUGRC↓",
    "rearrangement_penalty": "rearrangement↓",
}
_FORMS = {"cost": "times", "aurc_minus_single_pass": "signed"}
_MOST = 9  # columns that people can read


@dataclass(frozen=True, eq=False)
class Terms:
    """Placements as a matrix: a row each, a column per site, the number of the rate or 0."""

    sites: list[str]
    rates: list[float]
    matrix: NDArray[np.uint8]


def terms_of(texts: Sequence[str], order: Sequence[str] = ()) -> Terms:
    """The sites and rates that placements name; sites in the order of the network where that is known.

    >>> found = terms_of(["b=0.5", "a=0.1,b=0.5", "own"])
    >>> found.sites, found.rates, found.matrix.tolist()
    (['a', 'b'], [0.1, 0.5], [[0, 2], [1, 2], [0, 0]])
    """
    parsed = [_parsed(text) for text in texts]
    place = {name: number for number, name in enumerate(order)}
    sites = sorted(
        {site for terms in parsed for site in terms},
        key=lambda name: (place.get(site_name(name), len(place)), natural(name)),
    )
    rates = sorted({rate for terms in parsed for rate in terms.values()})[:255]
    columns, numbers = {site: n for n, site in enumerate(sites)}, {rate: n + 1 for n, rate in enumerate(rates)}
    matrix = np.zeros((len(texts), len(sites)), np.uint8)
    for row, terms in enumerate(parsed):
        for site, rate in terms.items():
            matrix[row, columns[site]] = numbers.get(rate, 0)
    return Terms(sites, rates, matrix)


@lru_cache(maxsize=1 << 16)  # the heat map and the explorer read the same texts
def _parsed(text: str) -> dict[str, float]:
    try:
        return {term.address: round(term.rate, 4) for term in Placement.parse(text).terms if term.rate > 0}
    except BadInput:  # noise of a user's own that this process does not know
        return {}


def site_name(address: str) -> str:
    """A site without its position."""
    return address.partition("@")[0]


def nodes_of(sites: Sequence[str], known: Sequence[dict[str, Any]]) -> list[Node]:
    """Sites with what is known of them."""
    about = {each["name"]: each for each in known}
    found = [(site, about.get(site_name(site), {})) for site in sites]
    return [Node(site, each.get("kind", ""), "×".join(map(str, each.get("shape", [])))) for site, each in found]


def explorer_of(run: Run, most: int | None = None) -> Explorer:
    """Every row; of more than `most`, the placements of the best ones."""
    rows = run.rows
    if most is not None and len(rows) > most:
        score = "aurc" if "aurc" in rows else str(run.spec["scores"][0])
        chosen = run.best(score, most).placement.unique()[: max(1, most // rows.measure.nunique())]
        rows = rows[rows.placement.isin(set(chosen))]
    texts, measures = [str(text) for text in rows.placement.unique()], [str(name) for name in rows.measure.unique()]
    at = (
        pd.Categorical(rows.placement, texts).codes.astype(int),
        pd.Categorical(rows.measure, measures).codes.astype(int),
    )
    known = run.origin.get("sites", [])
    terms = terms_of(texts, [each["name"] for each in known])
    columns: list[PackedColumn] = []
    left_out, spent = [], 0
    own = [name for name in run.spec.get("own_scores", {}) if name in rows]
    for name in [*(name for name in (*own, *_COLUMNS, *SCORES) if name in rows)]:
        if len(columns) >= _MOST or name in [column.name for column in columns]:
            continue
        values = np.full((len(texts), len(measures)), np.nan)
        values[at] = rows[name].to_numpy(float)
        column = _column(name, values, run)
        if name == "aurc_minus_single_pass":  # the same codes as those of AURC
            column = replace(column, packed=replace(column.packed, data=""))
        if spent + len(column.packed.data) > _BUDGET:
            left_out.append(name)
            continue
        spent += len(column.packed.data)
        columns.append(column)
    plain = run.baseline[run.baseline.measure == "plain_entropy"].iloc[0]
    beside = {column.name: float(plain[column.name]) for column in columns if column.name in plain}
    return Explorer(
        "Every placement",
        measures,
        nodes_of(terms.sites, known),
        [f"{rate:g}" for rate in terms.rates],
        pack_texts(texts),
        pack(terms.matrix.tobytes()),
        columns,
        beside,
        left_out,
    )


def _column(name: str, values: NDArray[np.float64], run: Run) -> PackedColumn:
    direction = "higher" if name == "accuracy" else "lower"
    if name in SCORES:
        direction = SCORES[name].direction
    direction = run.spec.get("own_scores", {}).get(name, direction)
    title = _TITLES.get(name, f"{name}{'↓' if direction == 'lower' else '↑'}")
    alike = values.shape[1] == 1 or bool((np.nanmax(values, 1) - np.nanmin(values, 1) == 0).all())
    shown = values[:, 0] if alike else values.reshape(-1)
    return pack_numbers(
        shown,
        name=name,
        title=title,
        direction=direction,
        form=_FORMS.get(name, ""),
        per="placement" if alike else "row",
    )


def network_of(run: Run) -> list[Section]:
    """What each site does at each rate, on a drawing of the network; nothing where placements name no sites."""
    if "aurc" not in run.rows:
        return []
    known = run.origin.get("sites", [])
    texts = [str(text) for text in run.rows.placement.unique()]
    terms = terms_of(texts, [each["name"] for each in known])
    if not terms.sites:
        return []
    numbers = {text: number for number, text in enumerate(texts)}
    labels = terms.rates if len(terms.rates) <= _RATES else sorted({round(rate, 1) for rate in terms.rates})
    bucket = np.array(
        [0, *(1 + labels.index(rate if len(terms.rates) <= _RATES else round(rate, 1)) for rate in terms.rates)]
    )
    values = {}
    for measure, rows in run.rows.groupby("measure", sort=False):
        gap = np.full(len(texts), np.nan)
        gap[[numbers[str(text)] for text in rows.placement]] = rows.aurc_minus_single_pass.to_numpy(float)
        values[str(measure)] = [
            _means(bucket[terms.matrix[:, site]], gap, len(labels)) for site in range(len(terms.sites))
        ]
    best = str(run.rows.measure[run.rows.aurc.idxmin()])
    lead = "AURC less that of one plain pass, averaged over the placements that have the layer at that rate."
    chart = Network(
        "Effect of every layer at every rate",
        "rate of dropping →",
        nodes_of(terms.sites, known),
        [f"{rate:g}" for rate in labels],
        values,
        best,
    )
    return [Section("Where in the network", [chart], lead)]


def _means(at: NDArray[np.int64], values: NDArray[np.float64], count: int) -> list[float | None]:
    fine = np.isfinite(values)
    sums, sizes = (np.bincount(at[fine], weights, count + 1)[1:] for weights in (values[fine], None))
    return [float(total / size) if size else None for total, size in zip(sums, sizes, strict=True)]
