"""Training batches: both classes equally often, and only the asked ones varied."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("cv2", reason="the extra medical is not installed")

from dropscope.studies.where_to_drop.batches import UndersampledBatches
from dropscope.studies.where_to_drop.mammograms import ABNORMAL, NORMAL

CPU = torch.device("cpu")


def test_batches_undersample_the_larger_class_and_vary_the_normals_alone() -> None:
    labels = np.array([ABNORMAL] * 20 + [NORMAL] * 7, dtype=np.int64)
    images = np.random.default_rng(0).random((27, 8, 8), dtype=np.float32)
    batches = UndersampledBatches(images, labels, 4, 3, CPU, frozenset({NORMAL}))
    assert len(batches) == 4  # 14 images
    seen = []
    for _ in range(2):
        epoch = list(batches)
        assert len(epoch) == 4
        inputs, classes = torch.cat([x for x, _ in epoch]), torch.cat([y for _, y in epoch])
        assert classes.bincount().tolist() == [7, 7]
        as_stored = [any(torch.equal(x[0], torch.from_numpy(image)) for image in images) for x in inputs]
        assert as_stored == (classes == ABNORMAL).tolist()
        seen.append(set(batches.order(len(seen)).tolist()) & set(range(20)))
    assert seen[0] != seen[1]  # another part of the larger class
    again = UndersampledBatches(images, labels, 4, 3, CPU, frozenset({NORMAL}))
    for x, y in ((next(iter(again)), next(iter(UndersampledBatches(images, labels, 4, 3, CPU, frozenset({NORMAL}))))),):
        assert torch.equal(x[0], y[0])
