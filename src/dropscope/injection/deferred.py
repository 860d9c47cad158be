"""Noise that is put off until what it flows into is there: noise, sum and layer norm are then one trip through memory.

Owns which noise may wait, and what happens instead. Only a dropout that was seen to flow into a sum and that into a
layer norm, with no other function between, is ever put off (`Chains`, while the model is examined). A value that is
owed has its shape and its memory, but nothing is written yet: it is paid as soon as anything else happens while
somebody holds it, be it a function, or a module that returns. Code that reads tensors behind torch's back (scripted
functions, extensions) would not be noticed, so noise waits only where the caller knows the model's code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dropscope.noise import noise_kernels
from dropscope.tracing import ABOUT_VALUES, NORM_FUNCTIONS, SUM_FUNCTIONS

_MARK = "_dropscope_owed"


@dataclass(frozen=True, eq=False)
class Debt:
    """`noise(value)`, or `noise(value) + other`; `key` and `rate` are what the kernels take."""

    value: Tensor
    key: tuple[int, Tensor, Tensor]
    rate: float
    other: Tensor | None = None


class Ledger:
    """What a forward owes at the moment."""

    def __init__(self) -> None:
        self._open: list[weakref.ref[Tensor]] = []

    def owe(self, debt: Debt) -> Tensor:
        """The value that will be there when it is read."""
        out = torch.empty_like(debt.value)
        setattr(out, _MARK, debt)
        self._open.append(weakref.ref(out))
        return out

    def settle(self) -> None:
        """Pays what somebody still holds."""
        if not self._open:
            return
        kernels = noise_kernels()

        held, self._open = [ref() for ref in self._open], []
        for value in held:
            debt = _debt(value)
            if value is not None and debt is not None:
                delattr(value, _MARK)
                kernels.bernoulli(debt.value, *debt.key, debt.rate, debt.other, value)

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        """What to call in the place of `func`: the next step of a chain, or itself, with everything paid."""
        if not self._open or func in ABOUT_VALUES:
            return func
        if func in SUM_FUNCTIONS and not kwargs and _addable(args):
            return self._add
        if func in NORM_FUNCTIONS and _normable(*args, **kwargs):
            return _layer_norm
        self.settle()
        return func

    def _add(self, one: Tensor, other: Tensor) -> Tensor:
        debt = _debt(one)
        if debt is None:
            one, other, debt = other, one, _debt(other)
        if debt is None:  # other noise was put there meanwhile
            return one + other
        return self.owe(Debt(debt.value, debt.key, debt.rate, other))


def _layer_norm(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any, **__: Any
) -> Tensor:
    kernels = noise_kernels()

    debt = _debt(input)
    assert debt is not None
    assert debt.other is not None
    return kernels.normed(debt.value, *debt.key, debt.rate, debt.other, weight, bias, float(eps))


def _normable(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any, **__: Any
) -> bool:
    """Whether the kernel has this norm: of a sum that is owed, over the last dimension, with weight and bias."""
    kernels = noise_kernels()

    debt = _debt(input)
    affine = all(isinstance(one, Tensor) and one.is_contiguous() for one in (weight, bias))
    if debt is None or debt.other is None or not affine or len(normalized_shape) != 1:
        return False
    return weight.numel() <= kernels.NORMED and weight.device == bias.device == input.device


def _addable(args: Any) -> bool:
    """Whether a sum is one of noise that is owed and another value just like it, which is there."""
    debts = [_debt(value) for value in args]
    due = [debt for debt in debts if debt is not None]
    if len(args) != 2 or len(due) != 1 or due[0].other is not None or not all(isinstance(v, Tensor) for v in args):
        return False
    one, other = args
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and one.is_contiguous() and other.is_contiguous()


def _debt(value: Any) -> Debt | None:
    return getattr(value, _MARK, None)
