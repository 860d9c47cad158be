"""Augmentation: each change where its result is known, and how often each is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from scipy import ndimage

pytest.importorskip("cv2", reason="the extra medical is not installed")

from dropscope.studies.where_to_drop import augmentation as aug
from dropscope.studies.where_to_drop.preprocessing import Settings, steps
from support.drawn_mammograms import draw


def picture(seed: int = 0, side: int = 24) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((side, side), dtype=np.float32)


def test_augmentation_is_a_function_of_its_key_and_leaves_the_scale_alone() -> None:
    image = picture() * 7 - 3
    kept = image.copy()
    once, again, other = (aug.augment(image, np.random.default_rng([0, 5, i])) for i in (9, 9, 10))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)
    assert np.array_equal(image, kept)
    np.testing.assert_allclose(once, aug.augment(picture(), np.random.default_rng([0, 5, 9])) * 7 - 3, atol=1e-3)
    assert np.array_equal(aug.augment(np.ones((8, 8), np.float32), np.random.default_rng(0)), np.ones((8, 8)))


def test_each_change_where_its_result_is_known() -> None:
    image = picture()
    np.testing.assert_allclose(aug.rotate(image, 90), np.rot90(image), atol=1e-4)
    assert np.array_equal(aug.rotate(image, 0), image)
    assert np.array_equal(aug.flip(image), image[:, ::-1])
    assert np.array_equal(aug.crop(image, 1.0, 0.0, 0.5, 0.5), image)
    ramp = np.tile(np.linspace(0, 1, 100, dtype=np.float32), (100, 1))
    part = aug.crop(ramp, 0.81, 0.0, 1.0, 0.0)  # 90 × 90 pixels at the right edge
    assert part[0, 0] == pytest.approx(10 / 99, abs=2e-3)
    assert part[0, -1] == pytest.approx(1)
    np.testing.assert_allclose(aug.brighten(image, 1.1), np.minimum(image * 1.1, 1), atol=1e-6)
    np.testing.assert_allclose(aug.change_contrast(image, 0.9), image.mean() + 0.9 * (image - image.mean()), atol=1e-6)


def test_blur_and_sharpness_agree_with_scipy_and_pillow() -> None:
    image = picture(1)
    for kernel in (3, 5):
        weights = np.exp(-((np.arange(kernel) - kernel // 2) ** 2) / (2 * 1.3**2))
        weights /= weights.sum()
        other = ndimage.convolve(image.astype(np.float64), np.outer(weights, weights), mode="mirror")
        np.testing.assert_allclose(aug.blur(image, kernel, 1.3), other, atol=1e-5)
    grey = np.rint(image * 255).astype(np.uint8)
    enhanced = np.asarray(ImageEnhance.Sharpness(Image.fromarray(grey)).enhance(1.5)) / 255
    np.testing.assert_allclose(aug.sharpen(grey / np.float32(255), 1.5), enhanced, atol=2.5 / 255)  # Pillow rounds


def test_every_amount_is_drawn_at_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, list[float]] = {}
    for name in ("rotate", "crop", "flip", "blur", "sharpen"):
        change = getattr(aug, name)
        monkeypatch.setattr(
            aug, name, lambda *a, name=name, change=change: calls.setdefault(name, []).append(a[-1]) or change(*a)
        )
    areas = calls.setdefault("area", [])
    inner = aug.crop
    monkeypatch.setattr(aug, "crop", lambda *a: areas.append(a[1]) or inner(*a))
    image = picture(2, 16)
    for i in range(2000):
        aug.augment(image, np.random.default_rng([1, i]))
    assert len(calls["rotate"]) == len(calls["crop"]) == 2000
    for name, rate in (("flip", 0.5), ("blur", 0.3), ("sharpen", 0.3)):
        assert len(calls[name]) == pytest.approx(2000 * rate, abs=5 * np.sqrt(2000 * rate * (1 - rate)))
    assert max(map(abs, calls["rotate"])) == pytest.approx(15, abs=0.1)
    assert min(areas) == pytest.approx(0.9, abs=0.01)
    assert max(areas) <= 1


def test_augmentation_leaves_a_trace_that_alone_tells_augmented_images_apart() -> None:
    """Why augmenting one class only is a leak: every turned and stretched image is smoother than it was."""
    drawn = [steps(draw(seed).image, Settings(side=100)).result for seed in range(30)]
    varied = [aug.augment(image, np.random.default_rng([2, i])) for i, image in enumerate(drawn)]

    def roughness(image: NDArray[np.float32]) -> float:
        return float(np.abs(np.diff(image, 2, axis=0)).mean() / image.std())

    smoother = [roughness(b) < roughness(a) for a, b in zip(drawn, varied, strict=True)]
    assert np.mean(smoother) > 0.9
