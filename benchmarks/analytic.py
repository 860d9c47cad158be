"""How far is the last layer without passes from 100,000 passes of it, and what does it cost?

    python benchmarks/analytic.py --data DIR --weights FILE [FILE ...] [--images N] [--device cuda] [rate ...]

DIR holds cifar-10-batches-bin/test_batch.bin, each FILE weights of the network of the study `where-to-drop`. For each
rate at fc1: root mean square errors of the mean probability and of three measures, beside the error that 100 passes
have; differences of AURC; the time of everything over that of the plain passes alone. With --device cuda all of it
runs there, and the clock waits for it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from dropscope import scores
from dropscope.engine import Engine, Session, Tolerance, choose_engine, open_session
from gpu_grid import CifarNet, test_images

RATES = (0.1, 0.2, 0.3, 0.4, 0.5)
NAMES = ("mean probability", "predictive entropy", "expected entropy", "bald")
SOME, SOME_CUDA = 20, 500  # images at once
NEEDS = ("sum_p", "sum_plogp", "max_moments", "predicted_deviation")  # of the default measures


def entropy(p: Tensor, dim: int = -1) -> Tensor:
    return torch.special.entr(p).sum(dim)


def features_of(net: CifarNet, images: Tensor) -> Tensor:
    found: list[Tensor] = []
    handle = net.fc2.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    for some in images.split(500):
        net(some)
    handle.remove()
    return torch.cat(found)


def limit(net: CifarNet, features: Tensor, rate: float, passes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean probabilities, their variance over passes, and the expected entropy, by masks that all images share."""
    device, n = features.device, len(features)
    generator = torch.Generator(device).manual_seed(1)
    weight, classes = net.fc2.weight, len(net.fc2.weight)
    total = torch.zeros(n, classes, dtype=torch.float64, device=device)
    squares, entropies = torch.zeros_like(total), torch.zeros(n, dtype=torch.float64, device=device)
    together = SOME_CUDA if device.type == "cuda" else SOME
    for first in range(0, passes, 4000):
        count = min(4000, passes - first)
        masks = (torch.rand(features.shape[1], count, generator=generator, device=device) >= rate).float() / (1 - rate)
        for begin in range(0, n, together):
            some = features[begin : begin + together]
            p = torch.matmul(weight * some[:, None], masks).add_(net.fc2.bias[:, None]).softmax(1)
            here = slice(begin, begin + len(some))
            total[here] += p.sum(2)
            squares[here] += p.square().sum(2)
            entropies[here] += (-(p.clamp_min(1e-38).log() * p).sum((1, 2))).double()
    mean = total / passes
    return mean, squares / passes - mean.square(), entropies / passes


def engine_of(session: Session, rate: float) -> Engine:
    return choose_engine(session, session.resolve([f"fc1={rate}"]), 100, "analytic", tolerance=Tolerance(1.0))


def found_by(engine: Engine) -> tuple[Tensor, Tensor]:
    """Mean probabilities and expected entropies."""
    kept = [block.chunks[0][1] for block in engine.statistics(0, NEEDS)]
    return torch.cat([one.mean[0] for one in kept]), torch.cat([one.mean_entropy[0] for one in kept])


def estimates(mean: Tensor, expected: Tensor) -> list[Tensor]:
    return [mean, entropy(mean), expected, entropy(mean) - expected]


def root(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


def aurc(uncertainty: Tensor, mean: Tensor, labels: Tensor) -> float:
    return float(scores.aurc(uncertainty.cpu(), (mean.argmax(1) == labels).cpu()))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of this process alone, or of the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        return time.perf_counter() - started
    started = time.process_time()
    work()
    return time.process_time() - started


def cost(session: Session, engine: Engine, repeats: int = 15) -> tuple[float, float]:
    """Everything over the plain passes, timed in turn: the median of the ratios, and seconds per plain pass."""

    def plain() -> None:
        for batch in engine.session.data.batches:
            with torch.no_grad(), session.sealed():
                session.plain(batch)

    def whole() -> None:
        for _ in engine.statistics(0, NEEDS):
            pass

    whole(), plain()
    times = [(seconds(whole, session.device), seconds(plain, session.device)) for _ in range(repeats)]
    return float(np.median([a / b for a, b in times])), float(np.median([b for _, b in times])) / session.data.n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, nargs="+", required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--passes", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"{options.images} images, {options.passes} passes, {options.device}, torch {torch.__version__}\n")
    print(f"| network | rate | {' | '.join(NAMES)} | 100 passes: mean | ΔAURC entropy | ΔAURC bald | time |")
    print(f"|{'---|' * (len(NAMES) + 6)}")
    for weights in options.weights:
        net = CifarNet().eval()
        net.load_state_dict(load_file(weights))
        net = net.to(options.device)
        images, labels = (part.to(options.device) for part in test_images(options.data, options.images))
        session = open_session(net, images)
        with torch.inference_mode():
            features = features_of(net, images)
        for rate in options.rates:
            with torch.inference_mode():
                mean, variance, expected = limit(net, features, rate, options.passes)
            engine = engine_of(session, rate)
            exact, found = estimates(mean, expected), estimates(*found_by(engine))
            errors = " | ".join(f"{root(one - other):.4f}" for one, other in zip(found, exact, strict=True))
            apart = [aurc(found[i], found[0], labels) - aurc(exact[i], exact[0], labels) for i in (1, 3)]
            sampled = float(variance.mean().div(100).sqrt())
            ratio, _ = cost(session, engine)
            shown = " | ".join(f"{difference:+.5f}" for difference in apart)
            print(f"| {weights.stem} | {rate} | {errors} | {sampled:.4f} | {shown} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
