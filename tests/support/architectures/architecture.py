"""What an entry of the zoo is, and how its models get their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from support.zoo import seeded


@dataclass(frozen=True)
class Architecture:
    """A model, its inputs, and what runs the passes of some placements on it."""

    name: str
    kind: str  # text, vision, audio, tabular, volume, recurrent, experts or attention
    model: Callable[[int], nn.Module]  # of the scale: 1 for a test, more for a benchmark
    inputs: Callable[[int, int], Any]  # of the number of examples and the scale
    shared: str  # sites and groups that the shared engine runs, with blanks between them
    loop: Mapping[str, str] = field(default_factory=dict)  # those that it refuses, each with a part of its reason
    options: Mapping[str, Any] = field(default_factory=dict)  # of the session
    needs: str = "torch"  # the package it comes from

    def build(self, examples: int = 3, scale: int = 1) -> tuple[nn.Module, Any, dict[str, Any]]:
        """The model in eval mode, its inputs as every call of Dropscope takes them, further options."""
        return spread(lambda: self.model(scale)), self.inputs(examples, scale), dict(self.options)


def placement(name: str) -> str:
    """The text of a placement with noise at one site or group of `Architecture.shared` or `loop`."""
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


def hugging_face(family: str, head: str, fields: Mapping[str, Any]) -> nn.Module:
    """A model of the library from its config alone."""
    import transformers

    return getattr(transformers, family + head)(getattr(transformers, f"{family}Config")(**fields))
