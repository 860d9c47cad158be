"""The steps from a mammogram to the network's input: on arrays with known answers, on drawn and on real mammograms."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

pytest.importorskip("cv2", reason="the extra medical is not installed")

from dropscope.studies.where_to_drop import preprocessing as pre
from dropscope.studies.where_to_drop.mammograms import find_mammograms, read_image
from dropscope.studies.where_to_drop.preprocessing import Box, Settings, steps
from dropscope.studies.where_to_drop.preprocessing_figures import contact_sheet, steps_figure, write_preprocessing
from support.drawn_mammograms import draw, write_table
from support.errors import refused

PAPER = Settings(whole_breast=False)


def own_otsu(values: NDArray[np.uint8]) -> int:
    """The threshold of least variance within the two classes, by trying all of them."""
    spreads = {}
    for threshold in range(int(values.min()), int(values.max())):
        dark, bright = values[values <= threshold], values[values > threshold]
        spreads[threshold] = len(dark) * dark.var() + len(bright) * bright.var()
    return min(spreads, key=spreads.__getitem__)


def tissue(inside: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The breast as found by other means: brighter than a third of Otsu's threshold, opened widely, around the largest
    bright region. Every other pixel will do."""
    inside = inside[::2, ::2]
    threshold = own_otsu(inside.ravel()[::9])
    bright, _ = ndimage.label(inside > threshold)
    core = bright == 1 + int(np.argmax(np.bincount(bright.ravel())[1:]))
    regions, _ = ndimage.label(ndimage.binary_opening(inside > threshold / 3, iterations=4))
    return np.kron(regions == 1 + int(np.argmax(np.bincount(regions[core], minlength=2)[1:])), np.ones((2, 2), bool))


def share_inside(mass: NDArray[np.float64], box: Box) -> float:
    return float(box.cut(mass).sum() / mass.sum())


# --- each step --------------------------------------------------------------------------------------------------------


def test_grey_of_colours_depths_and_bits() -> None:
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 255
    assert pre.grey(red).tolist() == [[76, 76], [76, 76]]  # .299 · 255
    both = np.stack([np.full((2, 2), 9, np.uint8), np.full((2, 2), 255, np.uint8)], -1)
    assert pre.grey(both).tolist() == [[9, 9], [9, 9]]  # grey with transparency
    assert pre.grey(np.array([[0, 65535, 32768]], np.uint16)).tolist() == [[0, 255, 128]]
    assert pre.grey(np.array([[0, 1023]], np.int32)).tolist() == [[0, 255]]  # ten bits
    assert pre.grey(np.array([[False, True]])).tolist() == [[0, 255]]


def test_the_border_is_cut_on_every_side() -> None:
    image = np.arange(70 * 80, dtype=np.int64).reshape(70, 80).astype(np.uint8)
    assert np.array_equal(pre.without_border(image, 30), image[30:40, 30:50])
    with refused("small.png") as caught:
        pre.without_border(image[:60], 30, "small.png")
    assert caught.value.received == "80x60 pixels"


def test_otsu_agrees_with_trying_every_threshold() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(40, 12, 3000), rng.normal(170, 25, 1200)]).clip(0, 255).astype(np.uint8)
    found, own = pre.otsu_threshold(values), own_otsu(values)
    assert np.array_equal(values > found, values > own)
    image = values.reshape(60, 70)
    assert np.array_equal(pre.otsu_mask(image), image > own)
    dark = values[values <= own]
    assert np.array_equal(dark > pre.faint_threshold(image), dark > own_otsu(dark))
    assert pre.otsu_threshold(np.full(5, 20, np.uint8)) == 20  # nothing is brighter than the threshold


def test_erosions_and_dilations_agree_with_scipy() -> None:
    mask = np.random.default_rng(1).random((60, 60)) > 0.5
    mask[10:40, 10:45] = True
    square = np.ones((3, 3), bool)
    smaller = ndimage.binary_erosion(mask, square, iterations=3, border_value=1)
    expected = ndimage.binary_dilation(smaller, square, iterations=5)
    assert expected.any()
    assert np.array_equal(pre.opened_mask(mask, 3, 5, 3), expected)


def test_a_marker_is_a_component_with_more_than_nine_tenths_bright_pixels() -> None:
    image, mask = np.zeros((30, 60), np.uint8), np.zeros((30, 60), bool)
    mask[5:15, 5:15] = mask[5:15, 25:35] = mask[5:15, 45:55] = True
    image[mask] = 100
    image[5:15, 5:15] = 246  # all of it
    image[5:14, 25:35] = 255  # exactly nine tenths: not more
    image[5:15, 45:55] = 245  # bright, but not brighter than 245
    expected = mask.copy()
    expected[5:15, 5:15] = False
    assert np.array_equal(pre.without_markers(image, mask, 245, 0.9), expected)


def test_the_breast_is_the_faint_region_around_the_largest_bright_one() -> None:
    bright, faint = np.zeros((40, 40), bool), np.zeros((40, 40), bool)
    bright[5:20, 5:20] = bright[30:36, 30:36] = True  # the second one is a marker
    faint[3:24, 3:24] = faint[28:38, 28:38] = True
    expected = np.zeros((40, 40), bool)
    expected[3:24, 3:24] = True
    assert np.array_equal(pre.breast(bright, faint), expected)
    assert not pre.breast(np.zeros((4, 4), bool), np.ones((4, 4), bool)).any()


