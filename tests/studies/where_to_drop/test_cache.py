"""Preprocessed mammograms, cached by content and settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2", reason="the extra medical is not installed")

from dropscope.studies.where_to_drop import cache as kept
from dropscope.studies.where_to_drop.mammograms import find_mammograms
from dropscope.studies.where_to_drop.preprocessing import Settings, steps
from support.drawn_mammograms import write_table


def test_the_cache_is_used_for_the_same_content_and_settings_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = find_mammograms(write_table(tmp_path / "plain", patients=3)).images[:3]
    cache, settings = tmp_path / "cache", Settings(side=32)
    contents = kept.check_files(images, settings, cache, show=False)
    first = kept.preprocess(images, contents, settings, cache, show=False)
    assert len(list(cache.iterdir())) == 3

    counted = []
    monkeypatch.setattr(kept, "steps", lambda *a: counted.append(1) or steps(*a))
    again = kept.preprocess(images, kept.check_files(images, settings, cache, show=False), settings, cache, show=False)
    assert np.array_equal(first, again)
    assert not counted
    kept.preprocess(images, contents, Settings(side=32, margin=0.1), cache, show=False)
    assert len(counted) == 3
    damaged = min(cache.iterdir())
    damaged.write_bytes(damaged.read_bytes()[:50])
    assert np.array_equal(kept.preprocess(images, contents, settings, cache, show=False), first)
