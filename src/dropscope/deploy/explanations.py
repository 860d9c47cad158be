"""Explanations of single answers: what became of calibration examples that were as uncertain."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from dropscope.deploy.bounds import lower_bound, upper_bound
from dropscope.deploy.calibration import Calibration
from dropscope.deploy.predictions import Predictions
from dropscope.display import headed


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why an example is kept or deferred: what became of calibration examples that were as uncertain. Prints itself.

    Attributes:
        prediction: What the predictor says about the example.
        examples: The nearest calibration examples: `id`, `label`, `prediction`, `correct`, `uncertainty`.
        error: Share of them that were wrong.
        error_low: Lower end of its 95 % interval.
        error_high: Upper end.
        rank: Share of the calibration examples that were more certain.
    """

    prediction: Predictions
    examples: pd.DataFrame
    error: float
    error_low: float
    error_high: float
    rank: float

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        said, wrong = self.prediction, int((~self.examples.correct).sum())
        names = said.class_names
        label = int(said.labels[0])
        told = f"{label if names is None else names[label]}, probability {said.probabilities[0, label]:.3f}"
        decided = "deferred" if said.defer[0] else "kept"
        lines = headed("answer", f"{told}, {decided}")
        certain = f"{said.uncertainty[0]:.4g}; {100 * self.rank:.0f} % of the calibration examples were more certain"
        lines += headed("unsure", certain)
        ends = f"{100 * self.error_low:.0f} to {100 * self.error_high:.0f} %"
        lines += headed("like it", f"of {len(self.examples)} as uncertain, {wrong} were wrong ({ends})")
        return "\n".join(lines)


def explain_prediction(said: Predictions, known: Calibration, count: int) -> Explanation:
    """The explanation of one prediction, by so many of the nearest calibration examples."""
    u = float(said.uncertainty[0])
    near = known.nearest(u, min(count, known.n))
    wrong = int((~known.right[near]).sum())
    low, high = (bound(wrong, len(near), 0.025) for bound in (lower_bound, upper_bound))
    table = pd.DataFrame({
        "id": [known.ids[i] for i in near], "label": known.labels[near], "prediction": known.predictions[near],
        "correct": known.right[near], "uncertainty": known.uncertainty[near],
    })  # fmt: skip
    return Explanation(said, table, wrong / len(near), low, high, float((known.uncertainty < u).mean()))
