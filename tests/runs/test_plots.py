"""Pictures of a run: Axes with a line for one plain pass, sites in their natural order, labels inside the figure."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot

import dropscope as ds
from dropscope import scores
from support import zoo
from support.errors import refused
from support.noisy_labels import net

mpl.use("Agg")
RATES = (0.2, 0.5)


def swept(placements: object, **more: object) -> ds.Run:
    data = zoo.vectors(60), torch.arange(60) % 3
    return ds.sweep(net(), placements, data, passes=4, progress=False, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run() -> ds.Run:
    return swept(ds.PlacementGrid(["0", "2"], RATES), keep="top:10")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    pyplot.close("all")


def inside(axes: pyplot.Axes) -> None:
    """Nothing that is drawn reaches beyond the figure."""
    figure = axes.figure
    figure.canvas.draw()
    whole = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert whole.x0 >= -1
    assert whole.y0 >= -1
    assert whole.x1 <= figure.bbox.x1 + 1
    assert whole.y1 <= figure.bbox.y1 + 1


@pytest.mark.parametrize("kind", ["risk_coverage", "accuracy_curves"])
def test_curves_have_a_line_for_one_plain_pass(run: ds.Run, kind: str) -> None:
    axes = getattr(run.plot, kind)()
    labels = [text.get_text().replace("\n", "") for text in axes.get_legend().get_texts()]
    assert sum(label.startswith("one plain pass") for label in labels) == 1
    best = run.best("aurc", 3)
    for placement, measure in zip(best.placement, best.measure, strict=True):
        assert any(label.startswith(f"{placement}, {measure}") for label in labels)
    inside(axes)


def test_a_risk_coverage_curve_is_that_of_the_examples(run: ds.Run) -> None:
    axes = run.plot.risk_coverage(count=1)
    plain = run.examples[run.examples.measure == "plain_entropy"]
    coverage, risk = scores.risk_coverage_curve(
        torch.tensor(plain.uncertainty.to_numpy()), torch.tensor(plain.correct.to_numpy())
    )
    (line,) = [line for line in axes.lines if str(line.get_label()).startswith("one plain pass")]
    np.testing.assert_allclose(line.get_xdata(), 100 * coverage)
    np.testing.assert_allclose(line.get_ydata(), 100 * risk)


def test_given_axes_are_drawn_in_and_given_back(run: ds.Run) -> None:
    figure, all_axes = pyplot.subplots(1, 3)
    drawn = [run.plot.risk_coverage(ax=all_axes[0]), run.plot.accuracy_curves(ax=all_axes[1]),
             run.plot.sites(ax=all_axes[2])]  # fmt: skip
    assert drawn == list(all_axes)
    assert pyplot.get_fignums() == [figure.number]


def test_sites_show_the_mean_difference_to_one_plain_pass(run: ds.Run) -> None:
    axes = run.plot.sites(measure="bald")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2"]
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"{rate:g}" for rate in RATES]
    values = np.asarray(axes.images[0].get_array())
    bald = run.rows[run.rows.measure == "bald"]
    for column, rate in enumerate(RATES):
        having = bald[bald.placement.str.contains(f"(?:^|,)0={rate}", regex=True)]
        assert values[0, column] == pytest.approx(having.aurc_minus_single_pass.mean())
    inside(axes)


def test_long_names_stay_inside_in_their_natural_order() -> None:
    names = [f"model.encoder.layers.{n}.self_attention.output.dense_projection" for n in (11, 3, 0)]
    run = swept(["0=.2", "0=.5", "2=.2"], engine="loop", keep="top:3")
    texts = dict(zip(["0=0.2", "0=0.5", "2=0.2"], [f"{name}=0.2" for name in names], strict=True))
    for table in (run.rows, run.examples):
        table["placement"] = table.placement.replace(texts)
    axes = run.plot.sites()
    inside(axes)
    assert [label.get_text().replace("\n", "") for label in axes.get_yticklabels()] == names[::-1]
    inside(run.plot.risk_coverage())


def test_rows_of_ones_own_choice(run: ds.Run) -> None:
    chosen = run.best("error_auroc", 1)
    assert len(run.plot.risk_coverage(chosen).lines) == 2
    with refused("rows"):
        run.plot.risk_coverage(run.rows.tail(20))


def test_equal_placements_are_drawn_from_the_one_that_was_computed() -> None:
    run = swept(["0@before_activation=.5", "0@output=.5"], keep="all")
    equal = run.rows[run.rows.equivalent_to.notna()].head(1)
    assert len(run.plot.accuracy_curves(equal).lines) == 3


def test_what_cannot_be_drawn_is_refused(run: ds.Run) -> None:
    with refused("score"):
        run.plot.sites("accuraci")
    with refused("measure"):
        run.plot.sites(measure="bold")
    plain = swept(["none"], keep="none", engine="loop")
    with refused("placements"):
        plain.plot.sites()
    with refused("keep"):
        plain.plot.risk_coverage()
