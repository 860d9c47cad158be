"""Where in the network is each group disturbed? One site at a time: every layer × {attention weights, feed-forward}."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from dropscope.placement import Placement
from dropscope.studies.transformer_profile.configurations import layers_of
from dropscope.studies.transformer_profile.evaluate import Bench, accuracies, audit


def sensitivity(
    on: Bench,
    rate: float,
    passes: int,
    masks: str = "per_example",
    seed: int = 42,
    tick: Callable[[int], None] = lambda predictions: None,
) -> pd.DataFrame:
    """A row per site and group: mean and std over passes of the run-level accuracy, and the accuracy without noise."""
    plain = accuracies(on, Placement.none(), 1, masks, seed, lambda predictions: None).set_index("group").accuracy
    rows, sites = [], layers_of(on.site_map)
    if sites:
        audit(on, Placement({site: rate for _, _, site in sites}), seed)
    for layer, component, site in sites:
        found = accuracies(on, Placement({site: rate}), passes, masks, seed, tick)
        for group, values in found.groupby("group", sort=False).accuracy:
            rows.append({"layer": layer, "component": component, "group": group, "rate": rate,
                         "accuracy": float(values.mean()), "std": float(values.std()),
                         "deterministic_accuracy": float(plain[group])})  # fmt: skip
    columns = ["layer", "component", "group", "rate", "accuracy", "std", "deterministic_accuracy"]
    return pd.DataFrame(rows, columns=columns)
