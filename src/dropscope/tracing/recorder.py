"""What a walk shows, written down: a model run once as it is, in eval or as its training would call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.model import copied, count_examples, take
from dropscope.tracing import modules
from dropscope.tracing.tracer import walking
from dropscope.tracing.visitor import About, OwnDropout, Point, Visitor

SUM_FUNCTIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
NORM_FUNCTIONS = {torch.layer_norm, F.layer_norm}
# Asked of a value, these say nothing about what is in it (nor do `recognise.QUESTIONS`, of which a walk tells nobody).
ABOUT_VALUES = {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")
}
LAYERDROP = ("layerdrop", "layer_drop", "encoder_layerdrop", "decoder_layerdrop")


def is_rate(holder: object, name: str) -> bool:
    value = getattr(holder, name, None)
    return isinstance(value, float) and value > 0


class Recorder(Visitor):
    """A visitor that writes down what it is shown and changes nothing."""

    def __init__(self) -> None:
        self.abouts: dict[Point, About] = {}
        self.shapes: dict[Point, tuple[int, ...]] = {}
        self.own: dict[Point, OwnDropout] = {}
        self.kept: dict[Point, Tensor] = {}
        self.keep: frozenset[Point] = frozenset()
        self.called: set[str] = set()
        self.output: Any = None
        self.chains = Chains()

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def wants(self, point: Point) -> bool:
        return True

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        self.abouts[point], self.shapes[point] = about, tuple(value.shape)
        if point in self.keep:
            self.kept[point] = value.clone()
        if about.kind == "dropout":
            self.chains.dropped(point, value)
        return value

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        self.chains.called(func, args)
        return func

    def own_dropout(self, found: OwnDropout) -> bool:
        self.own[found.point] = found
        return False


def run(
    twin: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: int,
    keep: frozenset[Point] = frozenset(),
    first: int = 0,
) -> Recorder:
    recorder = Recorder()
    recorder.keep = keep
    indices = [(first + i) % count_examples(args, kwargs) for i in range(size)]
    some_args, some_kwargs = copied(*take(args, kwargs, indices))
    hooks = [
        module.register_forward_hook(lambda *_, name=name: recorder.called.add(name))
        for name, module in twin.named_modules()
    ]
    try:
        with walking(twin, recorder):
            recorder.output = twin(*some_args, **some_kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return recorder


def train_run(twin: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorder:
    """The model as its training would call it, dropout recorded, not applied, BatchNorm and LayerDrop held still."""
    twin.train()
    for module in twin.modules():
        if modules.keeps_running_statistics(module) or modules.is_foreign_dropout(module):
            module.training = False
    config: Any = getattr(twin, "config", None)
    holders = (*twin.modules(), config)
    switched = [
        (holder, name, getattr(holder, name)) for holder in holders for name in LAYERDROP if is_rate(holder, name)
    ]
    spec_augment = getattr(config, "apply_spec_augment", None)
    try:
        for holder, name, _ in switched:
            setattr(holder, name, 0.0)
        if spec_augment:
            config.apply_spec_augment = False
        recorder = run(twin, args, kwargs, 2)
    finally:
        twin.eval()
        for holder, name, value in switched:
            setattr(holder, name, value)
        if spec_augment:
            config.apply_spec_augment = spec_augment
    return recorder


class Chains:
    """Finds the dropouts that flow into a sum and a layer norm, from what a walk shows and calls."""

    def __init__(self) -> None:
        self.found: set[Point] = set()
        self._dropped: tuple[Point, Tensor] | None = None
        self._summed: Point | None = None

    def dropped(self, point: Point, value: Tensor) -> None:
        self._dropped, self._summed = (point, value), None

    def called(self, func: Any, args: Any) -> None:
        if func in ABOUT_VALUES:
            return
        if self._summed is not None and func in NORM_FUNCTIONS:
            self.found.add(self._summed)
        dropped, self._dropped, self._summed = self._dropped, None, None
        if dropped is not None and func in SUM_FUNCTIONS and any(value is dropped[1] for value in args[:2]):
            self._summed = dropped[0]
