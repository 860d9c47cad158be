"""How long a study will take and how much memory, from a few steps of its own network on its own device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dropscope.model import random_state_kept
from dropscope.studies.segmentation_measures.dice_training import Regime, dice_loss

CONTEXT_BYTES = {"cuda": 3 << 30, "cpu": 1 << 29}  # what a process keeps beside its tensors


def worker_bytes(
    roi: Sequence[int], classes: int, regime: Regime, features: Sequence[int], device: torch.device
) -> int:
    """Memory of one unit at work: activations of training, or histograms and activations of evaluation."""
    voxels = int(torch.Size(roi).numel())
    training = regime.batch * 176 * features[0]  # bytes per voxel: about 44 values kept per feature of the top level
    evaluating = max(1, (1 << 21) // voxels) * (250 * classes + 100 * features[0])
    return CONTEXT_BYTES[device.type] + voxels * max(training, evaluating)


def seconds(net: nn.Module, image: Tensor, classes: int, regime: Regime, device: torch.device) -> tuple[float, float]:
    """(a training step, a forward of one image without gradients) on the device, each the faster of two."""
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(regime.precision)
    with random_state_kept():
        net = net.to(device)
        some = image.to(device).expand(regime.batch, *image.shape[1:]).contiguous()
        label = torch.zeros(some.shape[0], *some.shape[2:], dtype=torch.uint8, device=device)
        valid = torch.ones_like(label, dtype=torch.bool)

        def step() -> None:
            net.train()
            with torch.autocast(device.type, lower, enabled=lower is not None):
                p = net(some).float().softmax(1)
            dice_loss(p, label, valid).mean().backward()

        def forward() -> None:
            net.eval()
            with torch.no_grad():
                net(some[:1])

        return _fastest(step, device), _fastest(forward, device)


def _fastest(action: Callable[[], None], device: torch.device) -> float:
    taken = []
    for _ in range(3):  # the first chooses its kernels
        started = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return min(taken[1:])
