"""What an entry of the zoo is, and how its models get their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dropscope.injection.roles import Site
from dropscope.model import Call
from support.zoo import seeded

_JOINED = ("in_proj", "c_attn", "Wqkv", "qkv")  # one layer for queries, keys and values
_PROJECTIONS = {
    "keys": ("key", "k", "k_proj", "k_lin", "key_proj", "k_head", *_JOINED),
    "values": ("value", "v", "v_proj", "v_lin", "value_proj", "v_head", *_JOINED),
}


@dataclass(frozen=True)
class Architecture:
    """A model, its inputs, and what runs the passes of some placements on it."""

    name: str
    kind: str  # text, vision, audio, tabular, volume, recurrent, experts or attention
    model: Callable[[int], nn.Module]  # of the scale: 1 for a test, more for a benchmark
    inputs: Callable[[int, int], Any]  # of the number of examples and the scale
    shared: str  # what gets noise in placements that the shared engine runs, as `placement` takes it, between blanks
    loop: Mapping[str, str] = field(default_factory=dict)  # those that it refuses, each with a part of its reason
    options: Mapping[str, Any] = field(default_factory=dict)  # of the session
    needs: str = "torch"  # the package it comes from

    def build(self, examples: int = 3, scale: int = 1) -> tuple[nn.Module, Any, dict[str, Any]]:
        """The model in eval mode, its inputs as every call of Dropscope takes them, further options."""
        model, inputs = spread(lambda: self.model(scale)), self.inputs(examples, scale)
        settle(model, inputs)
        return model, inputs, dict(self.options)


def placement(name: str, sites: Iterable[Site]) -> str:
    """The text of a placement on one site or group; "keys" and "values" are those of the first attention."""
    if name in _PROJECTIONS:
        name = next(site.module for site in sites if site.module.split(".")[-1] in _PROJECTIONS[name])
    return name if name == "own" else f"{name}=0.3"


def spread(build: Callable[[], nn.Module]) -> nn.Module:
    """The model with random weights so large that its outputs differ beyond rounding."""

    def built() -> nn.Module:
        model = build()
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "parametrizations" not in name:
                weight.data.normal_(0, 1.1 / weight[0].numel() ** 0.5)
        return model

    return seeded(built)


def settle(model: nn.Module, inputs: Any) -> None:
    """Gives every BatchNorm the statistics of these inputs, as training would: without them signals die out."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        with torch.no_grad():
            Call.of(inputs, "inputs").run(model)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def hugging_face(family: str, head: str, fields: Mapping[str, Any]) -> nn.Module:
    """A model of the library from its config alone."""
    import transformers

    return getattr(transformers, family + head)(getattr(transformers, f"{family}Config")(**fields))
