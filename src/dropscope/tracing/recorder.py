"""Records of one forward: every value that a model computes, in eval mode or as its training would call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.model import Call
from dropscope.tracing import modules
from dropscope.tracing.draws import Draw, draws_of
from dropscope.tracing.tracer import trace
from dropscope.tracing.visitor import About, OwnDropout, Point, Visitor

SUM_FUNCTIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
NORM_FUNCTIONS = {torch.layer_norm, F.layer_norm}
# These ask about a tensor, not about its content (nor do `modules.QUESTIONS`, which no visitor sees).
ABOUT_VALUES = {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")
}
LAYERDROP = ("layerdrop", "layer_drop", "encoder_layerdrop", "decoder_layerdrop")


def is_rate(holder: object, name: str) -> bool:
    """Whether an attribute is there and holds a rate above 0."""
    value = getattr(holder, name, None)
    return isinstance(value, float) and value > 0


class Recorder(Visitor):
    """A visitor that records what it sees and changes nothing.

    Attributes:
        abouts: What is known of each value.
        shapes: The shape of each value.
        own: The model's own dropouts, as they were called.
        lost: Dropouts on attention weights that no product took, so that the next one has their point.
        draws: What drew random numbers although no dropout ran; recorded in train mode.
        kept: Copies of the values at the points `keep`.
        keep: The points whose values are copied.
        called: Paths of the modules that were called.
        output: What the model returned.
        chains: The dropouts that flow into a sum and a layer norm.
    """

    def __init__(self) -> None:
        self.abouts: dict[Point, About] = {}
        self.shapes: dict[Point, tuple[int, ...]] = {}
        self.own: dict[Point, OwnDropout] = {}
        self.lost: list[OwnDropout] = []
        self.draws: list[Draw] = []
        self.kept: dict[Point, Tensor] = {}
        self.keep: frozenset[Point] = frozenset()
        self.called: set[str] = set()
        self.output: Any = None
        self.chains = Chains()

    def begin(self, call: Call) -> None:
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

    def own_dropout(self, dropout: OwnDropout) -> bool:
        if dropout.point in self.own:
            self.lost.append(self.own[dropout.point])
        self.own[dropout.point] = dropout
        return False


def record(shadow: nn.Module, call: Call, size: int, keep: frozenset[Point] = frozenset(), first: int = 0) -> Recorder:
    """A record of a forward of `size` examples from number `first` on, with the values at the points `keep`."""
    recorder = Recorder()
    recorder.keep = keep
    batch = call.take([(first + i) % call.examples for i in range(size)])
    hooks = [
        module.register_forward_hook(lambda *_, name=name: recorder.called.add(name))
        for name, module in shadow.named_modules()
    ]
    try:
        with trace(shadow, recorder):
            recorder.output = batch.run(shadow)
    finally:
        for hook in hooks:
            hook.remove()
    return recorder


def record_training(shadow: nn.Module, call: Call) -> Recorder:
    """A record of a forward in train mode: dropout is recorded, not applied; BatchNorm and LayerDrop are off."""
    shadow.train()
    for module in shadow.modules():
        if modules.keeps_running_statistics(module) or modules.is_foreign_dropout(module):
            module.training = False
    config: Any = getattr(shadow, "config", None)
    holders = (*shadow.modules(), config)
    switched = [
        (holder, name, getattr(holder, name)) for holder in holders for name in LAYERDROP if is_rate(holder, name)
    ]
    spec_augment = getattr(config, "apply_spec_augment", None)
    try:
        for holder, name, _ in switched:
            setattr(holder, name, 0.0)
        if spec_augment:
            config.apply_spec_augment = False
        recorder, draws = draws_of(shadow, lambda: record(shadow, call, 2))
        recorder.draws = draws
    finally:
        shadow.eval()
        for holder, name, value in switched:
            setattr(holder, name, value)
        if spec_augment:
            config.apply_spec_augment = spec_augment
    return recorder


class Chains:
    """The dropouts that flow into a sum and a layer norm, collected from what a tracer shows and calls.

    Attributes:
        points: The dropouts of complete chains.
    """

    def __init__(self) -> None:
        self.points: set[Point] = set()
        self._dropped: tuple[Point, Tensor] | None = None
        self._summed: Point | None = None

    def dropped(self, point: Point, value: Tensor) -> None:
        self._dropped, self._summed = (point, value), None

    def called(self, func: Any, args: Any) -> None:
        if func in ABOUT_VALUES:
            return
        if self._summed is not None and func in NORM_FUNCTIONS:
            self.points.add(self._summed)
        dropped, self._dropped, self._summed = self._dropped, None, None
        if dropped is not None and func in SUM_FUNCTIONS and any(value is dropped[1] for value in args[:2]):
            self._summed = dropped[0]
