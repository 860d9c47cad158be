"""Every rival of `compare` against an independent implementation, on a trained CIFAR-10 network and real images.

    python -m pip install --no-deps --target DIR -r benchmarks/peers.txt mapie==1.6.0
    python benchmarks/rival_agreement.py --weights seed-0.safetensors --cifar DIR [--peers DIR] [--examples 500]

The weights are those that `dropscope study where-to-drop` trains. Laplace, temperature, batch normalisation and the
criteria of one pass are those of laplace-torch and torch-uncertainty, the density is scikit-learn's, scores are
torch-uncertainty's, torchmetrics', MAPIE's and scikit-learn's; what no library has is written out in NumPy.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dropscope as ds
from dropscope import rivals, scores
from dropscope.deploy.rivals.answers import Answer
from dropscope.deploy.rivals.forwards import PlainPass, plain_pass
from dropscope.engine import open_session
from dropscope.loading import load_weights
from dropscope.studies.where_to_drop.cifar_files import read_cifar, scale_pixels
from dropscope.studies.where_to_drop.networks import CifarNet, SmallEfficientNet
from peers import declare_torchvision
from timing import version


class Comparisons:
    """One line for each comparison: the largest difference, relative to the largest value, and the rank correlation."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, rival: str, other: str, ours: Any, theirs: Callable[[], Any]) -> None:
        try:
            a, b = (np.asarray(value, dtype=float).ravel() for value in (ours, theirs()))
        except Exception as reason:  # other people's code: whatever it raises is the reason
            self.lines.append(f"| {rival} | {other} | not run: {type(reason).__name__}: {str(reason)[:80]} | |")
            return
        apart = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12))
        rank = f"{stats.spearmanr(a, b).statistic:.6f}" if len(a) > 1 else ""
        self.lines.append(f"| {rival} | {other} | {apart:.1e} | {rank} |")


def uncertainty_of(rival: Any, fitting: PlainPass, seen: PlainPass) -> Tensor:
    given = (rival.fit(fitting) if hasattr(rival, "fit") else rival)(seen)
    return next(iter(given.measures.values())) if isinstance(given, Answer) else given


def one_pass(found: Comparisons, fitting: PlainPass, seen: PlainPass) -> None:
    from torch_uncertainty import ood_criteria as theirs

    name = f"torch-uncertainty {version('torch-uncertainty')}"
    p, z = seen.probabilities, seen.logits
    assert z is not None

    def ours(rival: str) -> Tensor:
        return uncertainty_of(rivals.TABLE[rival].rival, fitting, seen)

    found.add("max_probability", name, ours("max_probability"), lambda: 1 + theirs.MaxSoftmaxCriterion()(p[:, None]))
    found.add("entropy", name, ours("entropy"), lambda: theirs.EntropyCriterion()(p[:, None]))
    found.add("max_logit", name, ours("max_logit"), lambda: theirs.MaxLogitCriterion()(z[:, None]))
    found.add("energy", name, ours("energy"), lambda: theirs.EnergyCriterion()(z[:, None]))
    ordered = np.sort(p.double().numpy(), 1)
    found.add("margin", "NumPy", ours("margin"), lambda: 1 - (ordered[:, -1] - ordered[:, -2]))
    power = p.double().numpy()
    found.add(
        "generalised_entropy", "NumPy", ours("generalised_entropy"), lambda: ((power * (1 - power)) ** 0.1).sum(1)
    )


def norms(found: Comparisons, fitting: PlainPass, seen: PlainPass) -> None:
    """p by AURC on the fitting examples, as the paper's algorithm has it."""

    def score(one: PlainPass, p: int) -> np.ndarray:
        z = one.logits.double().numpy()
        z = z - z.mean(1, keepdims=True)
        return -z.max(1) / (np.abs(z) ** p).sum(1) ** (1 / p)

    def area(u: np.ndarray, wrong: np.ndarray) -> float:
        ordered = wrong[np.argsort(u, kind="stable")]
        return float((ordered.cumsum() / np.arange(1, len(u) + 1)).mean())

    def theirs() -> np.ndarray:
        wrong = (fitting.predictions != fitting.labels).numpy()
        areas = {p: area(score(fitting, p), wrong) for p in range(1, 11)}
        best = min(areas, key=lambda p: areas[p])
        if areas[best] >= area(1 - fitting.probabilities.amax(1).numpy(), wrong):
            return 1 - seen.probabilities.double().amax(1).numpy()
        return score(seen, best)

    found.add("max_logit_pnorm", "NumPy", uncertainty_of(rivals.MaxLogitPNorm(), fitting, seen), theirs)


