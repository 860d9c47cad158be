"""Safe handling of the user's model: unwrapping, copies that share its weights, eval mode, and everything put back.

Owns what touches flags, hooks and global random state. It knows nothing of sites or noise.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dropscope.errors import BadInput, Phrase

OWN_ATTRIBUTES = frozenset(vars(nn.Module()))  # what every module has: training, hooks and the like
OURS = "_dropscope_hook"  # marks a hook function of ours, wherever a copy of a module carries it


def unwrap(model: object) -> nn.Module:
    """The module that computes: without DDP, DataParallel or torch.compile around it.

    Raises:
        BadInput: If it is no `nn.Module`, has layers without weights, or has its training flag baked in.
    """
    kind = Phrase(type(model).__name__)
    if isinstance(model, torch.jit.ScriptModule | torch.export.ExportedProgram):
        remedy = "pass the nn.Module it was made from"
        raise BadInput(
            "model must not be scripted, traced or exported: its training flag is baked in", "model", kind, remedy
        )
    if not isinstance(model, nn.Module):
        remedy = "pass the module itself, not its output or path"
        raise BadInput("model must be a torch.nn.Module", "model", kind, remedy)
    if any(is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        remedy = "run it on an example, then load its weights"
        raise BadInput("model must have its trained weights", "model", Phrase("a lazy layer without weights"), remedy)
    inner: nn.Module = model
    while True:
        if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod") and isinstance(inner._orig_mod, nn.Module):
            inner = inner._orig_mod
        else:
            break
    for name, module in inner.named_modules():
        if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
            what = "model must be plain Python throughout: a scripted or traced part has its training flag baked in"
            received = Phrase(f"{type(module).__name__} as {name or 'the model'!r}")
            raise BadInput(what, "model", received, "pass the nn.Module it was made from")
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode, so that BatchNorm stays put. Afterwards each flag is what it was."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, training in flags:
            if training:
                module.training = False
        yield
    finally:
        for module, training in flags:
            if module.training != training:
                module.training = training


_one_at_a_time = threading.RLock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """No other thread is in such a block: for work that reads or changes what all threads of a process share.

    That is global random state, torch's numeric settings, and whether a model is being exported.
    """
    with _one_at_a_time:
        yield


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the global random state of Python, NumPy, torch and CUDA afterwards."""
    with undisturbed(), _random_state_kept():
        yield


@contextmanager
def _random_state_kept() -> Iterator[None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - the global state is meant
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
    """Restores buffers, and weights that a forward rescales (max_norm), afterwards."""
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
    """How often a tensor was written to. For one made in inference mode, which torch does not count, 0."""
    return 0 if tensor.is_inference() else tensor._version


def shadow(model: nn.Module) -> nn.Module:
    """A private copy of the model over the same weights.

    Flags, buffers and hooks are its own, so what happens to it stays there. So are weights that a forward rescales.
    """
    own = {id(_rescaled(module)) for module in model.modules()}
    shared: dict[int, torch.Tensor] = {id(p): p for p in model.parameters() if id(p) not in own}
    for module in model.modules():
        # What weight_norm and its like compute has a graph, which deepcopy refuses; each forward computes it again.
        shared |= {
            id(value): value.detach()
            for value in vars(module).values()
            if isinstance(value, torch.Tensor) and not value.is_leaf
        }
    try:
        copied = copy.deepcopy(model, dict(shared))
    except (TypeError, RuntimeError):  # what cannot be copied is shared: a lock, an open file
        copied = copy.deepcopy(model, {**shared, **_uncopyable(model, shared)})
    for module in copied.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if hasattr(hook, OURS)]:
                del hooks[key]
                module._forward_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)
                module._forward_pre_hooks_with_kwargs.pop(key, None)
    return copied


class Shadows:
    """A shadow of a model for each thread: what one thread does to its own, no other sees."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._local = threading.local()

    @property
    def own(self) -> nn.Module:
        """The shadow of the present thread, made when it first asks."""
        if not hasattr(self._local, "shadow"):
            self._local.shadow = shadow(self._model)
        return self._local.shadow


def _uncopyable(model: nn.Module, shared: dict[int, torch.Tensor]) -> dict[int, Any]:
    uncopyable: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in OWN_ATTRIBUTES or isinstance(value, nn.Module):
                continue
            try:
                copy.deepcopy(value, dict(shared))
            except (TypeError, RuntimeError):
                uncopyable[id(value)] = value
    return uncopyable


def runs_fused(layer: nn.Module) -> bool:
    """Whether torch would run this encoder layer as one kernel, which has no dropout, if it were not traced.

    The conditions are those of nn.TransformerEncoderLayer.forward, except that our own hooks do not count.
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
    """Whether the model is being traced already."""
    return any(hasattr(hook, OURS) for hook in model._forward_pre_hooks.values())


def device_of(model: nn.Module) -> torch.device:
    """The one device of the model's weights and buffers.

    Raises:
        BadInput: If they lie on several devices.
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        remedy = "move it with model.to(device)"
        raise BadInput("model must lie on one device", "model", sorted(map(str, devices)), remedy)
    return devices.pop() if devices else torch.device("cpu")
