"""The user's model, handled with care: unwrapped, copied without its weights, put into eval, given back as it was.

Owns what touches flags, hooks and global random state. It knows nothing of sites or noise.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dropscope.errors import BadInput

OWN_ATTRIBUTES = frozenset(vars(nn.Module()))  # what every module has: training, hooks and the like
OURS = "_dropscope_hook"  # marks a hook function of ours, wherever a copy of a module carries it


def unwrap(model: object) -> nn.Module:
    """The module that computes: without DDP, DataParallel or torch.compile around it."""
    if isinstance(model, torch.jit.ScriptModule):
        raise BadInput(
            "a traced or scripted model has its training flag and its calls baked in, so noise cannot be put into it",
            "model", type(model).__name__, "pass the nn.Module it was made from",
        )  # fmt: skip
    if isinstance(model, torch.export.ExportedProgram):
        raise BadInput(
            "an exported program has its training flag baked in, so noise cannot be put into it",
            "model", type(model).__name__, "pass the nn.Module it was exported from",
        )  # fmt: skip
    if not isinstance(model, nn.Module):
        raise BadInput(
            "a model is a torch.nn.Module",
            "model",
            type(model).__name__,
            "pass the module itself, not its output or path",
        )
    if any(is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        raise BadInput(
            "a model is trained before it is measured", "model", "a lazy layer without weights",
            "run it on an example, then load its weights",
        )  # fmt: skip
    inner: nn.Module = model
    while True:
        if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod") and isinstance(inner._orig_mod, nn.Module):
            inner = inner._orig_mod
        else:
            break
    for name, module in inner.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise BadInput(
                "every part of a model must be plain Python",
                f"module {name!r}",
                type(module).__name__,
                "replace the scripted part",
            )
        if isinstance(module, torch.fx.GraphModule):
            raise BadInput(
                "a traced or exported graph has its training flag baked in, so noise cannot be put into it",
                f"module {name or 'model'!r}", type(module).__name__, "pass the nn.Module it was traced from",
            )  # fmt: skip
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval, so BatchNorm stays put; the flags come back one by one as they were."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Global random state of Python, NumPy, torch and CUDA is afterwards what it was."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - it is the global state that is kept
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Buffers, and weights that a forward rescales (max_norm), are afterwards what they were."""
    kept = [
        (m._buffers, name, b, b.clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None
    ]
    rescaled = [(w, w.detach().clone()) for m in model.modules() if (w := _rescaled(m)) is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for holder, name, buffer, before in kept:
                holder[name] = buffer
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
            for weight, before in rescaled:
                if not torch.equal(weight, before):
                    weight.copy_(before)


def _rescaled(module: nn.Module) -> torch.Tensor | None:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return module.weight
    return None


def writes(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; torch does not count for those made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def shadow(model: nn.Module) -> nn.Module:
    """A second module tree over the same weights: flags, buffers and hooks are its own, so a trial stays there, and so
    are weights that a forward rescales."""
    own = {id(_rescaled(module)) for module in model.modules()}
    shared: dict[int, torch.Tensor] = {id(p): p for p in model.parameters() if id(p) not in own}
    for module in model.modules():
        # What weight_norm and its like compute before each forward has a graph, which deepcopy refuses; it comes anew.
        shared |= {
            id(value): value.detach()
            for value in vars(module).values()
            if isinstance(value, torch.Tensor) and not value.is_leaf
        }
    try:
        twin = copy.deepcopy(model, dict(shared))
    except (TypeError, RuntimeError):  # a lock, an open file: whatever cannot be copied is shared
        twin = copy.deepcopy(model, {**shared, **_uncopyable(model, shared)})
    for module in twin.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if hasattr(hook, OURS)]:
                del hooks[key]
                module._forward_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)
                module._forward_pre_hooks_with_kwargs.pop(key, None)
    return twin


def _uncopyable(model: nn.Module, shared: dict[int, torch.Tensor]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in OWN_ATTRIBUTES or isinstance(value, nn.Module):
                continue
            try:
                copy.deepcopy(value, dict(shared))
            except (TypeError, RuntimeError):
                found[id(value)] = value
    return found


def runs_fused(layer: nn.Module) -> bool:
    """Whether torch would run this encoder layer as one kernel, which knows no dropout, if nobody were looking.

    The conditions are those of nn.TransformerEncoderLayer.forward; our own hooks, which keep it from it, do not count.
    """
    if (
        not isinstance(layer, nn.TransformerEncoderLayer)
        or layer.training
        or not torch.backends.mha.get_fastpath_enabled()
    ):
        return False
    attention = layer.self_attn
    plain = attention.batch_first and attention.in_proj_bias is not None and attention._qkv_same_embed_dim
    plain = (
        plain and attention.num_heads % 2 == 0 and layer.activation_relu_or_gelu and layer.norm1.eps == layer.norm2.eps
    )
    learning = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in layer.parameters())
    hooks = [hook for m in layer.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    return (
        bool(plain) and not learning and not torch.is_autocast_enabled() and all(hasattr(hook, OURS) for hook in hooks)
    )


def is_hooked(model: nn.Module) -> bool:
    return any(hasattr(hook, OURS) for hook in model._forward_pre_hooks.values())


def device_of(model: nn.Module) -> torch.device:
    """Where the model lies; a model spread over several devices is an error."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise BadInput(
            "a model lies on one device",
            "devices of its weights",
            sorted(map(str, devices)),
            "move it with model.to(device)",
        )
    return devices.pop() if devices else torch.device("cpu")
