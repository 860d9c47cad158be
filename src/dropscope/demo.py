"""Demo of the whole flow on scikit-learn's handwritten digits, in under a minute.

It owns its model, its data and its text. Every number it shows comes from the functions that a user calls.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dropscope.atomic import output_folder
from dropscope.injection import audit, find_sites
from dropscope.model import random_state_kept
from dropscope.placement import PlacementGrid
from dropscope.report import accuracy_curves
from dropscope.runs import Run, choice_notes, deferral_table, difference_cells, judge, sweep, uncertainty

SITES = ("conv1", "conv2", "fc1")
_TRAIN, _CHOOSE = 150, 300  # images; the rest are for the report
_REPORT_SEED = 1  # the choice is made under seed 0, so the report sees other masks


class DigitsNet(nn.Module):
    """Two convolutions and a hidden layer for 8×8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def read_digits() -> tuple[Tensor, Tensor]:
    """1,797 images [1, 8, 8] in [0, 1] in a fixed random order, and their labels."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.tensor(bunch.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(bunch.target[order], dtype=torch.long)


def train_network(images: Tensor, labels: Tensor, epochs: int = 60) -> nn.Module:
    """A network trained on few examples, so that it makes mistakes. Global random state is left as it was."""
    with random_state_kept():
        torch.manual_seed(0)
        net = DigitsNet()
        optimizer = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(epochs):
            for batch in torch.randperm(len(images)).split(32):
                optimizer.zero_grad()
                F.cross_entropy(net(images[batch]), labels[batch]).backward()
                optimizer.step()
    return net.eval()


def run_demo(out: str | Path = "dropscope-demo", passes: int = 100, say: Callable[[str], None] = print) -> Run:
    """Trains a network, finds its sites, audits, sweeps, and compares the best placement with one plain pass."""
    started = time.monotonic()
    folder = output_folder(out)
    rows = folder / f"run-{passes}-passes"
    images, labels = read_digits()
    net = train_network(images[:_TRAIN], labels[:_TRAIN])
    choose = images[_TRAIN : _TRAIN + _CHOOSE], labels[_TRAIN : _TRAIN + _CHOOSE]
    report = images[_TRAIN + _CHOOSE :], labels[_TRAIN + _CHOOSE :]
    say(f"1. A small network, trained on {_TRAIN} handwritten digits so that it makes mistakes.\n")
    say("2. Where can noise go?   find_sites(model, x)\n")
    for site in find_sites(net, images[:2]):
        if site.kind not in ("block", "norm", "activation"):
            say(f"   {site.name:<8} {site.kind:<8} auto = {site.positions[0]:<17} values per example {site.shape}")
    say("\n3. Does it take effect, there and nowhere else?   audit(model, placement, x)\n")
    checked = audit(net, "conv1=0.2,conv2=0.2,fc1=0.5", images[:64]).raise_if_failed()
    say("   " + str(checked).replace("\n", "\n   "))
    grid = PlacementGrid(SITES)
    work = f"{len(grid)} placements × {passes} passes × {_CHOOSE} images"
    say(f"\n4. Every placement of {', '.join(SITES)} at nine rates: {work}.\n")
    run = sweep(net, grid, choose, passes=passes, label="plain", out=rows, keep="top:10")
    say(_table(run))
    best = run.best("aurc", 1).iloc[0]
    say(f"\n5. The best of {len(run.rows)} rows, evaluated on {len(report[0])} other images with fresh masks.\n")
    tables = _uncertainty_tables(net, str(best.placement), str(best.measure), report, passes)
    picture = accuracy_curves(tables, folder / "curves.png", "What deferring the most uncertain digits would do")
    for name, table in tables.items():
        say(f"   {name:<42} {_deferral(table)}")
    verdict = judge((str(best.placement), str(best.measure), "plain_entropy"), *tables.values())
    say("\n" + textwrap.indent(textwrap.fill(f"Verdict: {verdict}", 110), "   "))
    say(f"\n   rows     {rows / 'rows'} (parquet)\n   picture  {picture}\n   {time.monotonic() - started:.0f} s in all")
    say("\n   Your own model:  dropscope new torch my_model.py")
    say("                    dropscope sweep my_model.py:model --data my_model.py:data --sites conv2,fc1 --out my-run")
    return run


def _table(run: Run) -> str:
    """The best rows beside the one-pass baselines."""
    names = f"   {'placement':<34} {'measure':<22} {'accuracy↑':>9} {'AURC↓':>7} {'vs plain':>8}"
    lines = [names + f" {'95 % interval':>18} {'isotonic↓':>9} {'cost↓':>6}"]
    best = pd.concat([run.best("aurc", 5), run.with_intervals(run.baseline)])
    lines += [
        f"   {row.placement:<34} {row.measure:<22} {row.accuracy:>9.3f} {row.aurc:>7.4f} {difference:>8} {ends:>18} "
        f"{row.isotonic_penalty:>9.4f} {row.cost:>5.0f}×"
        for row, difference, ends in zip(best.itertuples(index=False), *difference_cells(best), strict=True)
    ]
    lines += [f"   {note}" for note in choice_notes(best, "aurc", "lower")]
    level = run.levels["isotonic_penalty"]
    levels = f"of a random measure: {level['random']:.4f}, of a truly monotone one: {level['monotone']:.4f}"
    lines.append(f"   isotonic penalty {levels};")
    lines.append("   a small one proves nothing by itself. AURC: mean risk over all coverages. cost: in plain passes.")
    return "\n".join(lines)


def _uncertainty_tables(
    net: nn.Module, placement: str, measure: str, data: tuple[Tensor, Tensor], passes: int
) -> dict[str, pd.DataFrame]:
    """Uncertainty and correctness of each example: under the placement, and under one plain pass."""
    both = {f"{placement}, {measure}": measure, "one plain pass, entropy": "plain_entropy"}
    table = uncertainty(
        net, placement, data, passes, measures=list(both.values()), seed=_REPORT_SEED, label="plain",
        errors=False,
    )  # fmt: skip
    return {
        name: pd.DataFrame({"uncertainty": table[column], "correct": table.correct}) for name, column in both.items()
    }


def _deferral(table: pd.DataFrame) -> str:
    before, after = 100 * deferral_table({"": table}, (0.0, 0.1)).accuracy
    return f"deferring 10 % lifts accuracy from {before:.1f} % to {after:.1f} %"
