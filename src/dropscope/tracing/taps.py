"""Taps: where the points of a forward lie, so that later forwards reach them without following every value.

A point is the input or output of a module call, or of a function call, counted in the order of the forward. `locate`
finds that once with the tracer; `tapped` then needs hooks on those modules and, for functions, a mode that only counts.
A forward that calls one of them more or less often than the located one is refused: it has to be traced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dropscope.model import OURS, Call, main_tensor, replace_tensor, tensors
from dropscope.tracing import attention
from dropscope.tracing.modules import ROOT
from dropscope.tracing.tracer import trace
from dropscope.tracing.visitor import About, Point, Visitor

_BEFORE = ("input", "before_activation", "branch", "weights")  # positions of what a function is given
_EXPLICIT = {
    "scaled_dot_product_attention": (attention.sdpa_arguments, attention.sdpa),
    "multi_head_attention_forward": (attention.mha_arguments, attention.mha),
}
# torch runs these as one kernel, past our hooks, unless a mode is there or it is told not to.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


class Tap(NamedTuple):
    """Where a point lies: before or after the `call`-th call of a module (its path) or of a function."""

    of: Any
    call: int
    before: bool
    argument: int | str = 0  # of a function, that holds the value
    in_place: bool = False
    explicit: bool = False  # an attention that has to be written out, for its weights


@dataclass(frozen=True)
class Taps:
    """The taps of a model's points, and how often a forward calls everything that has one."""

    found: Mapping[Point, Tap]
    calls: Mapping[Any, int]


class TapsMissed(RuntimeError):
    """A forward did not go as the located one; what it gave must not be used."""


def locate(model: nn.Module, call: Call, points: Collection[Point]) -> Taps | None:
    """The taps of these points, from one traced forward; None where one of them cannot be tapped."""
    locator = _Locator(frozenset(points))
    with trace(model, locator), locator.following(model):
        call.run(model)
    if not locator.sound or set(locator.taps) != set(points):
        return None
    used = {tap.of for tap in locator.taps.values()}
    return Taps(locator.taps, {of: count for of, count in locator.calls.items() if of in used})


class _Locator(Visitor):
    """Notes what was called last whenever a point is shown."""

    def __init__(self, points: frozenset[Point]) -> None:
        self.taps: dict[Point, Tap] = {}
        self.calls: Counter[Any] = Counter()
        self.sound = True
        self._points = points
        self._open: list[tuple[str, int, Tensor | None]] = []
        self._last: tuple[Any, int, bool] = ("", 0, True)  # what was called, which time, whether it is a function
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._shown: list[tuple[Point, Tensor]] = []  # after the last function

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Sees modules begin and return just before the tracer does."""
        handles = []
        for name, module in model.named_modules():
            if "parametrizations" in name.split("."):
                continue
            begin, end = self._hooks(name or ROOT, module)
            handles.append(module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
            handles.append(module.register_forward_hook(end, prepend=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, path: str, module: nn.Module) -> tuple[Callable[..., None], Callable[..., None]]:
        of_torch = type(module).__module__.startswith(("torch.nn.modules.activation", "torch.nn.modules.dropout"))

        def begin(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.sound = self.sound and all(path != other for other, *_ in self._open)
            first = next(iter(tensors((args, kwargs))), None)
            self._open.append((path, self.calls[path], first))
            self.calls[path] += 1
            self._last = (*self._open[-1][:2], False)

        def end(_: nn.Module, args: Any, output: Any) -> None:
            path, call, first = self._open.pop()
            if of_torch and not any(True for _ in module.children()):
                self._widen(Tap(path, call, before=False), main_tensor(output), first)
            self._last = path, call, False
            self._shown = []

        return begin, end

    def _widen(self, tap: Tap, output: Tensor | None, first: Tensor | None) -> None:
        """A module that is one function of torch's is tapped itself: to hook it costs less than to count functions."""
        for point, value in self._shown:
            known = self.taps[point]
            if known.in_place or known.explicit:
                continue
            if value is (first if known.before else output):
                self.taps[point] = tap._replace(before=known.before)

    # --- the visitor ------------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        pass

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        self._last = func, self.calls[func], True
        self.calls[func] += 1
        self._arguments = args, kwargs
        self._shown = []
        return func

    def wants(self, point: Point) -> bool:
        return point in self._points

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        of, call, is_function = self._last
        self.sound = self.sound and point not in self.taps
        if not is_function:
            entering = bool(self._open) and self._open[-1][:2] == (of, call)
            self.taps[point] = Tap(of, call, before=entering)
            return value
        before = point.position in _BEFORE
        args, kwargs = self._arguments
        named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        where = [name for name, argument in named if argument is value]
        explicit = getattr(of, "__name__", "") in _EXPLICIT
        self.sound = self.sound and (not before or explicit or len(where) > 0)
        argument = where[0] if before and where else 0
        self.taps[point] = Tap(of, call, before, argument, about.in_place, explicit)
        self._shown.append((point, value))
        return value


