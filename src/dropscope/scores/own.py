"""Scores of a user's own: functions of a ranking, of one at a time or of many at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.checks import finite_number
from dropscope.errors import BadInput, DropscopeError, Phrase, first_line

_REMEDY = "write a function of (uncertainty[n], correct[n]) that returns a number"


def is_batched(function: Callable[..., Any], name: str) -> bool:
    """Whether a function scores two rankings at once as it scores each by itself.

    Raises:
        BadInput: Where it does not score one ranking.
    """
    uncertainty = (1.7 * torch.arange(24.0)).sin().abs().reshape(2, 12)
    correct = (2.3 * torch.arange(24.0)).sin().reshape(2, 12) > -0.5
    each = torch.stack([_one(function, name, *pair) for pair in zip(uncertainty, correct, strict=True)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            both = function(uncertainty, correct)
    except Exception:  # it takes one at a time
        return False
    alike = isinstance(both, Tensor) and both.shape == (2,)
    return alike and torch.allclose(both.double(), each, equal_nan=True)


def score_rankings(
    function: Callable[..., Any], name: str, uncertainty: Tensor, correct: Tensor, *, batched: bool
) -> Tensor:
    """The score of each ranking: `uncertainty` and `correct` are `[..., n]`, the result `[...]`, float64.

    NaN stands for a score that is not defined, as where no example is wrong.
    """
    lead, n = uncertainty.shape[:-1], uncertainty.shape[-1]
    u, c = uncertainty.detach().cpu().reshape(-1, n), correct.cpu().expand(uncertainty.shape).reshape(-1, n)
    if not batched:
        return torch.stack([_one(function, name, *pair) for pair in zip(u, c, strict=True)]).reshape(lead)
    found = _called(function, name, u, c)
    if not isinstance(found, Tensor) or found.shape != (len(u),):
        got = Phrase(f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__)
        raise BadInput(f"score {name!r} must return a number per ranking, shape {(len(u),)}", "scores", got, _REMEDY)
    return found.detach().double().reshape(lead)


def _one(function: Callable[..., Any], name: str, uncertainty: Tensor, correct: Tensor) -> Tensor:
    found = _called(function, name, uncertainty, correct)
    single = found.item() if isinstance(found, Tensor | np.generic | np.ndarray) and _is_single(found) else found
    if finite_number(single) is None and not (isinstance(single, float) and single != single):
        got = Phrase(f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)[:80])
        raise BadInput(f"score {name!r} must return one number for a ranking", "scores", got, _REMEDY)
    return torch.tensor(float(single), dtype=torch.float64)


def _is_single(found: Tensor | np.generic | np.ndarray) -> bool:
    return (found.numel() if isinstance(found, Tensor) else found.size) == 1


def _called(function: Callable[..., Any], name: str, uncertainty: Tensor, correct: Tensor) -> Any:
    try:
        return function(uncertainty, correct)
    except DropscopeError:
        raise
    except Exception as error:
        received = Phrase(f"{type(error).__name__}: {first_line(error)}")
        raise BadInput(f"score {name!r} must take uncertainty and correct", "scores", received, _REMEDY) from error
