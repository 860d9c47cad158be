"""Are promises of deferral rules kept, and how much do they keep? Repeated draws from the scores of a real network.

    python benchmarks/deferral.py --data DIR --weights FILE [--draws N] [--save SCORES.npz]
    python benchmarks/deferral.py --scores SCORES.npz --peer [--draws N]

DIR holds cifar-10-batches-bin/test_batch.bin, FILE weights of the network of the study `where-to-drop`. Its 10,000 test
images are the population: a draw is n of them, with replacement, and a promise is broken where the error of the rule on
all of them is above its limit. Coverage is of all of them too. `--peer` does the same with MAPIE, and needs only that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZES, LIMITS, CONFIDENCE = (500, 1000, 3000), (0.05, 0.1), 0.9
ROWS, SHARED = 5, 0.7  # of a patient, and the chance that a row repeats the patient's first
Threshold = float | None


class Population:
    """Scores of every image: uncertainty (1 − max probability) and whether the prediction is right."""

    def __init__(self, uncertainty: np.ndarray, right: np.ndarray) -> None:
        order = np.argsort(uncertainty)
        self.u, self.right = uncertainty[order], right[order]
        self._errors = np.concatenate([[0], np.cumsum(~self.right)])

    def judged(self, threshold: Threshold) -> tuple[float, float]:
        """Coverage and error of a threshold."""
        kept = 0 if threshold is None else int(np.searchsorted(self.u, threshold, side="right"))
        return kept / len(self.u), float(self._errors[kept] / max(kept, 1))

    def oracle(self, limit: float) -> float:
        errors = self._errors[1:] / np.arange(1, len(self.u) + 1)
        return float((np.flatnonzero(errors <= limit)[-1] + 1) / len(self.u))

    def draws(self, n: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for seed in range(count):
            chosen = np.random.default_rng([seed, n]).integers(0, len(self.u), n)
            yield self.u[chosen], self.right[chosen]

    def patients(self, n: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Draws in which rows of one patient are mostly the same image."""
        for seed in range(count):
            rng = np.random.default_rng([seed, n, ROWS])
            chosen = rng.integers(0, len(self.u), (n // ROWS, ROWS))
            chosen = np.where(rng.random(chosen.shape) < SHARED, chosen[:, :1], chosen).ravel()
            yield self.u[chosen], self.right[chosen], np.repeat(np.arange(n // ROWS), ROWS)


def of_network(data: Path, weights: Path) -> Population:
    import torch
    from safetensors.torch import load_file

    from gpu_grid import CifarNet, test_images

    images, labels = test_images(data, 10_000)
    net = CifarNet().eval()
    net.load_state_dict(load_file(weights))
    with torch.no_grad():
        p = torch.cat([net(part).softmax(1) for part in images.split(500)])
    return Population(1 - p.amax(1).double().numpy(), (p.argmax(1) == labels).numpy())


def naive(u: np.ndarray, right: np.ndarray, limit: float) -> Threshold:
    """The most that can be kept with an observed error within the limit."""
    order = np.argsort(u)
    passes = np.flatnonzero(np.cumsum(~right[order]) / np.arange(1, len(u) + 1) <= limit)
    return float(u[order][passes[-1]]) if len(passes) else None


def mapie_threshold(u: np.ndarray, right: np.ndarray, limit: float) -> Threshold:
    """MAPIE's controller as its users have it: keeping is the positive class, its precision is controlled."""
    from mapie.risk_control import BinaryClassificationController

    def confidence(x: np.ndarray) -> np.ndarray:
        return np.column_stack([x[:, 0], 1 - x[:, 0]])

    controller = BinaryClassificationController(confidence, "precision", 1 - limit, CONFIDENCE)
    controller.calibrate(u[:, None], right.astype(int))
    return None if controller.best_predict_param is None else 1 - float(controller.best_predict_param)


def row(name: str, population: Population, found: list[Threshold], limit: float) -> None:
    coverage, error = np.array([population.judged(threshold) for threshold in found]).T
    share, none = (error > limit).mean(), np.mean([threshold is None for threshold in found])
    kept = error[coverage > 0].mean() if none < 1 else float("nan")
    print(f"{name:<34} {coverage.mean():>8.3f} {share:>8.1%} {none:>8.1%} {kept:>8.4f}", flush=True)


def ours() -> dict[str, Callable[..., Any]]:
    from dropscope.deploy import defer

    def by(method: str) -> Callable[..., Any]:
        return lambda u, right, limit: defer(u, right, limit, CONFIDENCE, method=method).threshold

    return {method: by(method) for method in ("fixed_sequence", "starts", "sgr", "holm", "average")} | {"naive": naive}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--peer", action="store_true")
    asked = parser.parse_args()
    if asked.scores:
        stored = np.load(asked.scores)
        population = Population(stored["u"], stored["right"])
    else:
        population = of_network(asked.data, asked.weights)
    if asked.save:
        np.savez(asked.save, u=population.u, right=population.right)
    print(f"accuracy {population.right.mean():.4f}; {asked.draws} draws, confidence {CONFIDENCE}")
    print(f"{'':<34} {'coverage':>8} {'broken':>8} {'none':>8} {'error':>8}")
    for n in SIZES:
        for limit in LIMITS:
            print(f"n = {n}, error at most {limit:g} (oracle keeps {population.oracle(limit):.3f})")
            rules = {"MAPIE": mapie_threshold} if asked.peer else ours()
            for name, rule in rules.items():
                found = [rule(u, right, limit) for u, right in population.draws(n, asked.draws)]
                row(f"  {name}", population, found, limit)
    if not asked.peer:
        clustered(population, asked.draws)


def clustered(population: Population, draws: int) -> None:
    from dropscope.deploy import defer

    for n in (1000, 3000):
        print(f"n = {n} rows of {n // ROWS} patients, error at most 0.1")
        every = list(population.patients(n, draws))
        row("  rows as if independent", population, [defer(u, right, 0.1).threshold for u, right, _ in every], 0.1)
        grouped = [defer(u, right, 0.1, groups=ids).threshold for u, right, ids in every]
        row("  patients as groups", population, grouped, 0.1)


if __name__ == "__main__":
    main()
