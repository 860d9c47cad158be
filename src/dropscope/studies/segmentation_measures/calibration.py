"""Calibration of measures: the probability that a voxel is wrong, given its uncertainty.

A measure ranks voxels; what it says is no probability, which the paper names as a limit. Here a monotone curve from
uncertainty to P(error) is fitted on the validation cases (isotonic regression) and judged on the test cases. Owns the
curve, what is kept of each case, and the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from dropscope.analysis import Estimate, crossed_mean
from dropscope.studies.segmentation_measures.rows import LABELS

BINS = 15  # of P(error), of equal width
AS_IT_IS = "plain_max_probability"  # one measure that is a P(error) without any curve
RAW = ", as it is"  # how it is called then
_GROUPS = 1000  # of voxels of one case with neighbouring uncertainties, that the curve is fitted to
_KNOTS = 400  # of a curve, at most


@dataclass(frozen=True, eq=False)
class ErrorCurve:
    """P(error) as a function of a measure: straight lines between knots, flat beyond them.

    Attributes:
        uncertainty: Of the knots, rising.
        error: P(error) there, never falling.
        share: Share of wrong voxels in the validation cases, which an uncertainty that knows nothing gives to all.
    """

    uncertainty: np.ndarray
    error: np.ndarray
    share: float

    def __call__(self, values: Tensor) -> Tensor:
        """P(error) of every voxel, float32."""
        x, y = (torch.as_tensor(knots, dtype=torch.float64, device=values.device) for knots in
                (self.uncertainty, self.error))  # fmt: skip
        flat = values.double().clamp(x[0], x[-1])
        if len(x) == 1:
            return torch.full_like(flat, float(y[0]), dtype=torch.float32)
        right = torch.searchsorted(x, flat.contiguous(), right=True).clamp(1, len(x) - 1)
        left = right - 1
        part = (flat - x[left]) / (x[right] - x[left])
        return (y[left] + part * (y[right] - y[left])).float()

    def facts(self) -> dict[str, Any]:
        """In values that JSON has."""
        return {"uncertainty": self.uncertainty.tolist(), "error": self.error.tolist(), "share": self.share}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> ErrorCurve:
        """From `facts`."""
        return cls(np.asarray(facts["uncertainty"]), np.asarray(facts["error"]), float(facts["share"]))


def group_voxels(values: Tensor, wrong: Tensor) -> Tensor:
    """Voxels of one case by neighbouring uncertainties: `[groups, 3]`, mean uncertainty, errors and voxels of each."""
    order = values.argsort()
    parts = order.tensor_split(min(_GROUPS, len(order)))
    sizes = torch.tensor([len(part) for part in parts], device=values.device)
    group = torch.repeat_interleave(torch.arange(len(parts), device=values.device), sizes)
    columns = (values[order].double(), wrong[order].double())
    sums = [torch.zeros(len(parts), dtype=torch.float64, device=values.device).index_add_(0, group, c) for c in columns]
    return torch.stack([sums[0] / sizes, sums[1], sizes.double()], 1).cpu()


def fit_curve(groups: Iterable[Tensor]) -> ErrorCurve:
    """The curve from the groups of all validation cases."""
    u, errors, voxels = torch.cat(list(groups)).numpy().T
    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(u, errors / voxels, sample_weight=voxels)
    x, y = fitted.X_thresholds_, fitted.y_thresholds_
    if len(x) > _KNOTS:
        kept = np.unique(np.linspace(0, len(x) - 1, _KNOTS).round().astype(int))
        x, y = x[kept], y[kept]
    x, places = np.unique(x, return_index=True)
    return ErrorCurve(x, y[places], float(errors.sum() / voxels.sum()))


def judge_curve(probability: Tensor, wrong: Tensor, share: float) -> dict[str, Any]:
    """What is kept of one test case: its Brier score, that of a constant, and the sums of `BINS` bins of P(error)."""
    p, error = probability.double(), wrong.double()
    place = (p * BINS).long().clamp(0, BINS - 1)
    sums = [torch.bincount(place, weight, BINS).double() for weight in (torch.ones_like(p), p, error)]
    return {
        "brier": float(((p - error) ** 2).mean()),
        "brier_constant": float(((share - error) ** 2).mean()),
        **{name: s.tolist() for name, s in zip(("bin_voxels", "bin_predicted", "bin_errors"), sums, strict=True)},
    }


def bin_sums(rows: pd.DataFrame, prefix: str = "") -> tuple[np.ndarray, ...]:
    """(voxels, predicted errors, errors) of each bin of P(error), over all cases in the rows."""
    columns = (f"{prefix}bin_{what}" for what in ("voxels", "predicted", "errors"))
    return tuple(np.stack(rows[column].tolist()).sum(0) for column in columns)


def expected_calibration_error(rows: pd.DataFrame, prefix: str = "") -> float:
    """Σ_bins |observed − predicted errors| / voxels, over all test cases in the rows together."""
    voxels, predicted, errors = bin_sums(rows, prefix)
    return float(np.abs(predicted - errors).sum() / max(voxels.sum(), 1))


def calibration_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per measure: ECE of its P(error) on test cases over experiments, and what the curve explains of the Brier
    score of a constant; the difference of Brier scores to one plain pass is over experiments and patients."""
    known = rows[rows["brier"].notna()] if "brier" in rows else rows.iloc[:0]
    if known.empty:
        return pd.DataFrame()
    keys = ["experiment", "patient", "case"]
    plain = known[known.measure == "plain_entropy"].groupby(keys).brier.mean()
    table = []
    for name, prefix in [*((str(name), "") for name in known.measure.unique()), (AS_IT_IS, "raw_")]:
        own = known[known.measure == name]
        brier, constant = own[f"{prefix}brier"], own[f"{prefix}brier_constant"]
        of_each = [expected_calibration_error(part, prefix) for _, part in own.groupby("experiment", sort=False)]
        low, high = np.quantile(of_each, [0.05, 0.95])
        e = _apart(own.groupby(keys)[f"{prefix}brier"].mean() - plain)
        words = LABELS.get(name, name) + (RAW if prefix else "")
        row: dict[str, Any] = {"measure": words, "ECE ↓": np.mean(of_each), "5 %": low, "95 %": high}
        explained = 1 - brier.mean() / constant.mean() if constant.any() else np.nan
        row |= {"Brier ↓": brier.mean(), "explained ↑": explained}
        table.append(row | {"Brier − one plain pass": e.value, "low": e.low, "high": e.high})
    return pd.DataFrame(table)


def _apart(differences: pd.Series) -> Estimate:
    apart = differences.dropna()
    rows, columns = (apart.index.get_level_values(kind).to_numpy() for kind in ("experiment", "patient"))
    return crossed_mean(apart.to_numpy(), rows, columns, kinds=("experiments", "patients"))


def calibration_words(table: pd.DataFrame) -> list[str]:
    """The sentence of the summary."""
    if table.empty:
        return []
    raw = table.measure.str.endswith(RAW)
    fitted = table[~raw]
    best = fitted.loc[fitted["explained ↑"].idxmax()]
    beside = f"1 − max probability of one plain pass, taken as P(error) as it is, has {table['ECE ↓'][raw].iloc[0]:.4f}"
    return [
        "P(error) of a voxel from each measure, by a monotone curve fitted on the validation cases: expected "
        f"calibration errors on the test cases of {fitted['ECE ↓'].min():.4f} to {fitted['ECE ↓'].max():.4f}; {beside}"
        f". Well calibrated, but the best of them, {best.measure}, removes only "
        f"{100 * best['explained ↑']:.0f} % of the Brier score of a constant. `calibration/` has the curves."
    ]
