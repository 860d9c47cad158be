"""Deferred noise: dropout, the sum it flows into and the layer norm of that sum, in one trip through memory.

Only a dropout that was seen to flow into a sum and straight on into a layer norm is deferred (see `recorder.Chains`).
A deferred value has its shape and memory, but is written only when a function or a returning module needs it. Code that
reads tensors without torch's knowledge would not be noticed, so noise waits only in models whose code is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dropscope.noise import noise_kernels
from dropscope.tracing import ABOUT_VALUES, NORM_FUNCTIONS, SUM_FUNCTIONS

_MARK = "_dropscope_deferred"


@dataclass(frozen=True, eq=False)
class DeferredNoise:
    """`noise(value)`, or `noise(value) + other`; `key`, `rate` and `stratified` are what the kernels take."""

    value: Tensor
    key: tuple[int, Tensor, Tensor]
    rate: float
    stratified: bool
    other: Tensor | None = None


class Ledger:
    """The values of a forward that are deferred at the moment."""

    def __init__(self) -> None:
        self._open: list[weakref.ref[Tensor]] = []

    def defer(self, deferred: DeferredNoise) -> Tensor:
        """A tensor that holds the value by the time it is read."""
        out = torch.empty_like(deferred.value)
        setattr(out, _MARK, deferred)
        self._open.append(weakref.ref(out))
        return out

    def settle(self) -> None:
        """Writes every deferred value that is still referenced."""
        if not self._open:
            return
        kernels = noise_kernels()
        held, self._open = [ref() for ref in self._open], []
        for value in held:
            deferred = _deferred(value)
            if value is not None and deferred is not None:
                delattr(value, _MARK)
                noise = deferred.value, *deferred.key, deferred.rate
                kernels.bernoulli(*noise, deferred.other, value, stratified=deferred.stratified)

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        """What to call in the place of `func`: the next step of a chain; otherwise `func`, with every value written."""
        if not self._open or func in ABOUT_VALUES:
            return func
        if func in SUM_FUNCTIONS and not kwargs and _addable(args):
            return self._add
        if func in NORM_FUNCTIONS and _normable(*args, **kwargs):
            return _layer_norm
        self.settle()
        return func

    def _add(self, one: Tensor, other: Tensor) -> Tensor:
        deferred = _deferred(one)
        if deferred is None:
            one, other, deferred = other, one, _deferred(other)
        if deferred is None:  # other noise was put there meanwhile
            return one + other
        return self.defer(replace(deferred, other=other))


def _layer_norm(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any, **__: Any
) -> Tensor:
    deferred = _deferred(input)
    assert deferred is not None
    assert deferred.other is not None
    noise = deferred.value, *deferred.key, deferred.rate
    return noise_kernels().normed(*noise, deferred.other, weight, bias, float(eps), stratified=deferred.stratified)


def _normable(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any, **__: Any
) -> bool:
    """Whether the kernel has this norm: of a deferred sum, over the last dimension, with weight and bias."""
    deferred = _deferred(input)
    affine = all(isinstance(one, Tensor) and one.is_contiguous() for one in (weight, bias))
    if deferred is None or deferred.other is None or not affine or len(normalized_shape) != 1:
        return False
    return weight.numel() <= noise_kernels().NORMED and weight.device == bias.device == input.device


def _addable(args: Any) -> bool:
    """Whether a sum is one of deferred noise and a written value of the same shape, type and device."""
    deferred = [noise for noise in map(_deferred, args) if noise is not None]
    if (
        len(args) != 2
        or len(deferred) != 1
        or deferred[0].other is not None
        or not all(isinstance(v, Tensor) for v in args)
    ):
        return False
    one, other = args
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and one.is_contiguous() and other.is_contiguous()


def _deferred(value: Any) -> DeferredNoise | None:
    return getattr(value, _MARK, None)