def fitted(found: Comparisons, net: nn.Module, fit: tuple[Tensor, Tensor], fitting: PlainPass, seen: PlainPass) -> None:
    x = seen.session.data.batches[0].call.args[0]

    def temperature() -> float:
        from torch_uncertainty.post_processing import TemperatureScaler

        scaler = TemperatureScaler(net, device="cpu", lr=0.1, max_iter=500)
        scaler.fit(DataLoader(TensorDataset(*fit), batch_size=len(fit[0])), progress=False)
        return float(scaler.temperature[0])

    name = f"torch-uncertainty {version('torch-uncertainty')}"
    found.add("temperature", name, scores.fit_temperature(fitting.probabilities, fitting.labels), temperature)

    def laplace() -> Tensor:
        from laplace import Laplace

        theirs = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron",
                         prior_precision=1.0)  # fmt: skip
        with torch.enable_grad():
            theirs.fit(DataLoader(TensorDataset(*fit), batch_size=len(fit[0])))
        return theirs(x, link_approx="probit").detach()

    ours = rivals.Laplace(precisions=(1.0,)).fit(fitting)(seen)
    assert isinstance(ours, Answer)
    found.add("laplace (probabilities)", f"laplace-torch {version('laplace-torch')}", ours.probabilities, laplace)

    def density() -> np.ndarray:
        from sklearn.covariance import LedoitWolf

        features, labels = fitting.features.double().numpy(), fitting.labels.numpy()
        means = np.stack([features[labels == c].mean(0) for c in range(10)])
        model = LedoitWolf(assume_centered=True).fit(features - means[labels])
        apart = [model.mahalanobis(seen.features.double().numpy() - mean) for mean in means]
        return np.min(apart, 0)

    name = f"scikit-learn {version('scikit-learn')}"
    found.add("mahalanobis", name, uncertainty_of(rivals.Mahalanobis(), fitting, seen), density)


def several(found: Comparisons, x: Tensor, y: Tensor, net: nn.Module, others: list[nn.Module], seen: PlainPass) -> None:
    members = torch.stack([one(x).softmax(1) for one in others])
    ensemble = rivals.Ensemble(others).fit(seen)(seen)
    assert isinstance(ensemble, Answer)
    found.add("ensemble (mean)", "NumPy", ensemble.probabilities, lambda: members.mean(0))

    def mutual() -> Tensor:
        from torch_uncertainty.ood_criteria import MutualInformationCriterion

        return MutualInformationCriterion()(members.transpose(0, 1))

    name = f"torch-uncertainty {version('torch-uncertainty')}"
    found.add("ensemble (BALD)", name, ensemble.measures["bald"], mutual)
    stored = rivals.StoredProbabilities.of(members)(seen)
    found.add("stored (BALD)", name, stored.measures["bald"], mutual)
    flips = rivals.Augmentation(["flips"])(seen)
    mirrored = torch.from_numpy(np.flip(x.numpy(), -1).copy())
    found.add(
        "tta_flips (mean)", "NumPy", flips.probabilities, lambda: (net(x).softmax(1) + net(mirrored).softmax(1)) / 2
    )

    def batch_norm() -> tuple[Tensor, Callable[[], Tensor]]:
        torch.manual_seed(0)
        normed = SmallEfficientNet()
        for _ in range(3):
            normed(x[:128])
        normed.eval()
        session = plain_pass(open_session(normed, (x, y)))
        rival = rivals.MonteCarloBatchNorm(passes=8, batch_size=32, seed=1)
        answer = rival.fit(session)(session)
        assert isinstance(answer, Answer)

        def theirs() -> Tensor:
            from torch_uncertainty.post_processing import MCBatchNorm

            draw = torch.Generator().manual_seed(1)
            chosen = [torch.randperm(len(x), generator=draw)[:32].sort().values for _ in range(8)]
            order = torch.cat(chosen)
            wrapped = MCBatchNorm(normed, num_estimators=8, mc_batch_size=32, device="cpu")
            wrapped.fit(_InOrder(TensorDataset(x[order], y[order]), batch_size=32))
            wrapped.eval()
            return wrapped(x).unflatten(0, (8, -1)).softmax(-1).mean(0)

        return answer.probabilities, theirs

    ours, theirs = batch_norm()
    found.add("mc_batchnorm (mean)", name, ours, theirs)


