"""Figures: a file from tables, whatever the ranking."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dropscope.report.figures import accuracy_curves


def table(uncertainty: np.ndarray, correct: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"uncertainty": uncertainty, "correct": correct})


def test_a_picture_of_two_rankings(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    right = draw.random(120) < 0.8
    tables = {"good": table(~right + draw.random(120), right), "random": table(draw.random(120), right)}
    target = accuracy_curves(tables, tmp_path / "curves.png", "Two rankings")
    assert target == tmp_path / "curves.png"
    height, width, _ = plt.imread(target).shape
    assert width > height > 300
    assert plt.get_fignums() == []  # no window, nothing left open


def test_all_right_and_all_tied(tmp_path: Path) -> None:
    for name, tables in {
        "right": {"x": table(np.arange(5.0), np.ones(5, dtype=bool))},
        "tied": {"x": table(np.zeros(7), np.arange(7) % 2 == 0)},
    }.items():
        assert accuracy_curves(tables, tmp_path / f"{name}.png", name).stat().st_size > 5000


def test_values_read_from_parquet(tmp_path: Path) -> None:
    """Columns that pandas hands out read-only."""
    table(np.arange(6.0), np.arange(6) % 2 == 0).to_parquet(tmp_path / "t.parquet")
    accuracy_curves({"x": pd.read_parquet(tmp_path / "t.parquet")}, tmp_path / "c.png", "read")
