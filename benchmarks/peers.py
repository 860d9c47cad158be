"""Monte Carlo dropout as others run it: a plain loop, torch.vmap and three libraries, each `inputs → logits [T, N, C]`.

Owns how each is called, by its own documentation, on a model that has its dropout modules in place. A library that
cannot be imported is left out with the reason. See peers.txt for what to install, and where.
"""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from timing import version

Passes = Callable[[Any], Tensor]


def stochastic(net: nn.Module) -> nn.Module:
    """A copy in eval mode with its dropout modules, and nothing else, in train mode."""
    net = copy.deepcopy(net).eval()
    for module in net.modules():
        if isinstance(module, _DropoutNd):
            module.train()
    return net


def plain_loop(net: nn.Module, passes: int) -> Passes:
    noisy = stochastic(net)
    return lambda x: torch.stack([noisy(x) for _ in range(passes)])


def vmap(net: nn.Module, passes: int) -> Passes:
    noisy = stochastic(net)
    return lambda x: torch.vmap(lambda _: noisy(x), randomness="different")(torch.arange(passes))


def torch_uncertainty(net: nn.Module, passes: int, on_batch: bool) -> Passes:
    from torch_uncertainty.methods import mc_dropout

    wrapped = mc_dropout(net, num_estimators=passes, on_batch=on_batch).eval()
    return lambda x: wrapped(x).unflatten(0, (passes, -1))


def baal(net: nn.Module, passes: int, replicate: bool = False, cached: bool = False) -> Passes:
    from baal.bayesian.caching_utils import MCCachingModule
    from baal.bayesian.dropout import patch_module
    from baal.modelwrapper import ModelWrapper, TrainingArgs

    patched = patch_module(net.eval(), inplace=False)
    model = MCCachingModule(patched).eval() if cached else patched
    wrapper = ModelWrapper(model, TrainingArgs(use_cuda=False, replicate_in_memory=replicate))
    return lambda x: wrapper.predict_on_batch(x, iterations=passes).movedim(-1, 0)


def lightning_uq_box(net: nn.Module, passes: int) -> Passes:
    from lightning_uq_box.uq_methods import MCDropoutClassification

    method = MCDropoutClassification(net, num_mc_samples=passes, loss_fn=nn.CrossEntropyLoss())
    return lambda x: method.predict_step(x)["logits"].movedim(-1, 0)


def libraries(folder: Path | None, net: nn.Module, passes: int) -> tuple[dict[str, Passes], dict[str, str]]:
    """Each library in each of its ways, and for those that are left out the reason."""
    prepare(folder)
    ways: dict[str, Callable[[nn.Module], Passes]] = {
        "torch-uncertainty, on_batch": lambda net: torch_uncertainty(net, passes, on_batch=True),
        "torch-uncertainty, loop": lambda net: torch_uncertainty(net, passes, on_batch=False),
        "baal, replicated": lambda net: baal(net, passes, replicate=True),
        "baal, loop": lambda net: baal(net, passes),
        "baal, loop with its cache": lambda net: baal(net, passes, cached=True),
        "lightning-uq-box": lambda net: lightning_uq_box(net, passes),
    }
    found: dict[str, Passes] = {}
    missing: dict[str, str] = {}
    for name, build in ways.items():
        package, *way = name.split(", ")
        try:
            found[" ".join([package, version(package)]) + "".join(f", {w}" for w in way)] = build(copy.deepcopy(net))
        except Exception as reason:  # other people's code: whatever it raises is the reason
            missing[name] = f"{type(reason).__name__}: {reason}"
    return found, missing


def prepare(folder: Path | None) -> None:
    """What the libraries need before they are imported: their folder, torchvision's operators, and quiet."""
    if folder is not None:
        sys.path.append(str(folder))
    declare_torchvision()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


_library: Any = None


def declare_torchvision() -> None:
    """torchvision without its compiled part: the two operators it asks for when it is imported."""
    global _library
    if _library is None:
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
