"""The loop a good engineer writes: the model in eval mode, torch's own dropout at the same sites, running sums.

Owns the forward hooks that put `F.dropout` (elements) or `F.dropout1d`, `2d`, `3d` (feature maps) where a resolved
placement has its noise, and the sums of the five default measures. Where a layer's noise lies behind the function that
activates it, the hook sits before that function: the same shape, so the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.injection import ResolvedPlacement

Values = dict[str, Tensor]
_FEATURE_MAPS = {3: F.dropout1d, 4: F.dropout2d, 5: F.dropout3d}
_NORMS = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
_ATTENTION_RATES = ("dropout", "attention_dropout", "dropout_prob", "attn_dropout", "dropout_p", "drop_weights")


@dataclass
class HandLoop:
    """Passes over batches under one placement after the other.

    Attributes:
        model: In eval mode, on its device; hooks come and go with every placement.
        batches: Inputs on that device: a tensor, a tuple or a dict each.
        passes: Of every placement.
        probabilities: From an output of the model; softmax of its logits, if None.
        approximate: Sites whose noise had to go somewhere near.
    """

    model: nn.Module
    batches: Sequence[Any]
    passes: int
    probabilities: Callable[[Any], Tensor] | None = None
    approximate: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        with torch.inference_mode():
            self._order = calls_in_order(self.model, self.batches[0])

    def run(self, placements: Sequence[ResolvedPlacement]) -> Values:
        """The five measures of every placement and example."""
        with torch.inference_mode(), torch_attention():
            plain = [self._forward(batch) for batch in self.batches]
            parts = []
            for resolved in placements:
                with self._dropping(resolved):
                    parts += [self._measured(batch, one) for batch, one in zip(self.batches, plain, strict=True)]
        return {name: torch.cat([part[name].flatten() for part in parts]) for name in parts[0]}

    def _measured(self, batch: Any, one: Tensor) -> Values:
        top, at = one.max(1, keepdim=True)
        total = torch.zeros_like(one)
        entropies, highest, squares, apart = (torch.zeros_like(top) for _ in range(4))
        for _ in range(self.passes):
            p = self._forward(batch)
            most = p.amax(1, keepdim=True)
            total += p
            entropies -= torch.xlogy(p, p).sum(1, keepdim=True)
            highest += most
            squares += most.square()
            apart += (p.gather(1, at) - top).square()
        mean = total / self.passes
        entropy, expected = -torch.xlogy(mean, mean).sum(1, keepdim=True), entropies / self.passes
        return {
            "variation_predicted": apart / self.passes,
            "variation_max": squares / self.passes - (highest / self.passes).square(),
            "predictive_entropy": entropy,
            "expected_entropy": expected,
            "bald": entropy - expected,
        }

    def _forward(self, batch: Any) -> Tensor:
        output = called(self.model, batch)
        if self.probabilities is not None:
            return self.probabilities(output).float()
        logits = output if isinstance(output, Tensor) else output["logits"]
        return logits.float().softmax(1)

    @contextmanager
    def _dropping(self, resolved: ResolvedPlacement) -> Iterator[None]:
        with ExitStack() as stack:
            for place, spec in {point.place: (point, spec) for point, spec in resolved.items()}.values():
                drop = _dropout(spec.rate, spec.mask)
                module, exact = _nearest(self.model, place.name)
                if not exact:
                    self.approximate.add(place.name)
                if place.position == "weights":
                    if _attention_drops(module, spec.rate, stack):
                        continue
                    self.approximate.add(place.name)
                if place.position == "input":
                    handle = module.register_forward_pre_hook(_on_first_argument(drop))
                else:
                    activated = place.position == "after_activation"
                    module = _activated(self.model, place.name, self._order) if activated and exact else module
                    handle = module.register_forward_hook(_on_first_output(drop))
                stack.callback(handle.remove)
            yield


def called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


@contextmanager
def torch_attention() -> Iterator[None]:
    """`nn.TransformerEncoderLayer` with its parts called one by one: in one kernel, it drops nothing."""
    kept = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(kept)


def calls_in_order(model: nn.Module, batch: Any) -> list[str]:
    """The modules without children in the order of their calls."""
    order: list[str] = []
    leaves = [(name, module) for name, module in model.named_modules() if not any(True for _ in module.children())]
    handles = [
        module.register_forward_hook(lambda *_, name=name: order.append(name))  # type: ignore[misc]
        for name, module in leaves
    ]
    called(model, batch)
    for handle in handles:
        handle.remove()
    return order


def _activated(model: nn.Module, name: str, order: list[str]) -> nn.Module:
    """The module behind a layer that norms or activates its output, if it is one and no other layer's too."""
    found = name
    if name in order:
        for after in order[order.index(name) + 1 :]:
            module = model.get_submodule(after)
            activation = type(module).__module__.split(".")[-1] in ("activation", "activations")
            if order.count(after) > 1 or not (activation or isinstance(module, _NORMS)):
                break
            found = after
            if activation:
                break
    return model.get_submodule(found)


def _nearest(model: nn.Module, name: str) -> tuple[nn.Module, bool]:
    """The module of this name, or the innermost that holds it; whether it is the very one."""
    parts = name.split(".")
    modules = dict(model.named_modules())
    for length in range(len(parts), 0, -1):
        known = modules.get(".".join(parts[:length]))
        if known is not None:
            return known, length == len(parts)
    return model, False


def _attention_drops(module: nn.Module, rate: float, stack: ExitStack) -> bool:
    """Sets the attention's own dropout to `rate` and lets it run; whether it has one."""
    found = False
    for name in _ATTENTION_RATES:
        own = getattr(module, name, None)
        if isinstance(own, float) or (isinstance(own, int) and not isinstance(own, bool)):
            stack.callback(setattr, module, name, own)
            setattr(module, name, rate)
            found = True
        elif isinstance(own, nn.Dropout):
            stack.callback(setattr, own, "p", own.p)
            stack.callback(own.train, own.training)
            own.p = rate
            own.train()
            found = True
    if found:
        stack.callback(setattr, module, "training", module.training)
        module.training = True
    return found


def _dropout(rate: float, mask: str) -> Callable[[Tensor], Tensor]:
    if mask == "channel":
        return lambda x: _FEATURE_MAPS.get(x.dim(), F.dropout)(x, rate, training=True)
    return lambda x: F.dropout(x, rate, training=True)


def _on_first_argument(drop: Callable[[Tensor], Tensor]) -> Any:
    return lambda module, args: (drop(args[0]), *args[1:])


def _on_first_output(drop: Callable[[Tensor], Tensor]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return drop(output)
        if isinstance(output, tuple):
            return (drop(output[0]), *output[1:])
        first = next(iter(output))
        output[first] = drop(output[first])
        return output

    return hook
