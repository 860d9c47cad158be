"""Estimates of a study's memory and time, and how many units fit at once.

Memory is computed from the sizes; time is measured on a few steps of the study's own network on its own device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dropscope.device import free_bytes
from dropscope.model import random_state_kept
from dropscope.studies.segmentation_measures.dice_training import LOWER_PRECISION, dice_loss
from dropscope.studies.segmentation_measures.presets import Regime

_CONTEXT_BYTES = {"cuda": 3 << 30, "cpu": 1 << 29}  # what a process keeps beside its tensors
_MOST_WORKERS = 8


def worker_bytes(
    roi: Sequence[int], classes: int, regime: Regime, features: Sequence[int], device: torch.device
) -> int:
    """Memory of one running unit: activations of training, or histograms and activations of evaluation."""
    voxels = int(torch.Size(roi).numel())
    training = regime.batch * 176 * features[0]  # bytes per voxel: about 44 values kept per feature of the top level
    evaluating = max(1, (1 << 21) // voxels) * (250 * classes + 100 * features[0])
    return _CONTEXT_BYTES[device.type] + voxels * max(training, evaluating)


def fitting_workers(
    units: int, device: torch.device, roi: Sequence[int], classes: int, regime: Regime, features: Sequence[int]
) -> int:
    """How many units at once: on a GPU as many as memory holds, at most eight; on a CPU one per eight cores."""
    cores = os.cpu_count() or 1
    if device.type != "cuda":
        return max(1, min(units, cores // 8))
    each = worker_bytes(roi, classes, regime, features, device)
    return max(1, min(units, cores, _MOST_WORKERS, free_bytes(device) // each))


def measure_seconds(net: nn.Module, image: Tensor, regime: Regime, device: torch.device) -> tuple[float, float]:
    """(a training step, a forward of one image without gradients) on the device, each the faster of two."""
    dtype = LOWER_PRECISION.get(regime.precision)
    with random_state_kept():
        net = net.to(device)
        batch = image.to(device).expand(regime.batch, *image.shape[1:]).contiguous()
        label = torch.zeros(batch.shape[0], *batch.shape[2:], dtype=torch.uint8, device=device)
        valid = torch.ones_like(label, dtype=torch.bool)

        def step() -> None:
            net.train()
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                p = net(batch).float().softmax(1)
            dice_loss(p, label, valid).mean().backward()

        def forward() -> None:
            net.eval()
            with torch.no_grad():
                net(batch[:1])

        return _fastest(step, device), _fastest(forward, device)


def _fastest(action: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(3):  # the first chooses kernels
        started = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])
