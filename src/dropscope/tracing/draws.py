"""Random draws of one forward: from torch, NumPy and Python, each with the module that makes it.

A draw of torch is an operation that torch itself marks as seeded and that moves a generator. NumPy and Python show only
the state of their global generators, which is compared wherever a module begins or returns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dropscope.model import tensors


@dataclass(frozen=True)
class Draw:
    """Random numbers that a module draws."""

    path: str
    source: str
    single: bool  # one number, as for a decision over a whole layer


Result = TypeVar("Result")


def draws_of(model: nn.Module, forward: Callable[[], Result]) -> tuple[Result, list[Draw]]:
    """What `forward` of the model returns, and its draws, each once. What a tracer keeps from running draws nothing."""
    draws: dict[Draw, None] = {}
    generators = _Generators()
    with _watched(model, draws, lambda: ()):
        result = forward()
    if any(generators.moved()):  # NumPy takes long to say its state: modules are asked only where the answer matters
        with _watched(model, draws, generators.moved):
            result = forward()
    return result, list(draws)


@contextmanager
def _watched(model: nn.Module, draws: dict[Draw, None], moved: Callable[[], Iterable[str]]) -> Iterator[None]:
    paths = [""]

    def add(source: str, *, single: bool) -> None:
        draws[Draw(paths[-1], source, single)] = None

    def enter(path: str) -> None:
        for source in moved():
            add(source, single=False)
        paths.append(path)

    def leave() -> None:
        for source in moved():
            add(source, single=False)
        paths.pop()

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: enter(name)))
        handles.append(module.register_forward_hook(lambda *_: leave(), always_call=True))
    try:
        with _SeededOperations(add):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Generators:
    """The global generators of Python and NumPy."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), _numpy_state()

    def moved(self) -> list[str]:
        """Those that moved since the last question."""
        python, numpy = random.getstate(), _numpy_state()
        moved = ["Python's random"] * (python != self._python) + ["numpy.random"] * (numpy != self._numpy)
        self._python, self._numpy = python, numpy
        return moved


def _numpy_state() -> tuple[Any, ...]:
    state: Any = np.random.get_state()  # noqa: NPY002 - the global state is meant
    _, keys, *rest = state
    return keys.tobytes(), *rest


class _SeededOperations(TorchDispatchMode):
    """Reports every operation that draws from a generator of torch."""

    def __init__(self, add: Callable[..., None]) -> None:
        super().__init__()
        self._add = add

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        before = _torch_states()
        output = func(*args, **kwargs)
        # Some operations are marked that draw only at a rate above 0. A generator of the model's own is not compared.
        if kwargs.get("generator") is not None or any(
            not torch.equal(a, b) for a, b in zip(before, _torch_states(), strict=True)
        ):
            value: Tensor | None = next(iter(tensors(output)), None)
            name = func.name().partition("::")[2].partition(".")[0].rstrip("_")
            self._add(f"torch's {name}", single=value is not None and value.numel() == 1)
        return output


def _torch_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]
