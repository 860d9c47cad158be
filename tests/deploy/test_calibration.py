"""P(error): strictly rising, near the truth, and defined everywhere."""

import numpy as np

from dropscope.deploy.calibration import ErrorCurve
from support.planted_errors import draw


def test_ranks_do_not_change():
    u, right = draw(np.random.default_rng(0), 500)
    curve = ErrorCurve.fit(np.round(u, 2), right)
    new = np.sort(np.random.default_rng(1).normal(0.5, 1, 5000))
    assert (np.diff(curve(new)) > 0).all()
    assert 0 < curve(-1e9) < curve(1e9) < 1


def test_probabilities_are_near_the_truth():
    u, right = draw(np.random.default_rng(0), 3000)
    new = np.linspace(0.05, 0.95, 50)
    assert np.abs(ErrorCurve.fit(u, right)(new) - new**2).mean() < 0.03


def test_one_value_and_nan():
    curve = ErrorCurve.fit(np.zeros(10), np.arange(10) > 1)
    assert abs(float(curve(0.0)) - 0.2) < 0.01
    assert np.isnan(curve(float("nan")))
