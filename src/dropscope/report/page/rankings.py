"""Rankings of examples in a report: what deferring would do, risk against coverage, accuracy of the kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope.report.page.content import Cell, Curves, Grid, Line
from dropscope.runs import deferral_table
from dropscope.scores import accuracy_curve, risk_coverage_curve

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
_POINTS = 140
_SETTLED = 0.04  # coverage from which on a risk is more than the luck of a few examples


def operating_table(rankings: Mapping[str, pd.DataFrame], costs: Mapping[str, float]) -> Grid:
    """A row per share that is deferred; errors caught and let through, for every ranking."""
    found = deferral_table(rankings, SHARES)
    rows: list[list[Cell]] = []
    for share in SHARES:
        cells: list[Cell] = [f"{100 * share:.0f} %"]
        for name in rankings:
            row = found[(found.deferred == share) & (found.ranking == name)].iloc[0]
            caught = None if pd.isna(row.errors_caught) else f"{100 * row.errors_caught:.0f} %"
            cells += [caught, int(row.errors_kept)]
        rows.append(cells)
    groups = [("", 1), *((f"{_spoken(name)} · {costs[name]:,.1f}×", 2) for name in rankings)]
    columns = ["deferred", *["errors caught", "let through"] * len(rankings)]
    notes = ["× is the cost per example, in plain passes."]
    return Grid(columns, rows, groups=groups, notes=notes)


def risk_chart(rankings: Mapping[str, pd.DataFrame], plain: str | None = None) -> Curves:
    """Errors among the kept, the most certain first."""
    lines, highest = [], 0.0
    for name, table in rankings.items():
        coverage, risk = (100 * part.double().numpy() for part in risk_coverage_curve(*_tensors(table)))
        settled = coverage >= 100 * max(_SETTLED, 10 / len(table))
        x, y = _thinned(coverage[settled], risk[settled])
        highest = max(highest, float(y.max(initial=0)))
        lines.append(Line(name, x.tolist(), y.tolist(), _is_plain(name, plain)))
    title = "Errors among the kept examples against the share that is kept"
    return Curves(title, "kept, the most certain first (%)", "errors among them (%)", "kept", lines, y1=_top(highest))


def accuracy_chart(rankings: Mapping[str, pd.DataFrame], plain: str | None = None) -> Curves:
    """Accuracy of the kept, the most certain first."""
    lines, lowest = [], 100.0
    share = list(range(1, 101))
    for name, table in rankings.items():
        y = 100 * accuracy_curve(*_tensors(table)).double().numpy()
        lowest = min(lowest, float(y[4:].min()))
        lines.append(Line(name, share, y.tolist(), _is_plain(name, plain)))
    title = "Accuracy of the kept examples against the share that is kept"
    floor = max(0.0, 5 * np.floor((lowest - 2) / 5))
    return Curves(title, "kept, the most certain first (%)", "accuracy (%)", "kept", lines, y0=float(floor))


def _is_plain(name: str, plain: str | None) -> bool:
    return name == plain if plain is not None else name.startswith("one plain pass")


def _spoken(name: str) -> str:
    placement, _, measure = name.rpartition(", ")
    return name if name.startswith("one plain pass") or not placement else f"`{placement}`, {measure}"


def _top(highest: float) -> float:
    return max(1.0, 1.08 * highest)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.unique(np.linspace(0, len(x) - 1, min(_POINTS, len(x))).round().astype(int))
    return x[chosen].round(2), y[chosen].round(3)


def _tensors(table: pd.DataFrame) -> tuple[Tensor, Tensor]:
    return torch.tensor(table.uncertainty.to_numpy(copy=True)), torch.tensor(table.correct.to_numpy(copy=True))
