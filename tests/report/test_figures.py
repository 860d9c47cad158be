"""Figures: a file from tables, whatever the ranking."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from dropscope.report import figures
from dropscope.report.figures import accuracy_curves, evidence, set_log_scale
from dropscope.report.writing import new_figure, write_figure
from support.errors import refused


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


def test_no_ranking_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    with refused("examples"):
        accuracy_curves({}, tmp_path / "none.png", "nothing")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("outcomes", "lines"), [(([1, 0], [0, 1]), 1), (([1, 0], [1, 1]), 2)])
def test_each_distinct_accuracy_has_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcomes: tuple[list[int], ...], lines: int
) -> None:
    made = []
    monkeypatch.setattr(figures, "new_figure", lambda *size: made.append(new_figure(*size)) or made[-1])
    tables = {str(i): table(np.arange(2.0), np.array(right, dtype=bool)) for i, right in enumerate(outcomes)}
    accuracy_curves(tables, tmp_path / "c.png", "lines")
    drawn = made[0].axes[0].get_lines()
    assert len(drawn) == len(outcomes) + lines
    assert len(made[0].axes[0].get_legend().get_texts()) == len(outcomes) + 1


@pytest.mark.parametrize(("low", "high"), [(0.012, 0.018), (0.012, 0.06), (0.03, 0.3), (2e-7, 0.5), (0.011, 0.0112)])
def test_a_logarithmic_axis_shows_numbers_however_little_it_spans(low: float, high: float) -> None:
    axes = new_figure().add_subplot()
    set_log_scale(axes, low, high)
    axes.figure.canvas.draw()
    shown = [
        label.get_text()
        for label, place in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
        if low <= place <= high and label.get_text()
    ]
    assert len(shown) >= 2
    assert len(set(shown)) == len(shown)


def test_the_evidence_of_a_figure_is_below_everything_else(tmp_path: Path) -> None:
    figure = new_figure(4, 3)
    figure.add_subplot().plot([0, 1], label="a line")
    figure.legend(loc="outside lower center")
    corner = evidence(images=9, passes=1, networks=2, models=None)
    assert corner == "n = 9 images, 1 pass, 2 networks"
    write_figure(tmp_path, "x", figure, corner)
    (text,) = (text for text in figure.texts if text.get_text() == corner)
    renderer = figure.canvas.get_renderer()
    top = text.get_window_extent(renderer).y1
    assert top <= figure.legends[0].get_window_extent(renderer).y0
    assert top <= figure.axes[0].get_tightbbox(renderer).y0