def test_projections_give_the_box_and_the_margin_widens_it() -> None:
    mask = np.zeros((100, 200), bool)
    mask[20:70, 50:150] = True
    mask[90, 0:3] = True  # three of a hundred columns: not more than 3 %
    mask[95:97, 199] = True  # two of fifty rows: more than 3 %
    assert pre.projected_box(mask, 0.03) == Box(20, 70, 50, 200)
    assert pre.widened(Box(20, 70, 50, 150), 0.08, (100, 200)) == Box(16, 74, 42, 158)
    assert pre.widened(Box(0, 100, 0, 200), 0.08, (100, 200)) == Box(0, 100, 0, 200)
    with refused("dark.png"):
        pre.projected_box(np.zeros((5, 5), bool), 0.03, "dark.png")


def test_clahe_raises_local_contrast_and_the_limit_holds_it_back() -> None:
    rng = np.random.default_rng(2)
    flat = rng.normal(100, 4, (128, 128)).clip(0, 255).astype(np.uint8)
    limited, unlimited = pre.equalised(flat, 2.0, 8), pre.equalised(flat, 1000.0, 8)
    assert flat.std() < limited.std() < unlimited.std()
    assert pre.equalised(flat, 2.0, 8).dtype == np.uint8


def test_the_z_score_and_the_size() -> None:
    image = np.random.default_rng(3).integers(0, 256, (80, 120), dtype=np.uint8)
    standard = pre.standardised(image)
    assert standard.mean() == pytest.approx(0, abs=1e-6)
    assert standard.std() == pytest.approx(1, abs=1e-6)
    assert not pre.standardised(np.full((4, 4), 9, np.uint8)).any()
    means = standard.reshape(20, 4, 30, 4).mean((1, 3))
    halved = pre.resized(standard[:, :80], 20)  # 80 × 80 → 20 × 20: each pixel is the mean of its 4 × 4 block
    np.testing.assert_allclose(halved, means[:, :20], atol=1e-6)


# --- the whole pipeline -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("marker", [255, 210])
def test_a_drawn_breast_is_inside_and_its_marker_is_not_seen(seed: int, marker: int) -> None:
    drawn = draw(seed, abnormal=seed % 2 == 0, marker=marker)
    found = steps(drawn.image)
    inside = (slice(30, -30), slice(30, -30))
    assert share_inside(drawn.breast[inside].astype(float), found.widened) > 0.995
    seen = drawn.marker[inside] & ~found.dropped
    assert found.widened.cut(seen).sum() == 0
    assert found.result.shape == (200, 200)
    assert np.isfinite(found.result).all()


@pytest.mark.parametrize(("marker", "scale", "dropped"), [(255, 4, True), (255, 1, False), (210, 4, False)])
def test_the_papers_rule_alone_knows_large_white_markers_only(marker: int, scale: int, dropped: bool) -> None:
    """Two dilations more than erosions give every component a dark rim: a small white marker has less than nine tenths
    of bright pixels then (24 × 36 of 28 × 40 here)."""
    drawn = draw(0, scale=scale, marker=marker)
    found = steps(drawn.image, PAPER)
    assert (found.dropped & drawn.marker[30:-30, 30:-30]).any() == dropped
    assert np.array_equal(found.kept, found.unmarked)


def test_settings_reach_their_steps() -> None:
    drawn = draw(1)
    assert steps(drawn.image, Settings(side=64)).result.shape == (64, 64)
    narrow, wide = (steps(drawn.image, Settings(margin=margin)).widened for margin in (0.0, 0.2))
    assert narrow == steps(drawn.image).box
    assert wide.bottom - wide.top > narrow.bottom - narrow.top
    with refused("side"):
        Settings(side=4).check()


def test_a_blank_image_is_refused_by_name() -> None:
    for value in (0, 130):
        with refused("blank.png"):
            steps(np.full((200, 200), value, np.uint8), None, "blank.png")


def test_figures_show_every_step_and_many_images() -> None:
    found = steps(draw(2).image)
    figure = steps_figure(found, title="drawn")
    assert len(figure.axes) == 10
    assert all(axes.get_title() for axes in figure.axes)
    figure.draw_without_rendering()
    sheet = contact_sheet([("a", found), ("b", found), ("c", found)], columns=2)
    assert [axes.get_title() for axes in sheet.axes if axes.get_title()] == ["a", "b", "c"]


def test_the_figures_of_a_data_set_are_written(tmp_path: Path) -> None:
    images = find_mammograms(write_table(tmp_path / "data", patients=2)).images
    written = write_preprocessing(tmp_path, images, many=3)
    names = [f"{name}.{end}" for name in ("figure-6-preprocessing", "preprocessing-sheet") for end in ("png", "pdf")]
    assert [path.name for path in written] == names
    assert all(path.stat().st_size > 10_000 for path in written)


@pytest.mark.skipif("DROPSCOPE_DATA" not in os.environ, reason="DROPSCOPE_DATA is not set: no real mammograms")
@pytest.mark.slow
def test_all_real_mammograms_keep_their_breast() -> None:
    """Of every real mammogram at least 99.9 % of the tissue, found by other means, lies in the box; and boxes are on
    average smaller than those of the paper's rule, which reach out to markers."""
    images = find_mammograms(Path(os.environ["DROPSCOPE_DATA"]) / "mias").images
    assert len(images) == 82
    shares, areas, paper_areas = {}, [], []
    for one in images:
        found = steps(read_image(one.path.read_bytes(), one.path), None, str(one.path))
        shares[one.path.stem] = share_inside(found.inside * tissue(found.inside).astype(float), found.widened)
        areas.append(found.widened.cut(found.inside).size / found.inside.size)
        box = pre.widened(pre.projected_box(found.unmarked, PAPER.projection), PAPER.margin, found.inside.shape[:2])
        paper_areas.append(box.cut(found.inside).size / found.inside.size)
    assert min(shares.values()) >= 0.999, sorted(shares.items(), key=lambda item: item[1])[:5]
    assert np.mean(areas) < np.mean(paper_areas)