class _InOrder(DataLoader):
    """A loader that the wrapper does not shuffle."""


def of_scores(found: Comparisons, seen: PlainPass) -> None:
    p, y = seen.probabilities, seen.labels
    assert y is not None
    right, u = p.argmax(1) == y, 1 - p.amax(1)
    name = f"torch-uncertainty {version('torch-uncertainty')}"

    def metric(build: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            measured = build()
            measured.update(p, y)
            return float(measured.compute())

        return run

    def of_library(which: str) -> Callable[[], Any]:
        def build() -> Any:
            from torch_uncertainty.metrics import classification

            return getattr(classification, which)(**({"num_classes": 10} if which == "BrierScore" else {}))

        return build

    for ours, theirs in (("aurc", "AURC"), ("augrc", "AUGRC")):
        found.add(ours, name, float(getattr(scores, ours)(u, right)), metric(of_library(theirs)))
    found.add("brier", name, float(scores.brier(p, y)), metric(of_library("BrierScore")))

    def auroc() -> float:
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(~right.numpy(), u.numpy()))

    found.add("error_auroc", f"scikit-learn {version('scikit-learn')}", float(scores.error_auroc(u, right)), auroc)

    def log_loss() -> float:
        from sklearn.metrics import log_loss as theirs

        return float(theirs(y.numpy(), p.double().numpy(), labels=range(10)))

    found.add("nll", f"scikit-learn {version('scikit-learn')}", float(scores.nll(p, y)), log_loss)

    def ece_torchmetrics() -> float:
        from torchmetrics.classification import MulticlassCalibrationError

        return float(MulticlassCalibrationError(10, n_bins=15)(p, y))

    def ece_mapie() -> float:
        from mapie.metrics.calibration import expected_calibration_error

        edges = 16  # its num_bins counts the edges of the bins
        correct = right.numpy().astype(int)
        return float(expected_calibration_error(correct, p.amax(1).numpy(), num_bins=edges, split_strategy="uniform"))

    found.add("ece", f"torchmetrics {version('torchmetrics')}", float(scores.ece(p, y)), ece_torchmetrics)
    found.add("ece", f"MAPIE {version('mapie')}", float(scores.ece(p, y)), ece_mapie)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights", type=Path, required=True, nargs="+", help="of the study's network; several: members"
    )
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--peers", type=Path, help="where the other libraries are, if not beside torch")
    parser.add_argument("--examples", type=int, default=500)
    asked = parser.parse_args()
    if asked.peers is not None:
        sys.path.append(str(asked.peers))
    declare_torchvision()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_grad_enabled(False)
    images = read_cifar(asked.cifar)
    x, y = scale_pixels(images.test_images[: 2 * asked.examples]), images.test_labels[: 2 * asked.examples]
    fit, judged = (x[: asked.examples], y[: asked.examples]), (x[asked.examples :], y[asked.examples :])
    members = [load_weights(CifarNet(), path) for path in asked.weights]
    net = members[0]
    session = open_session(net, judged, batch_size=asked.examples)
    seen = plain_pass(session)
    fitting = plain_pass(open_session(net, fit, batch_size=asked.examples))
    found = Comparisons()
    one_pass(found, fitting, seen)
    norms(found, fitting, seen)
    fitted(found, net, fit, fitting, seen)
    several(found, *judged, net, members, seen)
    of_scores(found, seen)
    print(f"dropscope {ds.__version__}, torch {torch.__version__}, {asked.examples} images fit, as many judge\n")
    print("| rival or score | implementation | largest difference, relative | rank correlation |\n|---|---|---|---|")
    print("\n".join(found.lines))


if __name__ == "__main__":
    main()