@contextmanager
def tapped(model: nn.Module, visitor: Visitor, taps: Taps, points: Collection[Point]) -> Iterator[None]:
    """Shows these points of every forward to the visitor while open, as `trace` does.

    Raises:
        TapsMissed: From a forward that calls what is tapped more or less often than the one that was located.
    """
    chosen: dict[Any, dict[int, list[tuple[Point, Tap]]]] = {}
    for point in points:
        tap = taps.found[point]
        chosen.setdefault(tap.of, {}).setdefault(tap.call, []).append((point, tap))
    by_path = {of: at for of, at in chosen.items() if isinstance(of, str)}
    functions = {of: at for of, at in chosen.items() if not isinstance(of, str)}
    counts: dict[Any, int] = {}
    fused = any(isinstance(module, _FUSED) for module in model.modules())
    mode = _Functions(visitor, functions, counts) if functions else None
    expected = {of: taps.calls[of] for of in chosen}
    running = ExitStack()  # what is open while a forward runs

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        counts.clear()
        counts.update(dict.fromkeys(expected, 0))
        visitor.begin(Call(args, kwargs))
        if mode is not None:
            running.enter_context(mode)
        elif fused:
            running.enter_context(_part_by_part())

    def end(module: nn.Module, args: Any, output: Any) -> None:
        running.close()
        if output is not None and counts != expected:
            raise TapsMissed

    setattr(begin, OURS, True)
    setattr(end, OURS, True)
    handles = []
    try:
        for name, module in model.named_modules():
            if (name or ROOT) in by_path:
                hooks = _module_hooks(name or ROOT, by_path[name or ROOT], visitor, counts)
                handles.append(module.register_forward_pre_hook(hooks[0], prepend=True, with_kwargs=True))
                handles.append(module.register_forward_hook(hooks[1]))
        handles.append(model.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
        handles.append(model.register_forward_hook(end, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        running.close()  # interrupted: torch calls no hooks then


@contextmanager
def _part_by_part() -> Iterator[None]:
    """Encoder layers call their parts, as they do where a mode is there. The setting is the whole process's."""
    kept = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(kept)


def _module_hooks(
    path: str, at: Mapping[int, list[tuple[Point, Tap]]], visitor: Visitor, counts: dict[Any, int]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    inputs = {call: [point for point, tap in here if tap.before] for call, here in at.items()}
    outputs = {call: [point for point, tap in here if not tap.before] for call, here in at.items()}

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = counts[path]
        counts[path] = call + 1
        points = inputs.get(call)
        if not points:
            return None
        first = next(iter(tensors((args, kwargs))))
        return replace_tensor((args, kwargs), first, _shown(visitor, points, first))

    def end(module: nn.Module, args: Any, output: Any) -> Any:
        points = outputs.get(counts[path] - 1)
        if not points:
            return None
        value = main_tensor(output)
        if value is None:
            raise TapsMissed
        return replace_tensor(output, value, _shown(visitor, points, value))

    setattr(begin, OURS, True)
    setattr(end, OURS, True)
    return begin, end


def _shown(visitor: Visitor, points: list[Point], value: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():  # what noise calls is not counted
        for point in points:
            value = visitor.visit(point, value, About("block"))
    return value


class _Functions(TorchFunctionMode):
    """Counts the functions that have taps, and shows their values."""

    def __init__(
        self,
        visitor: Visitor,
        functions: Mapping[Any, Mapping[int, list[tuple[Point, Tap]]]],
        counts: dict[Any, int],
    ) -> None:
        super().__init__()
        self._visitor, self._functions, self._counts = visitor, functions, counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at = self._functions.get(func)
        if at is None:
            return func(*args, **(kwargs or {}))
        call = self._counts[func]
        self._counts[func] = call + 1
        here = at.get(call)
        if here is None:
            return func(*args, **(kwargs or {}))
        return self._at(func, args, kwargs or {}, here)

    def _at(self, func: Any, args: Any, kwargs: dict[str, Any], here: list[tuple[Point, Tap]]) -> Any:
        for point, tap in here:
            if tap.explicit:
                return self._attention(func, args, kwargs, point)
            if tap.before:
                args, kwargs = self._given(args, kwargs, point, tap)
        output = func(*args, **kwargs)
        for point, tap in here:
            if not tap.before:
                output = self._written(output, point, tap)
        return output

    def _given(self, args: Any, kwargs: dict[str, Any], point: Point, tap: Tap) -> tuple[Any, dict[str, Any]]:
        if isinstance(tap.argument, str):
            return args, {**kwargs, tap.argument: self._written(kwargs[tap.argument], point, tap)}
        parts = list(args)
        parts[tap.argument] = self._written(parts[tap.argument], point, tap)
        return tuple(parts), kwargs

    def _written(self, value: Tensor, point: Point, tap: Tap) -> Tensor:
        shown = self._visitor.visit(point, value, About("block"))
        return value.copy_(shown) if tap.in_place and shown is not value else shown

    def _attention(self, func: Any, args: Any, kwargs: dict[str, Any], point: Point) -> Any:
        name = func.__name__
        arguments, run = _EXPLICIT[name]
        call = arguments(args, kwargs)
        if name == "scaled_dot_product_attention":
            output = self._visitor.attend(point, call)
            if output is not None:
                return output
        return run(call, lambda weights: self._visitor.visit(point, weights, About("attention")))
