"""What does `passes="auto"` cost, and does it keep its error rate? Deferral of the most uncertain tenth of CIFAR-10.

    python benchmarks/stopping.py --data DIR [--images N] [--runs R] [--measure NAME] --weights FILE ... [placement ...]

DIR holds cifar-10-batches-bin/test_batch.bin, FILEs weights of the network of the study `where-to-drop`. Flips are
decisions that differ from those of a long run, each with the threshold it finds. Error rates are those of simulated
runs, drawn from a long run block by block, on images whose very value is the threshold: the worst there can be.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import dropscope as ds
from dropscope.measures import TABLE
from dropscope.measures.statistics import BlockedStatistics, growing_block
from dropscope.runs.goals import Goal
from dropscope.studies.training import load_weights
from dropscope.studies.where_to_drop.networks import CifarNet
from gpu_grid import test_images

PLACEMENTS = ["fc1=.1", "fc1=.2", "conv3=.1", "conv2=.1,conv3=.1,fc1=.1", "fc1=.5", "conv3=.3,fc1=.5"]
SHARE, LONG, BLOCK = 0.1, 1008, 16
AT_ONCE = 50  # images that are simulated together


def decided(values: np.ndarray) -> np.ndarray:
    """The most uncertain tenth."""
    return np.argsort(np.argsort(-values, kind="stable")) < round(SHARE * len(values))


def sides(goal: Goal, drawn: Tensor, runs: int, draws: str) -> Tensor:
    """`[2, images]`: how often runs settle below and above the very value of passes `[passes, images, C]`."""
    whole = BlockedStatistics(goal.measure.needs, None, block=len(drawn))
    whole.update(drawn.unsqueeze(1), passes_dim=0)
    threshold = goal.scaled(goal.measure(whole)[0].double()).repeat(runs)
    blocks = drawn.unflatten(0, (-1, BLOCK if draws == "stratified" else 1))
    count = -(-goal.at_most // blocks.shape[1])
    chosen = torch.randint(len(blocks), (runs, count), generator=torch.Generator().manual_seed(0))
    again = blocks[chosen].movedim(0, 2).flatten(0, 1).flatten(1, 2)  # [passes, runs × images, C]
    kept, begin = BlockedStatistics(goal.measure.needs, None, block=1), 0
    still, found = torch.ones(again.shape[1], dtype=torch.bool), torch.zeros(2, drawn.shape[1])
    for until in goal.looks:
        kept.join(growing_block(until, draws))
        kept.update(again[begin:until].unsqueeze(1), passes_dim=0, check=False)
        begin, look = until, goal.look(kept)
        met = still & ((look.place - threshold).abs() > look.reach)
        for side, where in enumerate((look.place < threshold, look.place > threshold)):
            found[side] += (met & where).unflatten(0, (runs, -1)).sum(0)
        still &= ~met
    return found / runs


def simulated(goal: Goal, passes: Tensor, values: np.ndarray, runs: int, draws: str) -> Tensor:
    """`[2, images]`, of images from the median to the most uncertain fiftieth."""
    order = np.argsort(values)
    near = torch.from_numpy(order[len(order) // 2 : -(len(order) // 50)][::5].copy())
    return torch.cat([sides(goal, passes[:, some], runs, draws) for some in near.split(AT_ONCE)], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("placements", nargs="*", default=PLACEMENTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, nargs="+", required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=0, help="simulated runs of each image; 0: none")
    parser.add_argument("--measure", default="predictive_entropy")
    parser.add_argument("--draws", default="stratified")
    parser.add_argument("--at-most", type=int, default=48)
    parser.add_argument("--error-rate", type=float, default=0.1)
    options = parser.parse_args()
    images, _ = test_images(options.data, options.images)
    print("| placement | passes | flips | flips of settled | not settled | wrong below | wrong above |\n|" + "---|" * 7)
    for placement in options.placements:
        rows, wrong = [], []
        for file in options.weights:
            net = load_weights(CifarNet(), file)
            common = {"draws": options.draws, "progress": False, "measures": [options.measure]}
            table = ds.uncertainty(
                net, placement, images, "auto", defer=SHARE, at_most=options.at_most, error_rate=options.error_rate,
                errors=False, **common,
            )  # fmt: skip
            long = ds.uncertainty(net, placement, images, LONG, errors=False, **common)[options.measure].to_numpy()
            flips = decided(long) != table.deferred.to_numpy()
            rows.append((table.passes.mean(), flips.mean(), flips[table.settled].mean(), 1 - table.settled.mean()))
            if options.runs:
                del common["measures"]
                passes = ds.sample(net, placement, images, 4 * LONG, seed=1, **common)
                goal = Goal(TABLE[options.measure], None, 0.0, None, options.error_rate, options.at_most)
                wrong.append(simulated(goal, passes, long, options.runs, options.draws))
        mean, low, high = (function(rows, 0) for function in (np.mean, np.min, np.max))
        cells = [f"{mean[0]:.1f} ({low[0]:.1f} to {high[0]:.1f})", f"{mean[1]:.2%} ({low[1]:.2%} to {high[1]:.2%})"]
        cells += [f"{mean[2]:.2%}", f"{mean[3]:.1%}"]
        if wrong:
            every = torch.cat(wrong, 1)
            cells += [f"{rate.mean():.1%} (95th of 100: {rate.quantile(0.95):.1%})" for rate in every]
        print(f"| {placement} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
