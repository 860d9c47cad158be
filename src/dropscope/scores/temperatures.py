"""Temperature scaling of probabilities: what NLL and ECE need before two methods are compared by them."""

from __future__ import annotations

import math

import torch
from scipy import optimize
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.calibration import checked_probabilities

_SMALLEST = 1e-30  # a probability that counts as 0
_LEAST, _MOST = 0.05, 20.0


def tempered(probabilities: Tensor, temperature: float) -> Tensor:
    """Probabilities at another temperature: softmax(log p / T), which for a softmax is that of its logits over T.

    T above 1 is less certain. The most probable class stays the most probable.

    Args:
        probabilities: `[..., C]`.
        temperature: Above 0.

    Returns:
        The same shape, float64.

    Raises:
        BadInput: Where the temperature is not above 0.

    Examples:
        >>> [round(p, 3) for p in tempered(torch.tensor([0.9, 0.1]), 2.0).tolist()]
        [0.75, 0.25]
    """
    if not 0 < temperature < math.inf:
        raise BadInput("temperature must be above 0", "temperature", temperature, "write temperature=1.5")
    return (_logs(probabilities) / temperature).softmax(-1)


def fit_temperature(probabilities: Tensor, labels: Tensor) -> float:
    """The temperature of least log loss, between 1/20 and 20.

    Not a calibration map per class: one number, which leaves every prediction as it is.
    Reference: Guo et al. (2017); Ashukha et al. (2020) for the mean of several passes.

    Args:
        probabilities: `[n, C]`, of a pass or of the mean over passes.
        labels: Class indices `[n]`.

    Returns:
        The temperature.

    Raises:
        BadInput: Where `probabilities` are none, or labels do not match them.

    Examples:
        >>> sure = torch.tensor([[0.99, 0.01]] * 4)
        >>> round(fit_temperature(sure, torch.tensor([0, 0, 0, 1])), 2)
        4.18
    """
    p, labels = checked_probabilities(probabilities, labels)
    logs = _logs(p)

    def loss(log_t: float) -> float:
        return float(torch.nn.functional.cross_entropy(logs / math.exp(log_t), labels))

    ends = math.log(_LEAST), math.log(_MOST)
    found = optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-5})
    return math.exp(float(found.x))


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(_SMALLEST).log()
