"""Texts and a tokenizer: batches of tokens, padded on the right and cut to what the model takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from dropscope.errors import BadInput, Phrase, first_line
from dropscope.loading.huggingface import longest_text, read_tokenizer

_BATCH = 32
_SPECIAL = 8  # tokens that begin and end a text, at most


class TokenBatches:
    """Texts in batches of tokens, tokenised as they are read.

    Args:
        texts: The texts.
        labels: A class number per text, or None.
        tokenizer: What `as_tokenizer` gives.
        longest: How many tokens the model takes; None leaves that to the tokenizer.
    """

    def __init__(self, texts: Sequence[str], labels: Tensor | None, tokenizer: Any, longest: int | None = None) -> None:
        self._texts, self._labels, self._tokenizer, self._longest = texts, labels, tokenizer, longest

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(self._texts), _BATCH):
            some = slice(start, start + _BATCH)
            batch = self._encode(list(self._texts[some]))
            if self._labels is not None:
                batch["labels"] = self._labels[some]
            yield batch

    def cut_remarks(self) -> tuple[str, ...]:
        """How many texts have more tokens than are read, in a sentence; nothing where none has."""
        limit = self._longest or getattr(self._tokenizer, "model_max_length", None)
        if limit is None or not hasattr(self._tokenizer, "is_fast"):  # what is no tokenizer of transformers cuts itself
            return ()
        # A token has a byte or more, but for the few that begin and end a text: most texts need no look.
        long = [text for text in self._texts if len(text.encode()) + _SPECIAL > limit]
        count = 0
        for start in range(0, len(long), _BATCH):
            tokens = self._tokenizer(long[start : start + _BATCH], verbose=False)["input_ids"]
            count += sum(len(text) > limit for text in tokens)
        some = f"{count:,} of {len(self._texts):,} texts"
        return (f"{some} are longer than the {limit} tokens that the model takes, and cut to that",) if count else ()

    def _encode(self, texts: list[str]) -> dict[str, Tensor]:
        options = {} if self._longest is None else {"max_length": self._longest}
        side = getattr(self._tokenizer, "padding_side", "right")
        try:
            if side != "right":  # padding on the left would move every token, and with it its noise
                self._tokenizer.padding_side = "right"
            return dict(self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt", **options))
        except (TypeError, ValueError, RuntimeError, KeyError, OverflowError) as error:
            what, remedy = "tokenizer must turn texts into tensors", "pass the tokenizer of the model's checkpoint"
            raise BadInput(what, "tokenizer", Phrase(first_line(error)), remedy) from error
        finally:
            if side != "right":
                self._tokenizer.padding_side = side


def as_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer that can pad, from itself or from the name of its checkpoint."""
    if isinstance(tokenizer, str):
        return read_tokenizer(tokenizer, SimpleNamespace(pad_token_id=None))[0]
    if not callable(tokenizer):
        remedy = "pass AutoTokenizer.from_pretrained(...), or the name of its checkpoint"
        raise BadInput("tokenizer must be a tokenizer", "tokenizer", Phrase(type(tokenizer).__name__), remedy)
    if getattr(tokenizer, "pad_token", "") is None:
        remedy = "set tokenizer.pad_token = tokenizer.eos_token, and the model's config.pad_token_id with it"
        raise BadInput("tokenizer must have a padding token", "tokenizer", Phrase("one without"), remedy)
    return tokenizer


def token_limit(tokenizer: Any, config: Any) -> int | None:
    """How many tokens a model takes where its tokenizer allows more; None where the tokenizer knows best."""
    own = getattr(tokenizer, "model_max_length", None)
    if own is None or not hasattr(config, "model_type"):
        return None
    longest = longest_text(config, tokenizer)
    return longest if longest < own else None
