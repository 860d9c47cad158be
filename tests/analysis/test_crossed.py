"""The two-way cluster t: against the formula written out, at its edges, and in simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dropscope.analysis import crossed_difference, crossed_mean
from support.crossed_studies import COMPONENTS, MIXED, Components, draw_cells, labels

STUDIES = 400
SIDES = {True: 1, False: -1}


def longhand(x: list[float], rows: list[str], columns: list[str]) -> tuple[float, float]:
    """(error, p) by loops over cells, rows and columns."""
    mean = sum(x) / len(x)

    def variance(groups: list[object]) -> float:
        names = sorted(set(map(str, groups)))
        total = 0.0
        for name in names:
            s = 0.0
            for value, group in zip(x, groups, strict=True):
                if str(group) == name:
                    s += value - mean
            total += s * s
        return total / len(x) ** 2 * len(names) / (len(names) - 1)

    of_rows, of_columns = variance(list(rows)), variance(list(columns))
    both = of_rows + of_columns - variance(list(zip(rows, columns, strict=True)))
    error = math.sqrt(max(both, of_rows, of_columns))
    freedom = min(len(set(rows)), len(set(columns))) - 1
    return error, 2 * float(stats.t.sf(abs(mean) / error, freedom))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_formula_with_missing_cells_and_unequal_groups(seed: int) -> None:
    draw = np.random.default_rng(seed)
    cells = draw_cells(draw, (6, 45), MIXED, 0.3)
    row, column = labels(cells.shape)
    patient = np.array([f"p{c // 2 if c < 20 else c}" for c in column])  # some patients have two images
    x = cells.ravel()
    x[draw.random(len(x)) < 0.2] = np.nan
    known = np.isfinite(x)
    error, p = longhand(x[known].tolist(), [f"n{r}" for r in row[known]], patient[known].tolist())
    e = crossed_mean(x, row, patient)
    assert e.value == pytest.approx(np.nanmean(x))
    assert e.p == pytest.approx(p)
    assert e.high - e.value == pytest.approx(stats.t.ppf(0.975, 5) * error)
    assert e.value - e.low == pytest.approx(e.high - e.value)
    assert e.n == 6
    assert "6 networks × 35 images" in e.method


def test_weights_let_every_network_count_alike() -> None:
    x = np.array([1.0] * 40 + [4.0] * 10 + [1.0] * 40)
    row = np.repeat([0, 1, 2], [40, 10, 40])
    column = np.concatenate([range(40), range(10), range(40)])
    sizes = np.bincount(row)[row]
    assert crossed_mean(x, row, column, weights=1 / sizes).value == pytest.approx(2.0)
    assert crossed_mean(x, row, column).value == pytest.approx(120 / 90)


def test_order_and_names_do_not_matter() -> None:
    cells = draw_cells(np.random.default_rng(0), (5, 40), MIXED)
    row, column = labels(cells.shape)
    order = np.random.default_rng(1).permutation(cells.size)
    one = crossed_mean(cells.ravel(), row, column)
    other = crossed_mean(cells.ravel()[order], [f"net {r}" for r in row[order]], column[order].tolist())
    assert other.low == pytest.approx(one.low)
    assert other.p == pytest.approx(one.p)


def test_identical_networks_are_no_certainty() -> None:
    images = np.random.default_rng(0).normal(0.1, 1.0, 50)
    row, column = labels((8, 50))
    e = crossed_mean(np.tile(images, 8), row, column)
    assert e.high - e.value == pytest.approx(stats.t.ppf(0.975, 7) * stats.sem(images))
    assert e.p > 0.1


def test_where_nothing_varies_there_is_no_interval() -> None:
    row, column = labels((8, 50))
    e = crossed_mean(np.full(400, 0.1), row, column)
    assert e.value == pytest.approx(0.1)
    assert math.isnan(e.p)
    assert math.isnan(e.low)
    assert "nothing varies" in e.method
    none = crossed_mean(np.zeros(400), row, column)
    assert (none.low, none.high, none.p) == (0, 0, 1)


@pytest.mark.parametrize("shape", [(2, 100), (29, 29), (1, 1), (100, 2), (4, 4)])
def test_too_few_replicates_have_no_interval_and_a_reason(shape: tuple[int, int]) -> None:
    cells = draw_cells(np.random.default_rng(0), shape, MIXED, 5.0)
    e = crossed_mean(cells.ravel(), *labels(shape))
    assert e.value == pytest.approx(cells.mean())
    assert math.isnan(e.low)
    assert math.isnan(e.p)
    assert "needs 3 networks and 30 images" in e.method


def test_no_cells_at_all() -> None:
    assert math.isnan(crossed_mean([], [], []).value)
    assert math.isnan(crossed_mean([math.nan], ["a"], ["b"]).value)
    assert math.isnan(crossed_difference([1.0], ["a"], ["b"], ["x"], {"x": 1, "y": -1}).value)
    assert math.isnan(crossed_difference([], [], [], [], {"x": 1, "y": -1}).value)


def test_the_difference_of_two_sides_needs_three_rows_each() -> None:
    cells = draw_cells(np.random.default_rng(0), (10, 60), MIXED)
    cells[:2] += 3
    row, column = labels(cells.shape)
    few = crossed_difference(cells.ravel(), row, column, row < 2, SIDES)
    assert few.value == pytest.approx(cells[:2].mean() - cells[2:].mean())
    assert math.isnan(few.low)
    enough = crossed_difference(cells.ravel(), row, column, row < 3, SIDES)
    assert enough.n == 3
    assert "7 and 3 models × 60 contexts" in enough.method


def test_what_images_share_cancels_in_a_difference_of_sides() -> None:
    draw = np.random.default_rng(0)
    cells = draw_cells(draw, (8, 60), Components(0.0, 0.0, 0.1))
    row, column = labels(cells.shape)
    plain = crossed_difference(cells.ravel(), row, column, row < 4, SIDES)
    shared = crossed_difference((cells + 10 * draw.normal(size=(1, 60))).ravel(), row, column, row < 4, SIDES)
    assert shared.value == pytest.approx(plain.value)
    assert shared.high - shared.low == pytest.approx(plain.high - plain.low, rel=0.3)


# --- simulated studies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPONENTS)
@pytest.mark.parametrize("shape", [(24, 40), (5, 200), (144, 40)])
def test_a_null_is_rarely_refuted(name: str, shape: tuple[int, int]) -> None:
    draw, places = np.random.default_rng(17), labels(shape)
    found = [crossed_mean(draw_cells(draw, shape, COMPONENTS[name]).ravel(), *places).p for _ in range(STUDIES)]
    assert np.mean(np.array(found) < 0.05) <= 0.07


@pytest.mark.parametrize(("shape", "mean"), [((24, 40), 0.6), ((5, 200), 1.0), ((144, 40), 0.5)])
def test_an_effect_is_usually_found(shape: tuple[int, int], mean: float) -> None:
    """Effects in units of what images share; five networks need the largest."""
    draw, places = np.random.default_rng(17), labels(shape)
    found = [crossed_mean(draw_cells(draw, shape, MIXED, mean).ravel(), *places) for _ in range(100)]
    assert np.mean([e.p < 0.05 and e.low > 0 for e in found]) >= 0.8


@pytest.mark.parametrize("sides", [(5, 14), (3, 16), (9, 10)])
def test_two_sides_that_do_not_differ_are_rarely_told_apart(sides: tuple[int, int]) -> None:
    shape = (sum(sides), 100)
    draw, places = np.random.default_rng(17), labels(shape)
    first = places[0] < sides[0]
    studies = (draw_cells(draw, shape, MIXED).ravel() for _ in range(STUDIES))
    assert np.mean([crossed_difference(x, *places, first, SIDES).p < 0.05 for x in studies]) <= 0.07


@pytest.mark.parametrize("models", [5, 19])
def test_two_halves_of_the_columns_that_do_not_differ_are_rarely_told_apart(models: int) -> None:
    """Two tasks, each with contexts of its own, and models that differ in the gap between them."""
    shape = (models, 80)
    draw, places = np.random.default_rng(17), labels(shape)
    task = places[1] < 40
    found = []
    for _ in range(STUDIES):
        gap = 0.5 * draw.normal(size=(models, 1)) * np.where(task, 1, -1).reshape(shape)
        found.append(crossed_difference((draw_cells(draw, shape, MIXED) + gap).ravel(), *places, task, SIDES).p)
    assert np.mean(np.array(found) < 0.05) <= 0.07
