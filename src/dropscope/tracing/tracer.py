"""Tracer of one forward: it shows every value that has a name to a visitor, which may replace it.

Module hooks track the path; a TorchFunctionMode, thread-local and active inside the forward alone, sees functions. All
else is done by visitors, so names cannot differ. The model's own dropout is off unless the visitor lets it run.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dropscope.model import OURS, Call, main_tensor, replace_tensor, runs_fused, tensors
from dropscope.tracing import attention, modules
from dropscope.tracing.modules import ROOT, TracedModule
from dropscope.tracing.provenance import Tag, Tags, passes_norm, residual_branch, survives
from dropscope.tracing.visitor import About, OwnDropout, Point, Visitor


@contextmanager
def trace(model: nn.Module, visitor: Visitor, alone: Callable[[str], bool] | None = None) -> Iterator[None]:
    """Traces forwards of `model` on this thread while open. Afterwards every hook is gone, also after an exception.

    A submodule that is called by itself is no forward of the model: `alone` gets its path, and says whether to trace
    it. If not, or without `alone`, it runs as it is.
    """
    current: list[Tracer] = []
    handles = []
    try:
        for name, module in model.named_modules():
            if "parametrizations" in name.split("."):
                continue  # computes a weight when it is read, not in the forward
            entered = TracedModule.of(name or ROOT, module)
            start, end = _entry_hook(entered, visitor, current, alone), _exit_hook(entered, visitor, current)
            handles.append(module.register_forward_pre_hook(start, prepend=True, with_kwargs=True))
            handles.append(module.register_forward_hook(end, with_kwargs=True, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for tracer in current:
            tracer.__exit__(None, None, None)
        visitor.settle()


def _entry_hook(
    entered: TracedModule, visitor: Visitor, current: list[Tracer], alone: Callable[[str], bool] | None
) -> Callable[..., Any]:
    """Starts a tracer where the model itself is called; `current` holds it until the forward is over."""
    path, thread = entered.path, threading.get_ident()

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != thread:
            return None
        if path == ROOT and current and not _is_running(current[0].caller):
            current.pop().__exit__(None, None, None)  # interrupted: torch calls no hooks then
        if not current:
            if path == ROOT:
                visitor.begin(Call(args, kwargs))
            elif alone is None or not alone(path):
                return None
            current.append(Tracer(visitor, sys._getframe(1)))
            current[0].start(Call(args, kwargs))
        return current[0].enter(entered, args, kwargs)

    setattr(hook, OURS, True)
    return hook


def _exit_hook(entered: TracedModule, visitor: Visitor, current: list[Tracer]) -> Callable[..., Any]:
    """Ends the tracer where the model itself returns."""
    thread = threading.get_ident()

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not current or threading.get_ident() != thread or not current[0].inside(entered):
            return None
        try:
            return current[0].leave(entered, output)
        finally:
            if current[0].finished:
                current.pop().__exit__(None, None, None)
                visitor.settle()

    setattr(hook, OURS, True)
    return hook


class Tracer(TorchFunctionMode):
    """One forward: the module stack, the call counts and the tags."""

    def __init__(self, visitor: Visitor, caller: FrameType) -> None:
        super().__init__()
        self.caller = caller  # what called the model
        self._visitor = visitor
        self._tags = Tags()
        self._stack: list[OpenCall] = []
        self._calls: Counter[tuple[str, str]] = Counter()
        self._in_activation = 0

    # --- modules ----------------------------------------------------------------------------------------------------

    def start(self, call: Call) -> None:
        for value in call.tensors:
            self._tags.make(value, [])
        self.__enter__()

    def inside(self, entered: TracedModule) -> bool:
        return bool(self._stack) and self._stack[-1].entered is entered

    @property
    def finished(self) -> bool:
        return not self._stack

    def enter(self, entered: TracedModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = next(iter(tensors((args, kwargs))), None)
        before = self._tags.get(first)
        call = self._count(entered.path, "module")
        self._stack.append(OpenCall(entered, call, first, before))
        if entered.composite:
            self._in_activation += 1
            if first is None or before is None or before.origin is None:
                return None
            shown = self._show(Point(*before.origin, "before_activation"), first, "activation")
        elif entered.whole or first is None or entered.kind in ("norm", "activation", "dropout"):
            return None
        else:
            point = Point(entered.path, call, "input")
            if not self._visitor.wants(point) or not first.is_floating_point():
                return None
            shown = self._show(point, first, entered.kind)
        return None if shown is first else replace_tensor((args, kwargs), first, shown)

    def leave(self, entered: TracedModule, output: Any) -> Any:
        opened = self._stack.pop()
        path, module, kind = entered.path, entered.module, entered.kind
        self._in_activation -= entered.composite
        if kind not in ("dropout", "norm"):
            self._visitor.settle()
        value = main_tensor(output)
        if entered.whole or value is None or not value.is_floating_point():
            return output
        parents = [tag for tag in (self._tags.get(value), opened.before) if tag is not None]
        shown = value
        if entered.composite and opened.before is not None:
            shown = self._activated(shown, opened.before, "", in_place=False)
        elif kind in modules.LAYERS:
            fan_in, fan_out = modules.widths(module)
            if opened.before is not None and opened.before.hidden and opened.before.hidden == fan_out:
                kind = "ffn"  # linear → activation → linear that returns to the width it came from
            self._tags.make_layer_output(shown, opened.before, (path, opened.call), kind, fan_in)
        elif kind == "norm" and opened.before is not None:
            self._tags.make(shown, parents, **passes_norm(opened.before))
        if kind == "dropout":
            if modules.is_foreign_dropout(module) and not opened.dropped:
                shown = self._foreign_dropout(path, opened, shown)
        else:
            shown = self._show(Point(path, opened.call, "output"), shown, kind)
        return output if shown is value else replace_tensor(output, value, shown)

    # --- showing values ---------------------------------------------------------------------------------------------

    def _count(self, name: str, family: str) -> int:
        call = self._calls[name, family]
        self._calls[name, family] = call + 1
        return call

    def _show(
        self, point: Point, value: Tensor, kind: str, *, in_place: bool = False, homogeneous: bool = False
    ) -> Tensor:
        if not self._visitor.wants(point):
            return value
        tag = self._tags.get(value) or Tag()
        about = About(kind, tag.maps, homogeneous, tag.origin, tag.hidden > 0, tag.depth, in_place)
        shown = self._visitor.visit(point, value, about)
        if shown is value:
            return value
        if in_place:
            # The operation writes into its operand, so the noise does too: others may hold that tensor.
            shown = self._visitor.before(Tensor.copy_, (value, shown), {})(value, shown)
        self._tags.set(shown, tag)
        return shown

    # --- functions --------------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "") or ""
        if name in modules.QUESTIONS:
            return func(*args, **kwargs)
        func = self._visitor.before(func, args, kwargs)
        if not self._stack:
            return func(*args, **kwargs)
        if name in modules.DROPOUTS:
            return self._dropout_function(func, name, args, kwargs)
        if name == "scaled_dot_product_attention":
            return self._sdpa(func, args, kwargs)
        if name == "multi_head_attention_forward":
            return self._mha(func, args, kwargs)
        if name in modules.ADDS and not self._in_activation:
            return self._add(func, name, args, kwargs)
        if name in modules.ACTIVATIONS and not self._in_activation and args:
            return self._activation(func, name, args, kwargs)
        if name in modules.LINEARS and modules.layer_kind(self._stack[-1].entered.module) is None:
            return self._functional_layer(func, name, args, kwargs)
        if name in modules.PRODUCTS:
            args = self._attention_product(args)
        return self._called(func, name, args, kwargs)

    def _called(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """The function as it is, its outputs tagged."""
        parents = self._tags.of(args, kwargs)
        output = func(*args, **kwargs)
        if parents:
            known = survives(name, parents, lambda: self._path_around(nn.Softmax))
            for value in tensors(output):
                self._tags.make(value, parents, shortcut=name in modules.SHORTCUTS, **known)
        return output

    def _path_around(self, leaf: type[nn.Module]) -> str:
        """The path of the module we are in, looking through modules that only wrap a function."""
        around = (opened.entered for opened in reversed(self._stack))
        return next((entered.path for entered in around if not isinstance(entered.module, leaf)), ROOT)

    def _functional_layer(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        value = args[0] if args else kwargs["input"]
        site, kind = f"{self._stack[-1].entered.path}:{name}", "linear" if name == "linear" else "conv"
        call = self._count(site, "module")
        before = self._tags.get(value)
        value = self._show(Point(site, call, "input"), value, kind)
        output = func(value, *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        if kind == "linear" and before is not None and before.hidden and before.hidden == weight.shape[0]:
            kind = "ffn"
        self._tags.make_layer_output(output, before, (site, call), kind, weight.shape[-1] if kind != "conv" else 0)
        return self._show(Point(site, call, "output"), output, kind)

    # --- activations ------------------------------------------------------------------------------------------------

    def _activation(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        value, tag = args[0], self._tags.get(args[0])
        in_place = name.endswith("_") or kwargs.get("inplace") is True or any(a is True for a in args[1:])
        homogeneous = name in modules.HOMOGENEOUS
        if tag is not None and tag.origin is not None:
            point = Point(*tag.origin, "before_activation")
            value = self._show(point, value, "activation", in_place=in_place, homogeneous=homogeneous)
        output = func(value, *args[1:], **kwargs)
        return output if tag is None else self._activated(output, tag, name, in_place=in_place)

    def _activated(self, output: Tensor, tag: Tag, name: str, *, in_place: bool) -> Tensor:
        """The value after an activation; `name` is empty where a whole module is the activation."""
        self._tags.make(output, [tag], hidden=tag.fan_in, maps=tag.maps)
        if tag.origin is not None:
            point = Point(*tag.origin, "after_activation")
            homogeneous = name in modules.HOMOGENEOUS
            return self._show(point, output, "activation", in_place=in_place, homogeneous=homogeneous)
        if name and self._stack[-1].entered.kind != "activation":
            site = f"{self._stack[-1].entered.path}:{name.rstrip('_')}"
            point = Point(site, self._count(site, "module"), "output")
            return self._show(point, output, "activation", in_place=in_place)
        return output  # an activation module of its own: shown as that module's output

    # --- residual sums ----------------------------------------------------------------------------------------------

    def _add(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        tags = [tag for tag in map(self._tags.get, args[:2]) if tag is not None]
        branch = None
        # Ranks first: to compare a symbolic batch with another dimension would pin it while the model is exported.
        if len(tags) == 2 and args[0].dim() == args[1].dim() and args[0].shape == args[1].shape:
            branch = residual_branch(tags[0], tags[1])
        if branch is None:
            return self._called(func, name, args, kwargs)
        path = self._stack[-1].entered.path
        call = self._count(path, "residual")
        in_place = name in ("add_", "__iadd__")
        operands = list(args)
        point, written = Point(path, call, "branch"), in_place and branch == 0
        operands[branch] = self._show(point, args[branch], "residual", in_place=written)
        output = func(*operands, **kwargs)
        self._tags.make(output, tags, origin=(path, call), source=tags[1 - branch].shallow)
        return self._show(Point(path, call, "sum"), output, "residual", in_place=in_place)

    # --- attention --------------------------------------------------------------------------------------------------

    def _attention_product(self, args: Any) -> Any:
        """Shows softmax weights at the moment they weigh values: only then are they attention."""
        for value in tensors(args):
            tag = self._tags.get(value)
            if tag is not None and tag.attention is not None:
                point = Point(tag.attention, self._count(tag.attention, "attention"), "weights")
                shown = self._show(point, value, "attention")
                return args if shown is value else replace_tensor(args, value, shown)
        return args

    def _sdpa(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        call = attention.sdpa_arguments(args, kwargs)
        point, runs = self._attention_call(call["dropout_p"], lambda: attention.sdpa_dropped(func, call))
        if runs or not self._visitor.wants(point):
            return self._called(func, "sdpa", (), call if runs else {**call, "dropout_p": 0.0})
        parents = self._tags.of(call)
        output = self._visitor.attend(point, call)
        if output is None:
            output = attention.sdpa(call, lambda weights: self._show(point, weights, "attention"))
        self._tags.make(output, parents)
        return output

    def _mha(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        call = attention.mha_arguments(args, kwargs)
        call["training"] = call["training"] and not self._fused()
        rate, training = call["dropout_p"], call["training"]
        point, runs = self._attention_call(rate, lambda: attention.mha_dropped(func, call), training=training)
        parents = self._tags.of(call["query"], call["key"], call["value"])
        if runs:
            output = func(**call)
        elif not self._visitor.wants(point):
            output = func(**{**call, "dropout_p": 0.0, "training": False})
        else:
            output = attention.mha(call, lambda weights: self._show(point, weights, "attention"))
        self._tags.make(output[0], parents, depth=max((tag.depth for tag in parents), default=0) + 1)
        return output

    def _attention_call(self, rate: float, dropped: attention.Dropped, *, training: bool = True) -> tuple[Point, bool]:
        """The point of an attention's weights, and whether its own dropout runs."""
        path = self._stack[-1].entered.path
        point = Point(path, self._count(path, "attention"), "weights")
        dropout = OwnDropout(point, float(rate), "element", "bernoulli", training)
        runs = self._visitor.own_dropout(dropout)
        if runs and training and rate > 0:
            self._visitor.own_ran(dropout, *dropped())
        return point, runs

    # --- the model's own dropout ------------------------------------------------------------------------------------

    def _dropout_function(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        value = args[0] if args else kwargs["input"]
        rate = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
        in_place = name.endswith("_") or kwargs.get("inplace", args[3] if len(args) > 3 else False) is True
        opened = self._stack[-1]
        opened.dropped = True
        site = opened.entered.path if opened.entered.kind == "dropout" else f"{opened.entered.path}:{name.rstrip('_')}"
        skipped = self._fused()
        noise = "alpha" if "alpha" in name else "bernoulli"
        point, kept = self._dropout_point(site, value)
        dropout = OwnDropout(point, float(rate), modules.DROPOUTS[name], noise, bool(training) and not skipped)
        if not self._visitor.own_dropout(dropout):
            return value if kept else self._show(point, value, "dropout", in_place=in_place)
        if skipped:
            return value
        before = value.clone() if in_place else value
        after = self._called(func, "to", args, kwargs)  # transparent: what is known of the value still holds
        self._visitor.own_ran(dropout, before, after)
        return after

    def _fused(self) -> bool:
        """Whether we are in a layer that torch would run without its dropout if it were not traced."""
        return any(runs_fused(opened.entered.module) for opened in self._stack)

    def _foreign_dropout(self, site: str, opened: OpenCall, value: Tensor) -> Tensor:
        """A dropout class that torch does not know: it has already run, or did nothing in eval mode."""
        rate, mask = modules.dropout_rate(opened.entered.module) or 0.0, modules.foreign_mask(opened.entered.module)
        point, kept = self._dropout_point(site, value)
        dropout = OwnDropout(point, rate, mask, "bernoulli", opened.entered.module.training)
        if self._visitor.own_dropout(dropout):
            if opened.input is not None:
                self._visitor.own_ran(dropout, opened.input, value)
            return value
        return value if kept else self._show(point, value, "dropout")

    def _dropout_point(self, site: str, value: Tensor) -> tuple[Point, bool]:
        """The point of a dropout, and whether it is an attention's: that has one name under eager and sdpa."""
        tag = self._tags.get(value)
        if tag is not None and tag.attention is not None:
            return Point(tag.attention, self._calls[tag.attention, "attention"], "weights"), True
        return Point(site, self._count(site, "module" if ":" in site else "dropout"), "output"), False


def _is_running(frame: FrameType) -> bool:
    here: FrameType | None = sys._getframe(1)
    while here is not None and here is not frame:
        here = here.f_back
    return here is not None


@dataclass
class OpenCall:
    """A call of a module that has not returned yet."""

    entered: TracedModule
    call: int
    input: Tensor | None
    before: Tag | None
    dropped: bool = False  # a dropout function was called in it
