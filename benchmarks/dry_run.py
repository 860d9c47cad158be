"""What a dry run promises against what the sweep then takes: six models, both engines.

    python benchmarks/dry_run.py [--data DIR] [--case NAME] [--engine auto|loop] [--share 1.0] [--clock cpu]

DIR holds cifar-10-batches-bin and all-MiniLM-L6-v2; random images stand in for the first, and without the second its
case is left out. A ratio is expected time over time taken, both of the whole `sweep`: from .5 to 2 is the bar.
Each case runs in a process of its own, as a command would. `--clock cpu` takes processor time for both, on one thread:
for a machine that other work shares.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dropscope as ds
from gpu_grid import test_images
from nets import cifar_net
from timing import machine, table

RATES = (0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Case:
    """A sweep: what it runs, and on how many examples."""

    what: str
    prepare: Callable[[Path, int], tuple[nn.Module, Any]]
    placements: Sequence[Any]
    examples: int
    passes: int


class _Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.short = nn.Identity() if before == width else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + self.short(x))


class ResNet20(nn.Module):
    """Nine residual blocks in three stages, as on CIFAR-10."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.blocks = nn.Sequential(*(_Block(*width) for width in widths))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.bn(self.stem(x)))).mean((2, 3)))


def _images(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    if (folder / "cifar-10-batches-bin").is_dir():
        return test_images(folder, count)
    return torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,))


def _cifar(folder: Path, count: int) -> tuple[nn.Module, Any]:
    return cifar_net(), _images(folder, count)


def _resnet(folder: Path, count: int) -> tuple[nn.Module, Any]:
    return ResNet20().eval(), _images(folder, count)


def _table(folder: Path, count: int) -> tuple[nn.Module, Any]:
    net = nn.Sequential(
        nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 5)
    )
    return net.eval(), (torch.randn(count, 40), torch.randint(0, 5, (count,)))


def _texts(folder: Path, count: int) -> tuple[nn.Module, Any]:
    from transformers import AutoModelForSequenceClassification

    path = folder / "all-MiniLM-L6-v2"
    net = AutoModelForSequenceClassification.from_pretrained(path, num_labels=2, local_files_only=True).eval()
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 49, (count,), generator=draw)
    mask = (torch.arange(48)[None, :] < lengths[:, None]).long()
    tokens = torch.randint(1000, 30000, (count, 48), generator=draw) * mask
    inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": torch.zeros_like(tokens)}
    return net, (inputs, torch.randint(0, 2, (count,), generator=draw))


_RESNET_SITES = ("stem", *(f"blocks.{i}.conv1" for i in range(9)))
CASES = {
    "late": Case("small CNN, a late site", _cifar, [f"fc1={r}" for r in RATES], 5000, 100),
    "convs": Case("small CNN, all convolutions", _cifar, [f"conv1={r},conv2={r},conv3={r}" for r in RATES], 600, 50),
    "grid": Case("small CNN, grid of 3 sites", _cifar, ds.PlacementGrid(["conv2", "conv3", "fc1"], RATES), 500, 30),
    "resnet": Case(
        "ResNet-20, 10 sites one at a time", _resnet, [f"{s}={r}" for s in _RESNET_SITES for r in RATES], 150, 20
    ),
    "text": Case("MiniLM, last and attention", _texts, ["last=0.1", "last=0.3", "attention=0.1"], 100, 30),
    "table": Case("MLP, 5,000 rows", _table, ds.PlacementGrid(["0", "2", "4"], RATES), 5000, 50),
}


def measure(name: str, folder: Path, engine: str, share: float, clock: str, dry: bool) -> dict[str, Any]:
    """Seconds of one case: of the dry run, and what it expects; or of the sweep itself."""
    if clock == "cpu":
        torch.set_num_threads(1)
        time.monotonic = time.process_time  # type: ignore[assignment]
    case = CASES[name]
    torch.manual_seed(0)
    net, data = case.prepare(folder, max(1, round(case.examples * share)))
    started = time.monotonic()
    if dry:
        plan = ds.plan_sweep(net, case.placements, data, case.passes, engine=engine, progress=False)
        stages, answer = dict(plan.stages), {"engine": plan.engine, "expected": plan.seconds}
    else:
        stages, answer = ds.sweep(net, case.placements, data, case.passes, engine=engine, progress=False).seconds, {}
    return {**answer, "stages": stages, "seconds": time.monotonic() - started}


def _apart(name: str, options: argparse.Namespace, dry: bool) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--only", name, "--data", str(options.data), "--engine", options.engine]
    command += ["--share", str(options.share), "--clock", options.clock, *(["--dry"] if dry else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--engine", default="auto", choices=("auto", "shared", "loop"))
    parser.add_argument("--share", type=float, default=1.0, help="Share of the examples.")
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"))
    parser.add_argument("--dry", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        found = measure(options.only, options.data, options.engine, options.share, options.clock, options.dry)
        print(json.dumps(found))
        return
    names = options.case or [n for n in CASES if n != "text" or (options.data / "all-MiniLM-L6-v2").is_dir()]
    print(f"{machine(time.process_time if options.clock == 'cpu' else time.monotonic)}, engine {options.engine}")
    rows = []
    for name in names:
        plan, run = _apart(name, options, dry=True), _apart(name, options, dry=False)
        for which, found in (("expected", plan), ("taken", run)):
            shown = ", ".join(f"{key} {value:.1f}" for key, value in found["stages"].items())
            print(f"{name}, {which}: {shown}", file=sys.stderr, flush=True)
        seconds = [f"{value:.1f}" for value in (plan["seconds"], plan["expected"], run["seconds"])]
        rows.append([CASES[name].what, plan["engine"], *seconds, f"{plan['expected'] / run['seconds']:.2f}"])
    print(table(["case", "engine", "dry run, s", "expected, s", "taken, s", "ratio"], rows))


if __name__ == "__main__":
    main()
