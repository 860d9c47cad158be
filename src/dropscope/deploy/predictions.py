"""Predictions: what a predictor says about every example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dropscope.display import Table

_SHOWN = 10


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a predictor says about some examples, in the order of the inputs. Prints itself.

    Attributes:
        ids: What the user calls each.
        labels: Predicted classes.
        probabilities: `[n, classes]`.
        uncertainty: The predictor's measure.
        error_probability: Calibrated probability that the prediction is wrong; ranks as the uncertainty does.
        defer: True where a person should decide; all False without a rule.
        disagreement: Share of the passes that predict another class; NaN for a plain pass.
        class_names: In the order of the classes, or None.
    """

    ids: list[Any]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    uncertainty: NDArray[np.float64]
    error_probability: NDArray[np.float64]
    defer: NDArray[np.bool_]
    disagreement: NDArray[np.float32]
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def table(self) -> pd.DataFrame:
        """A row per example: `id`, `prediction`, `predicted_class`, `probability`, `uncertainty`, …, `defer`."""
        columns: dict[str, Any] = {"id": self.ids, "prediction": self.labels}
        if self.class_names is not None:
            columns["predicted_class"] = [self.class_names[one] for one in self.labels.tolist()]
        chosen = self.probabilities[np.arange(len(self)), self.labels]
        columns |= {"probability": chosen, "uncertainty": self.uncertainty}
        return pd.DataFrame(columns | {"error_probability": self.error_probability, "defer": self.defer})

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [[str(value) if not isinstance(value, float) else f"{value:.4g}" for value in row]
                for row in self.table.head(_SHOWN).itertuples(index=False)]  # fmt: skip
        left = len(self) - _SHOWN
        notes = [f"… and {left} more: .table"] if left > 0 else []
        caption = f"{len(self):,} predictions, {int(self.defer.sum()):,} deferred"
        return Table(list(self.table.columns), rows, caption, notes).text()
