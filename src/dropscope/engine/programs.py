"""Exported programs: a model as torch.export sees it, with a mark on every value that may get noise.

Owns one export: what the model is called with, which dimension is symbolic, what its code reads from tensors, and how
what it returns is taken apart and put together again. See `graph` for which exports are tried.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dropscope.engine.writes import without_writes
from dropscope.model import Call, map_tensors, random_state_kept
from dropscope.tracing import About, Point, Visitor, trace

EXAMPLES = 3  # in an exported batch: 0 and 1 are special to torch's shapes, and no small kernel size is 3 by rule
_PLACE = torch.empty(0)  # stands for a tensor in the template of an output
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")
_LOUD = ("torch.fx.experimental.symbolic_shapes", "torch.export", "torch._export", "torch._dynamo")


@torch.library.custom_op("dropscope::site", mutates_args=())
def mark(value: Tensor, index: int) -> Tensor:
    """Marks a value in an exported graph; never executed."""
    return value.clone()


@mark.register_fake
def _(value: Tensor, index: int) -> Tensor:
    return torch.empty_like(value)


@dataclass(frozen=True, eq=False)
class Exported:
    """One program. It returns the tensors of the model's output, then those whose values its code read."""

    program: torch.export.ExportedProgram
    rebuilt: Callable[[Sequence[Any]], Any]  # from the tensors of an output to the output
    read: tuple[Any, ...]  # what the code got for the last outputs


def export(
    model: nn.Module, call: Call, wanted: Sequence[Point], batch: Any, examples: int = EXAMPLES, *, reads: bool = False
) -> Exported:
    """The program of a model for so many examples of a call.

    Args:
        model: A shadow in eval mode.
        call: Inputs; its examples are repeated where there are too few.
        wanted: The points to mark, by number.
        batch: What torch.export is told of the number of examples; None for a constant.
        examples: How many.
        reads: Whether the code reads numbers from tensors: it gets those of these examples.
    """
    few = call.take([i % call.examples for i in range(examples)])
    shapes = [{0: batch} if t.dim() > 0 and t.shape[0] == call.examples else None for t in call.tensors]
    replay: _Replay | None = None
    with torch.no_grad(), random_state_kept():
        if reads:
            with _Reading() as reading, trace(model, _Marker(())):  # traced as below: torch has faster ways otherwise
                few.run(model)
            replay = _Replay(reading.known)
        template: list[Any] = []

        def run(inner: nn.Module, feeds: list[Tensor]) -> tuple[Tensor, ...]:
            given = iter(feeds)
            fed = few.map(lambda _: next(given))
            with replay or contextlib.nullcontext():
                output = inner(*fed.args, **fed.kwargs)
            leaves: list[Tensor] = []

            def place(leaf: Tensor) -> Tensor:
                leaves.append(leaf)
                return _PLACE

            template[:] = [map_tensors(output, place)]
            return (*leaves, *(replay.values if replay else ()))

        with warnings.catch_warnings(), _quiet(), trace(model, _Marker(wanted)):
            warnings.simplefilter("ignore")
            dynamic = None if batch is None else (shapes,)
            program = torch.export.export(_Call(model, run), (few.tensors,), dynamic_shapes=dynamic, strict=False)
            program = without_writes(program)

    def rebuilt(values: Sequence[Any]) -> Any:
        given = iter(values)
        return map_tensors(template[0], lambda _: next(given))

    return Exported(program, rebuilt, tuple(replay.numbers) if replay else ())


class _Call(nn.Module):
    """The model under one calling convention: a list of tensors."""

    def __init__(self, model: nn.Module, run: Callable[[nn.Module, list[Tensor]], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self._run = run

    def forward(self, feeds: list[Tensor]) -> tuple[Tensor, ...]:
        return self._run(self.model, feeds)


class _Marker(Visitor):
    """The visitor that marks."""

    def __init__(self, wanted: Sequence[Point]) -> None:
        self._index = {point: i for i, point in enumerate(wanted)}

    def begin(self, call: Call) -> None:
        pass

    def wants(self, point: Point) -> bool:
        return point in self._index

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        return mark(value, self._index[point])


class _Reading(TorchFunctionMode):
    """Notes every number that code reads from a tensor, by the line that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.known: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _READS:
            self.known[_reading_line()].append(result)
        return result


class _Replay(TorchFunctionMode):
    """Gives code that reads from tensors without values the numbers that its lines read before.

    Lines that do not run while a model is exported are left out. A wrong number would not go unnoticed: what was read
    is compared with what is there whenever the graph runs.
    """

    def __init__(self, known: Mapping[tuple[str, int], Sequence[Any]]) -> None:
        super().__init__()
        self._left = {line: iter(numbers) for line, numbers in known.items()}
        self.values: list[Tensor] = []
        self.numbers: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _READS:
            return func(*args, **(kwargs or {}))
        file, line = _reading_line()
        for number in self._left.get((file, line), ()):
            self.values.append(args[0])
            self.numbers.append(number)
            return number
        raise RuntimeError(f"{PurePath(file).name}:{line} reads from a tensor while the model is exported only")


def _reading_line() -> tuple[str, int]:
    """The file and line of the model's code that called a function of torch."""
    ours = (__file__, inspect.getfile(trace.__wrapped__))  # type: ignore[attr-defined]
    frame = sys._getframe(1)
    while frame.f_code.co_filename in ours and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch shows whole graphs on the terminal where an export fails; the reason that we give is one line."""
    levels = [(log, log.level) for log in map(logging.getLogger, _LOUD)]
    printing = vars(importlib.import_module("torch.export._trace"))  # it calls `print`
    try:
        printing["print"] = lambda *_, **__: None
        for log, _ in levels:
            log.setLevel(logging.CRITICAL)
        yield
    finally:
        printing.pop("print", None)
        for log, level in levels:
            log.setLevel(level)
