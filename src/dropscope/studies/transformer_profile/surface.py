"""The response surface: what every attention rate with every FFN rate does to accuracy and probabilities.

Owns its two tables (each network over contexts; models × contexts) and its figure. See `networks` for how it is
measured.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dropscope.analysis import over_clusters
from dropscope.report import new_figure
from dropscope.studies.transformer_profile import cells
from dropscope.studies.transformer_profile.rows import OVERALL, Evaluations

_SCORES = {"accuracy": cells.right, "brier": cells.brier, "nll": cells.nll}


def surface_tables(e: Evaluations) -> dict[str, tuple[pd.DataFrame, str]]:
    """The tables by name, with their captions; none where no surface was measured."""
    if e.surface is None:
        return {}
    return {
        "surface": (
            per_network(e),
            "Response surface of each network: run-level accuracy, Brier score and NLL of the averaged probabilities "
            "at every pair of rates; difference of accuracy to 0/0 with its 95 % interval over contexts",
        ),
        "surface_over_models": (
            over_models(e),
            "Response surface: difference of accuracy, Brier score and NLL to 0/0, two-way cluster t over models × "
            "contexts",
        ),
    }


def per_network(e: Evaluations) -> pd.DataFrame:
    """A row per network, pair of rates and group."""
    assert e.surface is not None
    rows = []
    for (model, attention, ffn), items in e.surface.groupby(["model", "attention_rate", "ffn_rate"], sort=False):
        plain = _items(e, str(model), 0.0, 0.0)
        for group in e.all_groups:
            own, base = (t if group == OVERALL else t[t["group"] == group] for t in (_ordered(items), plain))
            lost = over_clusters(cells.right(own).to_numpy() - cells.right(base).to_numpy(), list(own.context))
            scores = {name: float(score(own).mean()) for name, score in _SCORES.items()}
            rows.append({
                "model": model, "attention_rate": attention, "ffn_rate": ffn, "group": group, **scores,
                "difference": lost.value, "low": lost.low, "high": lost.high, "contexts": lost.n,
            })  # fmt: skip
    return pd.DataFrame(rows)


def over_models(e: Evaluations) -> pd.DataFrame:
    """A row per pair of rates, group and score: what it changes, over models × contexts."""
    rows = []
    for group in e.all_groups:
        for name, score in _SCORES.items():
            found = {point: t.set_index(["model", "context", "group"]).value
                     for point, t in cells.surface_cells(e, group, score).items()}  # fmt: skip
            for (attention, ffn), values in found.items():
                if (attention, ffn) == (0.0, 0.0) or (0.0, 0.0) not in found:
                    continue
                apart = (values - found[0.0, 0.0]).dropna().reset_index()
                estimate = cells.mean_of(apart)
                rows.append({
                    "attention_rate": attention, "ffn_rate": ffn, "group": group, "score": name,
                    "difference": estimate.value, "low": estimate.low, "high": estimate.high, "p": estimate.p,
                    "models": apart.model.nunique(), "contexts": apart.context.nunique(), "method": estimate.method,
                })  # fmt: skip
    return pd.DataFrame(rows)


def surface_map(e: Evaluations) -> Figure:
    """Mean accuracy over models at every pair of rates, a panel per group; the rates of least NLL are framed."""
    table = per_network(e)
    groups = [group for group in e.all_groups if group in set(table["group"])]
    figure = new_figure(1.2 + 3.1 * len(groups), 3.6)
    panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    low, high = float(table.accuracy.min()), float(table.accuracy.max())
    for axes, group in zip(panels, groups, strict=True):
        own = table[table["group"] == group]
        mean = own.pivot_table("accuracy", "attention_rate", "ffn_rate", "mean")
        image = axes.imshow(mean.to_numpy(), cmap="viridis", vmin=low, vmax=high, origin="lower", aspect="auto")
        for (y, x), value in np.ndenumerate(mean.to_numpy()):
            if np.isfinite(value):
                colour = "black" if value > (low + high) / 2 else "white"
                axes.text(x, y, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=8, color=colour)
        nll = own.pivot_table("nll", "attention_rate", "ffn_rate", "mean").to_numpy()
        y, x = np.unravel_index(np.nanargmin(nll), nll.shape)
        axes.add_patch(_frame(float(x), float(y)))
        axes.set_xticks(range(mean.shape[1]), [f"{rate:g}" for rate in mean.columns], fontsize=8)
        axes.set_yticks(range(mean.shape[0]), [f"{rate:g}" for rate in mean.index], fontsize=8)
        axes.set_title(group, fontsize=9, loc="left")
        axes.set_xlabel("FFN rate")
    panels[0].set_ylabel("attention rate")
    networks = table.model.nunique()
    words = "networks" if networks > 1 else "network"
    figure.suptitle(f"Accuracy, mean of {networks} {words}; frame: least NLL, picked on these items", fontsize=10)
    figure.colorbar(image, ax=list(panels), label="run-level accuracy", fraction=0.05, pad=0.02)
    return figure


def _frame(x: float, y: float) -> Rectangle:
    return Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=2)


def _items(e: Evaluations, model: str, attention: float, ffn: float) -> pd.DataFrame:
    assert e.surface is not None
    s = e.surface
    return _ordered(s[(s.model == model) & (s.attention_rate == attention) & (s.ffn_rate == ffn)])


def _ordered(items: pd.DataFrame) -> pd.DataFrame:
    return items.sort_values("item", kind="stable")
