"""Fingerprints of models and functions: the same in every process, different as soon as anything that counts differs.

What counts: weights by value; code, settings and printed structure of modules; closures and defaults of functions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from types import CodeType
from typing import Any

import torch
from torch import nn

from dropscope.model.handling import OWN_ATTRIBUTES

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in memory: different in every process


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of every parameter and buffer by name and value, including buffers that no state_dict holds."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted({**dict(model.named_buffers()), **model.state_dict()}.items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(raw(tensor))
    return digest.hexdigest()


def code_fingerprint(*things: Any) -> str:
    """A hash of what functions do and of how models are built.

    Of a model it covers the structure, settings and forwards of its modules; of a function its code, closure and
    defaults.

    >>> one, same, other = (code_fingerprint((lambda by: lambda x: x * by)(factor)) for factor in (2, 2, 3))
    >>> one == same, one == other
    (True, False)
    """
    digest = hashlib.blake2b(digest_size=8)
    for thing in things:
        digest.update(repr(_module(thing) if isinstance(thing, nn.Module) else _value(thing)).encode())
    return digest.hexdigest()


def _module(model: nn.Module) -> Any:
    classes = dict.fromkeys(type(module) for module in model.modules())
    forwards = [_function(c.forward) for c in classes if not c.__module__.startswith(("torch.", "transformers."))]
    settings = [
        (name, _settings(module)) for name, module in model.named_modules() if not _is_from_transformers(module)
    ]
    return _ADDRESS.sub("", repr(model)), forwards, settings


def _is_from_transformers(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.")  # its attributes include the path it was loaded from


def _settings(thing: Any) -> list[tuple[str, Any]]:
    """Attributes that are plain values."""
    own = {name: value for name, value in getattr(thing, "__dict__", {}).items() if name not in OWN_ATTRIBUTES}
    return [(name, _value(value)) for name, value in sorted(own.items()) if _is_plain(value)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return all(_is_plain(one) for one in value)
    if isinstance(value, dict):
        return all(_is_plain(one) for one in (*value, *value.values()))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _value(value: Any) -> Any:
    """A value in a form that prints alike in every process; of an object that is no plain value, only its class."""
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, _value(value.co_consts)
    if isinstance(value, set | frozenset):
        return sorted(repr(_value(one)) for one in value)
    if isinstance(value, tuple | list):
        return [_value(one) for one in value]
    if isinstance(value, dict):
        return [(_value(key), _value(one)) for key, one in value.items()]
    if _is_plain(value):
        return value
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), hashlib.blake2b(raw(value), digest_size=8).hexdigest()
    if isinstance(value, functools.partial):
        return _value(value.func), _value(value.args), _value(value.keywords)
    if isinstance(value, nn.Module):
        return weights_fingerprint(value), _module(value)
    return _function(value)


def _function(function: Any) -> Any:
    """Code with what it closes over; of a callable object, its class, the code of its call, its plain attributes."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None)
    if code is None:
        called = vars(type(function)).get("__call__")
        return name, _value(getattr(called, "__code__", None)), _settings(function)
    held = [_held(content) for content in _closed_over(function)]
    bound = _settings(getattr(function, "__self__", None))  # of the object whose method it is
    return name, _value(code), held, bound, _value(function.__defaults__), _value(function.__kwdefaults__)


def _held(content: Any) -> Any:
    code = getattr(content, "__code__", None)
    if code is not None:  # it may close over itself
        return _value(code), [_value(one) for one in _closed_over(content) if _is_plain(one)]
    return content.__qualname__ if isinstance(content, type) else _value(content)


def _closed_over(function: Any) -> list[Any]:
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # not filled yet
            contents.append(None)
    return contents


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor."""
    return tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data


def digest(value: Any) -> str:
    """A name for a JSON value: the same in every process.

    >>> digest({"b": 1, "a": [2]}) == digest({"a": [2], "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
