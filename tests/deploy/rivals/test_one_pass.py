"""Rivals of one plain pass against independent lines of NumPy and scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import optimize, special
from sklearn.covariance import LedoitWolf
from torch import nn

from dropscope import rivals
from dropscope.deploy.rivals.answers import Answer
from dropscope.deploy.rivals.forwards import PlainPass, plain_pass
from dropscope.engine import open_session
from support.errors import refused
from support.rival_data import CLASSES, PictureNet, picture_net, pictures, two_parts

FITTING, SEEN = two_parts()
Z, P = SEEN.logits.double().numpy(), SEEN.probabilities.double().numpy()


def ask(name: str, fitting: PlainPass = FITTING, seen: PlainPass = SEEN) -> Any:
    rival = rivals.TABLE[name].rival
    return (rival.fit(fitting) if hasattr(rival, "fit") else rival)(seen)


def test_a_plain_pass_holds_logits_features_and_the_last_layer():
    net = picture_net()
    with torch.no_grad():
        assert torch.allclose(SEEN.logits, net(SEEN.session.data.batches[0].call.args[0]), atol=1e-5)
    assert torch.allclose(SEEN.features @ SEEN.weight.T + SEEN.bias, SEEN.logits, atol=1e-4)
    assert SEEN.labels.shape == SEEN.predictions.shape == (SEEN.n,)
    assert SEEN.seconds > 0


ordered = np.sort(P, 1)
WRITTEN_OUT = {
    "max_probability": 1 - P.max(1),
    "entropy": -(P * np.log(P)).sum(1),
    "margin": 1 - (ordered[:, -1] - ordered[:, -2]),
    "max_logit": -Z.max(1),
    "energy": -special.logsumexp(Z, axis=1),
    "generalised_entropy": ((P * (1 - P)) ** 0.1).sum(1),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_rival_without_a_fit_is_its_formula(name):
    assert_allclose(ask(name).double().numpy(), WRITTEN_OUT[name], atol=1e-6)


def test_the_temperature_minimises_the_log_loss_of_the_fitting_examples():
    z, y = FITTING.logits.double().numpy(), FITTING.labels.numpy()

    def loss(t: float) -> float:
        return float(-special.log_softmax(z / t, axis=1)[np.arange(len(y)), y].mean())

    best = optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-6}).x
    answer = ask("temperature")
    assert_allclose(answer.probabilities.numpy(), special.softmax(Z / best, axis=1), atol=1e-3)
    assert_allclose(answer.uncertainty.numpy(), 1 - answer.probabilities.numpy().max(1))


def norms(seen: PlainPass, p: float) -> np.ndarray:
    z = seen.logits.double().numpy()
    z = z - z.mean(1, keepdims=True)
    return -z.max(1) / (np.abs(z) ** p).sum(1) ** (1 / p)


def area(u: np.ndarray, wrong: np.ndarray) -> float:
    return float((wrong[np.argsort(u, kind="stable")].cumsum() / np.arange(1, len(u) + 1)).mean())


def test_the_norm_is_the_best_of_ten_on_the_fitting_examples_or_the_highest_probability():
    wrong = (FITTING.predictions != FITTING.labels).numpy()
    areas = {p: area(norms(FITTING, p), wrong) for p in range(1, 11)}
    best = min(areas, key=lambda p: areas[p])
    plain = area(1 - FITTING.probabilities.double().numpy().max(1), wrong)
    expected = norms(SEEN, best) if areas[best] < plain else 1 - P.max(1)
    assert_allclose(ask("max_logit_pnorm").double().numpy(), expected, atol=1e-6)
    chosen = rivals.MaxLogitPNorm(exponents=(3,)).fit(FITTING)(SEEN)
    assert np.allclose(chosen, norms(SEEN, 3)) or np.allclose(chosen, 1 - P.max(1), atol=1e-6)


def test_the_norm_needs_no_logits_for_probabilities_have_the_same_differences():
    x, y = pictures()
    net = nn.Sequential(picture_net(), nn.Softmax(1))
    seen = plain_pass(open_session(net, (x[80:], y[80:]), outputs="probabilities"))
    assert seen.logits is None
    chosen, same = (rivals.fitted._normed(one, 3) for one in (seen, SEEN))
    assert_allclose(chosen.numpy(), same.numpy(), atol=1e-5)


def test_the_density_is_that_of_scikit_learn():
    x, y = FITTING.features.double().numpy(), FITTING.labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    density = LedoitWolf(assume_centered=True).fit(x - means[y])
    apart = np.min([density.mahalanobis(SEEN.features.double().numpy() - mean) for mean in means], 0)
    assert_allclose(ask("mahalanobis").numpy(), apart, rtol=1e-5)


def full_laplace(precision: float) -> np.ndarray:
    """The probit predictive of a Gaussian whose precision is A ⊗ G + δ, every matrix written out."""
    x, p = FITTING.features.double().numpy(), FITTING.probabilities.double().numpy()
    inputs, outputs = x.T @ x / len(x), np.diag(p.sum(0)) - p.T @ p
    size = x.shape[1]
    of_weights = np.linalg.inv(np.kron(outputs, inputs) + precision * np.eye(CLASSES * size))
    of_bias = np.linalg.inv(outputs + precision * np.eye(CLASSES))
    found = []
    for f, z in zip(SEEN.features.double().numpy(), Z, strict=True):
        jacobian = np.kron(np.eye(CLASSES), f)
        variance = np.diag(jacobian @ of_weights @ jacobian.T + of_bias)
        found.append(special.softmax(z / np.sqrt(1 + math.pi / 8 * variance)))
    return np.stack(found)


@pytest.mark.parametrize("precision", [0.1, 1.0, 30.0])
def test_laplace_is_the_gaussian_written_out(precision):
    answer = rivals.Laplace(precisions=(precision,)).fit(FITTING)(SEEN)
    assert_allclose(answer.probabilities.numpy(), full_laplace(precision), atol=1e-6)
    assert_allclose(answer.uncertainty.numpy(), 1 - full_laplace(precision).max(1), atol=1e-6)


def test_laplace_knows_a_last_layer_without_bias_and_one_logit_of_two_classes():
    bare = PictureNet(bias=False).eval()
    fitting, seen = two_parts(bare)
    assert seen.bias is None
    assert isinstance(rivals.Laplace().fit(fitting)(seen), Answer)
    x, y = pictures()
    one = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    seen = plain_pass(open_session(one, (x, y.clamp_max(1)), outputs="binary_logit"))
    assert torch.allclose(seen.logits.softmax(1), seen.probabilities, atol=1e-6)
    assert torch.allclose(seen.features @ seen.weight.T + seen.bias, seen.logits, atol=1e-5)


def test_what_a_model_lacks_is_said():
    x, y = pictures()
    net = nn.Sequential(picture_net(), nn.Softmax(1))
    seen = plain_pass(open_session(net, (x, y), outputs="probabilities"))
    with refused("rivals"):
        rivals.TABLE["energy"].rival(seen)
    with refused("rivals"):
        rivals.Laplace().fit(seen)
    pooled = nn.Sequential(nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with refused("rivals"):
        rivals.Mahalanobis().fit(plain_pass(open_session(pooled, (x, y))))
    with refused("fit"):
        rivals.Temperature().fit(plain_pass(open_session(picture_net(), x)))
