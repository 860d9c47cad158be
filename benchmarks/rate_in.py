"""Dropout by information (rate_in) against fixed rates: AURC, paired over images, and what finding the rates costs.

    python benchmarks/rate_in.py --data DIR --weights FILE [FILE ...] [--images N] [--sites fc1 ...] [--shares S ...]

DIR holds cifar-10-batches-bin/test_batch.bin, each FILE weights of the network of the study `where-to-drop`. AURC of
predictive entropy and BALD, averaged over networks; differences to the fixed rate that equals the share, with 95 %
intervals over images. Then the cost of masks at a rate found by one draw and a sort, against masks at a known rate; and
how many draws the search of Rate-In's authors takes (up to 30 steps of size .1 until the loss is right to .01).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

import dropscope as ds
from dropscope import scores
from dropscope.noise import Layout, disturb, site_key, streams
from gpu_grid import CifarNet, test_images

SHARES = (0.1, 0.3, 0.5)
MEASURES = ["predictive_entropy", "bald"]


def searched(value: Tensor, share: float, generator: torch.Generator) -> int:
    """How many draws it takes to find the rate of one example."""
    rate, total = 0.5, float(value.square().sum())
    for draws in range(1, 31):
        dropped = torch.rand(value.shape, generator=generator) < rate
        error = float(value[dropped].square().sum()) / max(total, 1e-12) - share
        rate = min(max(rate - 0.1 / (1 + abs(error)) * error, 0.0), 1.0)
        if abs(error) < 0.01:
            return draws
    return 30


def costs(value: Tensor, share: float) -> None:
    """Microseconds per example and pass, and draws of a search."""
    keys, layout = streams(0, site_key("fc1", 0), torch.tensor(0), torch.arange(len(value))), Layout()
    times = {}
    for noise in ("bernoulli", "rate_in"):
        disturb(value, keys, share, noise, "element", layout)
        started = time.process_time()
        for _ in range(20):
            disturb(value, keys, share, noise, "element", layout)
        times[noise] = (time.process_time() - started) / 20 / len(value) * 1e6
    generator = torch.Generator().manual_seed(0)
    draws = np.mean([searched(one, share, generator) for one in value[:200]])
    known, one = times["bernoulli"], times["rate_in"]
    print(
        f"\nfc1, share {share}: {known:.1f} µs at a known rate, {one:.1f} µs by one draw; {draws:.1f} draws by search"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, nargs="+", required=True)
    parser.add_argument("--sites", nargs="+", default=["fc1", "conv3,fc1"])
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--passes", type=int, default=32)
    options = parser.parse_args()
    images, labels = test_images(options.data, options.images)
    common = {"measures": MEASURES, "errors": False, "draws": "stratified", "progress": False}
    nets = []
    for weights in options.weights:
        net = CifarNet().eval()
        net.load_state_dict(load_file(weights))
        nets.append(net)
    chosen = np.random.default_rng(0).integers(0, len(images), (1000, len(images)))
    print(f"{len(nets)} networks, {len(images)} images, {options.passes} stratified passes\n")
    print("| placement | accuracy | AURC, entropy | AURC, BALD | against the fixed rate: entropy | BALD |")
    print("|---|---|---|---|---|---|")
    for sites in options.sites:
        for share in options.shares:
            tables: dict[str, list[np.ndarray]] = {}
            for rate in (f"{share}", f"rate_in({share})"):
                text = ",".join(f"{site}={rate}" for site in sites.split(","))
                found = [ds.uncertainty(net, text, (images, labels), options.passes, **common) for net in nets]
                correct = [table.correct.to_numpy() for table in found]
                drawn = {m: replicates([table[m].to_numpy() for table in found], correct, chosen) for m in MEASURES}
                tables[text] = [drawn[m] for m in MEASURES]
                own = f"| {text} | {np.mean(correct):.3f} | {drawn[MEASURES[0]][0]:.4f} | {drawn[MEASURES[1]][0]:.4f} |"
                fixed, adaptive = next(iter(tables.values())), tables[text]
                shown = [f"{interval(a - f)}" if a is not f else "" for a, f in zip(adaptive, fixed, strict=True)]
                print(own, " | ".join(shown), "|", flush=True)
    features: list[Tensor] = []
    nets[0].fc2.register_forward_pre_hook(lambda _, args: features.append(args[0].detach()))
    nets[0](images)
    for share in options.shares:
        costs(features[0], share)


def replicates(uncertainties: list[np.ndarray], correct: list[np.ndarray], chosen: np.ndarray) -> np.ndarray:
    """AURC averaged over networks: of all images, then of each resample."""
    rows = np.concatenate([np.arange(chosen.shape[1])[None], chosen])
    found = [
        scores.aurc(torch.tensor(u[rows]), torch.tensor(c[rows])).numpy()
        for u, c in zip(uncertainties, correct, strict=True)
    ]
    return np.mean(found, 0)


def interval(difference: np.ndarray) -> str:
    low, high = np.quantile(difference[1:], (0.025, 0.975))
    return f"{difference[0]:+.4f} ({low:+.4f} to {high:+.4f})"


if __name__ == "__main__":
    main()
