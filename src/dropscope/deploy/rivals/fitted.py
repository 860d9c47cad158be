"""Rivals of one plain pass that are fitted to labelled examples first.

Each is a frozen record of its settings; `fit` returns the function that answers about other examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from dropscope import measures, scores
from dropscope.deploy.rivals.answers import Answer, Scorer
from dropscope.deploy.rivals.forwards import PlainPass
from dropscope.deploy.rivals.single import centred_logits, max_probability
from dropscope.errors import BadInput, Phrase
from dropscope.scores import aurc, fit_temperature, tempered

_PRECISIONS = tuple(10.0 ** (k / 4) for k in range(-16, 17))  # of the prior: 1e-4 to 1e4


@dataclass(frozen=True)
class Temperature:
    """One temperature for all logits, of least log loss: its highest probability ranks (Guo et al. 2017)."""

    def fit(self, fitting: PlainPass) -> Scorer:
        """Fits the temperature."""
        temperature = fit_temperature(fitting.probabilities, labels_of(fitting, "temperature"))

        def score(seen: PlainPass) -> Answer:
            p = tempered(seen.probabilities, temperature)
            return Answer(p, 1 - p.amax(1))

        return score


@dataclass(frozen=True)
class MaxLogitPNorm:
    """−max_c (z − μ) / ‖z − μ‖_p, with μ the mean of the logits (Cattelan and Silva 2024).

    Attributes:
        exponents: The p to choose from, by AURC on the fitting examples. Where none of them ranks better there than the
            highest probability, that one is taken, as the authors do.
    """

    exponents: Sequence[float] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)

    def fit(self, fitting: PlainPass) -> Scorer:
        """Chooses p."""
        correct = fitting.predictions == labels_of(fitting, "max_logit_pnorm")
        areas = {p: float(aurc(_normed(fitting, p), correct)) for p in self.exponents}
        best = min(areas, key=lambda p: areas[p])
        if areas[best] >= float(aurc(max_probability(fitting), correct)):
            return max_probability
        return lambda seen: _normed(seen, best)


def _normed(seen: PlainPass, p: float) -> Tensor:
    z = centred_logits(seen)
    return -z.amax(1) / z.norm(p, 1).clamp_min(1e-12)


@dataclass(frozen=True)
class Mahalanobis:
    """The least squared distance of the features from a class's mean, under one covariance (Lee et al. 2018).

    The covariance is shrunk by the rule of Ledoit and Wolf (2004), so that it can be inverted with few examples.
    """

    def fit(self, fitting: PlainPass) -> Scorer:
        """Means of the classes that the fitting examples have, and the covariance around them."""
        labels, x = labels_of(fitting, "mahalanobis"), features_of(fitting, "mahalanobis")
        present = labels.unique()
        means = torch.stack([x[labels == label].mean(0) for label in present])
        centred = x - means[torch.searchsorted(present, labels)]
        covariance = torch.from_numpy(ledoit_wolf(centred.numpy(), assume_centered=True)[0])
        # Features that never vary have no variance to divide by.
        ridge = 1e-9 * float(covariance.diagonal().mean()) + 1e-30
        lower = torch.linalg.cholesky(covariance + ridge * torch.eye(len(covariance), dtype=torch.float64))

        def whitened(value: Tensor) -> Tensor:
            return torch.linalg.solve_triangular(lower, value.T, upper=False).T

        centres = whitened(means)
        return lambda seen: torch.cdist(whitened(features_of(seen, "mahalanobis")), centres).square().amin(1)


@dataclass(frozen=True)
class Laplace:
    """A Gaussian over the weights of the last layer, around the trained ones (Daxberger et al. 2021).

    The curvature is the Kronecker-factored generalised Gauss-Newton matrix on the fitting examples, weight and bias
    apart; probabilities are the probit approximation, softmax(z_c / √(1 + π v_c / 8)).

    Attributes:
        precisions: Of the prior, to choose from by log loss on the fitting examples.
    """

    precisions: Sequence[float] = _PRECISIONS

    def fit(self, fitting: PlainPass) -> Scorer:
        """Factors of the curvature, and the precision of the prior."""
        labels, x, logits = labels_of(fitting, "laplace"), features_of(fitting, "laplace"), _logits(fitting)
        p = logits.softmax(1)
        inputs, rotation = torch.linalg.eigh(x.T @ x / len(x))
        outputs, classes = torch.linalg.eigh(torch.diag(p.sum(0)) - p.T @ p)
        curvature = inputs.clamp_min(0)[:, None] * outputs.clamp_min(0)
        of_bias = outputs.clamp_min(0)

        def predicted(seen: PlainPass, precision: float) -> Tensor:
            rotated = (features_of(seen, "laplace") @ rotation).square()
            variance = rotated @ (1 / (curvature + precision))
            if fitting.bias is not None:
                variance = variance + 1 / (of_bias + precision)
            per_class = variance @ classes.square().T
            return (_logits(seen) / (1 + math.pi / 8 * per_class).sqrt()).softmax(1)

        losses = [float(scores.nll(predicted(fitting, one), labels)) for one in self.precisions]
        chosen = self.precisions[losses.index(min(losses))]

        def score(seen: PlainPass) -> Answer:
            mean = predicted(seen, chosen)
            return Answer(mean, measures.plain_max_probability(mean))

        return score


def labels_of(seen: PlainPass, name: str) -> Tensor:
    """The labels that a rival is fitted to.

    Raises:
        BadInput: Where there are none.
    """
    if seen.labels is None:
        raise BadInput(f"rival {name!r} must have labels to fit", "fit", Phrase("inputs without labels"), "add labels")
    return seen.labels


def features_of(seen: PlainPass, name: str) -> Tensor:
    """What the last layer gets, `[n, D]`, in float64.

    Raises:
        BadInput: Where the model has no final linear layer with a row per example.
    """
    if seen.features is None:
        received = Phrase("a model whose final layer is no Linear with one row per example")
        raise BadInput(f"rival {name!r} must have features", "rivals", received, f"leave {name} out")
    return seen.features.double()


def _logits(seen: PlainPass) -> Tensor:
    if seen.logits is None or seen.weight is None:
        received = Phrase("a model whose outputs are not those of a final Linear layer")
        raise BadInput("rival 'laplace' must have the logits of a last layer", "rivals", received, "leave laplace out")
    return seen.logits.double()
