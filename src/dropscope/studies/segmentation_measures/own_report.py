"""Which measure to take, if any; and what the summary says of networks that came trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dropscope.analysis import Estimate, crossed_mean, over_networks
from dropscope.report import ALPHA, Claim, format_estimate
from dropscope.studies.segmentation_measures.rows import LABELS

_PLAIN = ("plain_entropy", "plain_max_probability")
_FEWEST = 3  # networks, for a rule about networks


def own_claims(claims: Sequence[Claim], networks: int) -> list[Claim]:
    """Claims that these networks decide."""
    return [claim for claim in claims if networks >= _FEWEST or claim.verdict != "undecided"]


def own_words(facts: dict[str, Any]) -> str:
    """What was judged."""
    _, validation, test = facts["cases"]
    return (
        f"{len(facts['own'])} network{'s' * (len(facts['own']) > 1)} that came trained ({', '.join(facts['own'])}) on "
        f"{facts['data']}: placement {facts['placement']}; {validation} cases for curves of P(error), {test} for the "
        "test; region "
        f"{'×'.join(map(str, facts['roi']))}; {facts['passes']} passes."
    )


def recommend(rows: pd.DataFrame) -> str:
    """Which measures find wrong voxels better than one plain pass.

    Each interval is at 1 − .05/measures, for the best of several is picked on these cases: over networks × patients, or
    over patients of one or two networks.
    """
    cells = rows.pivot_table("auprc", ["network", "experiment", "patient", "case"], "measure", "mean")
    names = [name for name in cells.columns if name not in _PLAIN]
    level = 1 - ALPHA / len(names)
    apart = {name: (cells[name] - cells[_PLAIN[0]]).dropna() for name in names}
    found = {name: _against_plain(values, level) for name, values in apart.items()}
    better = sorted((n for n, e in found.items() if e.low > 0), key=lambda n: -found[n].value)
    how = next(iter(found.values())).method
    if better:
        best = found[better[0]]
        others = f"; so do {', '.join(LABELS[name] for name in better[1:])}" if better[1:] else ""
        return (
            f"**Take {LABELS[better[0]]}**: it finds wrong voxels better than the entropy of one plain pass, by "
            f"{format_estimate(best.value, best.low, best.high)} of AUC-PR{others} ({how}, corrected for "
            f"{len(names)} measures)."
        )
    name = max(found, key=lambda each: found[each].value)
    e, plainly = found[name], _against_plain(apart[name], 1 - ALPHA)
    corrected = f"corrected for {len(names)} measures"
    if plainly.low > 0:
        return (
            f"**Keep one plain pass until it is settled**: {LABELS[name]} finds wrong voxels better than its entropy "
            f"by {format_estimate(plainly.value, plainly.low, plainly.high)} of AUC-PR, but {corrected} the interval "
            f"contains 0 ({e.low:.4f} to {e.high:.4f}). One pass is cheaper."
        )
    return (
        "**Keep one plain pass**: no measure of several passes is shown to find wrong voxels better than its entropy; "
        f"the nearest is {LABELS[name]}, {format_estimate(e.value, e.low, e.high)} of AUC-PR, {corrected}."
    )


def _against_plain(apart: pd.Series, level: float) -> Estimate:
    networks = apart.index.get_level_values("network").nunique()
    patients = apart.index.get_level_values("patient")
    if networks >= _FEWEST:
        rows = apart.index.get_level_values("network").to_numpy()
        e = crossed_mean(apart.to_numpy(), rows, patients.to_numpy(), kinds=("networks", "patients"), level=level)
        if e.low == e.low:
            return e
    e = over_networks(apart.groupby(patients).mean().tolist(), level)
    which = "this network" if networks == 1 else f"these {networks} networks"
    method = f"t over {e.n} patients: it says nothing about other networks than {which}"
    return Estimate(e.value, e.low, e.high, e.p, e.n, method)
