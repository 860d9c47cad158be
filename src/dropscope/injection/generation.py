"""Generation of text inside `injected`: one `model.generate` is one pass, with one mask per sequence.

A forward that reads a key-value cache sees new tokens alone, at coordinates that are not theirs. Without a cache every
forward sees the whole sequence; noise is keyed by coordinate, so tokens that are there already keep their masks.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

from dropscope.errors import BadInput, Phrase
from dropscope.model import Call

_PROMPT = ("input_ids", "attention_mask")


def refuse_cache(call: Call) -> None:
    """Refuses a forward that reads or fills a key-value cache of its caller.

    Raises:
        BadInput: If it does.
    """
    cache = call.kwargs.get("past_key_values")
    if cache is not None:
        what = "past_key_values must be None inside `injected`: masks of earlier tokens cannot be kept across a cache"
        remedy = "call the model on whole sequences with use_cache=False, or call model.generate(...)"
        raise BadInput(what, "past_key_values", Phrase(f"a {type(cache).__name__}"), remedy)


def prompt(call: Call) -> Call:
    """The first forward of a generation without what `generate` adds, so that a prompt has its usual key."""
    if not isinstance(call.kwargs.get("input_ids"), Tensor):
        return call
    return Call((), {name: call.kwargs[name] for name in _PROMPT if call.kwargs.get(name) is not None})


@contextmanager
def generation_followed(model: nn.Module, one_pass: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """While open, `model.generate` runs without a cache inside `one_pass()`, or is refused."""
    if not callable(getattr(type(model), "generate", None)):
        yield
        return
    original, thread = model.generate, threading.get_ident()
    own = vars(model).get("generate")

    def generate(*args: Any, **kwargs: Any) -> Any:
        assert callable(original)
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            what = "model must have no encoder for `generate` inside `injected`, which calls the encoder by itself"
            received = Phrase(type(model).__name__)
            remedy = "generate outside, then score what was generated with dropscope.score_continuations"
            raise BadInput(what, "model", received, remedy)
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            kwargs["logits_to_keep"] = 0  # else the head sees the last token alone, as if it were the first
        with one_pass():
            return original(*args, **{**kwargs, "use_cache": False})

    vars(model)["generate"] = generate
    try:
        yield
    finally:
        del vars(model)["generate"]
        if own is not None:
            vars(model)["generate"] = own
