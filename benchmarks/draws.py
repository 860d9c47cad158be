"""How much nearer to their limit are stratified passes? Errors of what is computed from 100 passes, over repeated runs.

    python benchmarks/draws.py --data DIR --weights FILE [--images N] [--passes T] [--repeats R] [placement ...]

DIR holds cifar-10-batches-bin/test_batch.bin, FILE weights of the network of the study `where-to-drop`. The limit is a
long run under another seed. Ratios are mean squared errors of independent passes over those of stratified ones, with an
interval over images; bias is the mean error over repeats in units of its standard error, about 1 where there is none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import dropscope as ds
from gpu_grid import CifarNet, test_images

PLACEMENTS = ["fc1=.5", "fc1=.2", "conv3=.3,fc1=.5", "conv2=.3,conv3=.3,fc1=.3"]
NAMES = ("mean probability", "predictive entropy", "expected entropy", "bald")
BLOCK = 16


def estimates(p: Tensor) -> list[Tensor]:
    """Of passes `[..., passes, images, classes]`: mean, predictive entropy, expected entropy, BALD, classes last."""
    p = p.double()
    mean = p.mean(-3)
    predictive = -torch.xlogy(mean, mean).sum(-1, keepdim=True)
    expected = -torch.xlogy(p, p).sum(-1, keepdim=True).mean(-3)
    return [mean, predictive, expected, predictive - expected]


def errors(drawn: Tensor, limit: list[Tensor], passes: int, repeats: int) -> list[Tensor]:
    """`[repeats, images, …]` for each name: whole blocks are skipped between repeats, which are independent so."""
    apart = -(-passes // BLOCK) * BLOCK
    windows = drawn.unflatten(0, (repeats, apart))[:, :passes]
    return [found - exact for found, exact in zip(estimates(windows), limit, strict=True)]


def ratio(independent: Tensor, stratified: Tensor) -> tuple[float, float, float]:
    """Of mean squared errors, with a 95 % bootstrap interval over images."""
    squares = [error.square().mean((0, 2)).numpy() for error in (independent, stratified)]
    chosen = np.random.default_rng(0).integers(0, len(squares[0]), (2000, len(squares[0])))
    found = squares[0][chosen].mean(1) / squares[1][chosen].mean(1)
    return squares[0].mean() / squares[1].mean(), *np.quantile(found, (0.025, 0.975))


def bias(error: Tensor, of_limit: Tensor) -> float:
    """The mean error over repeats in units of its standard error, both as root mean squares over images.

    `of_limit` is the variance of the limit itself.
    """
    expected = error.var(0) / len(error) + of_limit
    return float((error.mean(0).square().mean() / expected.mean()).sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("placements", nargs="*", default=PLACEMENTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--limit", type=int, default=8000, help="passes of the long run")
    parser.add_argument("--device")
    options = parser.parse_args()
    net = CifarNet()
    net.load_state_dict(torch.load(options.weights, weights_only=True))
    images, labels = test_images(options.data, 1000)
    accuracy = (net(images).argmax(1) == labels).float().mean()
    images = images[: options.images]
    print(f"{options.images} images, T = {options.passes}, {options.repeats} repeats; accuracy {accuracy:.3f}\n")
    print(f"| placement | {' | '.join(NAMES)} | bias, independent | bias, stratified |\n|{'---|' * (len(NAMES) + 3)}")
    length = -(-options.passes // BLOCK) * BLOCK * options.repeats
    common = {"device": options.device, "progress": False}
    for placement in options.placements:
        limit = ds.sample(net, placement, images, options.limit, seed=1, draws="stratified", **common)
        exact = estimates(limit.cpu())
        found = {}
        for draws in ("independent", "stratified"):
            drawn = ds.sample(net, placement, images, length, draws=draws, **common).cpu()
            found[draws] = errors(drawn, exact, options.passes, options.repeats)
        ratios = [ratio(*pair) for pair in zip(*found.values(), strict=True)]
        shown = " | ".join(f"{value:.2f}× ({low:.2f} to {high:.2f})" for value, low, high in ratios)
        of_limit = [error.var(0) * options.passes / options.limit for error in found["stratified"]]
        biases = [" ".join(f"{bias(*pair):.2f}" for pair in zip(e, of_limit, strict=True)) for e in found.values()]
        print(f"| {placement} | {shown} | {' | '.join(biases)} |", flush=True)


if __name__ == "__main__":
    main()
