"""Does an exported file say what torch says? Words bit for bit; decisions and probabilities on CIFAR-10's test images.

    python benchmarks/export.py --data DIR --weights FILE [--images N] [--passes T] [--states S] [--package] [PLACEMENT]

DIR holds cifar-10-batches-bin/test_batch.bin, FILE weights of the network of the study `where-to-drop`. The threshold
is the 80th percentile of torch's uncertainties, an example's own value, so that a tie is among the decisions; a
decision is the label and whether the image is deferred.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import dropscope as ds
from dropscope.noise import Keys, bits, streams
from gpu_grid import CifarNet, test_images

PLACEMENTS = ["fc1=0.5", "conv3=0.2,fc1=0.3"]
SITE = -1234567890123456789
BATCH = 250


class Words(nn.Module):
    """Keys of passes and examples, and the words of states, in each form that noise takes."""

    def forward(self, passes: Tensor, examples: Tensor, states: Tensor) -> tuple[Tensor, ...]:
        stratified = bits(Keys(states, passes % 16), (2,))
        return streams(7, SITE, passes, examples), bits(states, (3,)), bits(states, (3, 1), -2), stratified


def compare_words(count: int, folder: Path) -> None:
    """How many words of onnxruntime differ from torch's, over random states of which half are negative."""
    draw = torch.Generator().manual_seed(0)
    passes = torch.randint(0, 1000, (count,), generator=draw)
    examples, states = (torch.randint(-(2**63), 2**63 - 1, (count,), generator=draw) for _ in range(2))
    given, module = (passes, examples, states), Words().eval()
    expected = module(*given)
    shapes = tuple({0: torch.export.Dim("n")} for _ in given)
    torch.onnx.export(module, given, folder / "words.onnx", dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(folder / "words.onnx")
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {name: value.numpy() for name, value in zip(names, given, strict=True)})
    differ = [int((a.numpy() != b).sum()) for a, b in zip(expected, found, strict=True)]
    print(f"words: {count:,} states, {int((states < 0).sum()):,} negative; differing keys, words, centred, stratified: "
          f"{differ}")  # fmt: skip


def compare_files(net: nn.Module, images: Tensor, placement: str, options: argparse.Namespace, folder: Path) -> None:
    """Differences of each form from `uncertainty`, which runs the model itself."""
    common = {"label": "plain", "errors": False, "progress": False}
    start = time.perf_counter()
    table = ds.uncertainty(net, placement, images, options.passes, measures=["predictive_entropy"], **common)
    seconds = {"torch": time.perf_counter() - start}
    mean = ds.sample(net, placement, images, options.passes, progress=False).mean(0, dtype=torch.float64).numpy()
    u = table.predictive_entropy.to_numpy()
    threshold = float(np.sort(u)[int(0.8 * len(u))])
    deferred, labels = u > threshold, table.prediction.to_numpy()
    forms = {"ONNX": ("net.onnx", False), ".pt2": ("net.pt2", False)}
    if options.package:
        forms["package"] = ("package.pt2", True)
    for form, (name, package) in forms.items():
        at = folder / name
        file = ds.export(net, placement, images[:4], at, options.passes, threshold=threshold, package=package,
                         overwrite=True)  # fmt: skip
        start = time.perf_counter()
        parts = [file(some) for some in images.split(BATCH)]
        seconds[form] = time.perf_counter() - start
        found = {key: np.concatenate([part[key] for part in parts]) for key in file.outputs}
        decisions = int(((found["defer"] != deferred) | (found["label"] != labels)).sum())
        apart = float(np.abs(found["probabilities"] - mean).max())
        print(f"{placement}, {options.passes} passes, {form}: {decisions} of {len(u):,} decisions differ, "
              f"probabilities by {apart:.1e}, uncertainty by {float(np.abs(found['uncertainty'] - u).max()):.1e}; "
              f"{seconds[form]:.1f} s (torch {seconds['torch']:.1f} s)", flush=True)  # fmt: skip


def main() -> None:
    """Runs both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--states", type=int, default=1_000_000)
    parser.add_argument("--package", action="store_true")
    parser.add_argument("placements", nargs="*", default=PLACEMENTS)
    options = parser.parse_args()
    net = CifarNet()
    net.load_state_dict(load_file(options.weights))
    with tempfile.TemporaryDirectory() as folder:
        if options.states:
            compare_words(options.states, Path(folder))
        for placement in options.placements:
            compare_files(net.eval(), test_images(options.data, options.images)[0], placement, options, Path(folder))


if __name__ == "__main__":
    main()
