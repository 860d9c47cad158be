"""Items as tokens: made once per model, checked against the longest text it takes, in batches to train and to test on.

Noise is keyed by the item, so that batching changes no mask.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from dropscope.checks import check_choice
from dropscope.data import Batch, Data
from dropscope.errors import BadInput, Phrase
from dropscope.loading import Checkpoint
from dropscope.model import Call, id_keys

LONG_TEXTS = ("skip", "cut")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Items of one side of the split with their tokens; `table` has the rows that were kept."""

    table: pd.DataFrame
    tokens: tuple[Tensor, ...]  # one [length] per row of the table
    pad: int
    keys: Tensor  # of the items: int64 [n]

    @property
    def labels(self) -> Tensor:
        return torch.tensor(self.table.label.to_numpy(copy=True), dtype=torch.int64)

    def data(self, rows: Sequence[int] | None = None) -> Data:
        """The items, or these rows of them, as the engine takes them: keyed by item, grouped by context."""
        chosen = list(range(len(self.tokens)) if rows is None else rows)
        table = self.table.iloc[chosen]
        batch = Batch(
            Call((), self.inputs(chosen)),
            self.labels[chosen],
            self.keys[chosen],
            list(table.item),
            list(table.context),
            torch.tensor(chosen),
        )
        return Data((batch,), "ids", "")

    def inputs(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` of these rows, padded on the right to the longest of them."""
        chosen = [self.tokens[i] for i in rows]
        ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=self.pad)
        lengths = torch.tensor([len(tokens) for tokens in chosen])
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


def encode(checkpoint: Checkpoint, table: pd.DataFrame, long_texts: str = "skip") -> tuple[Encoded, list[str]]:
    """Every text as tokens, and remarks.

    A text that is longer than the model takes is left out together with the rest of its context, or cut, as
    `long_texts` says; either is counted in the remarks.
    """
    check_choice(long_texts, "long_texts", LONG_TEXTS)
    special = checkpoint.tokenizer(list(table.text), truncation=False, padding=False)["input_ids"]
    too_long = [i for i, ids in enumerate(special) if len(ids) > checkpoint.longest]
    remarks = []
    if too_long and long_texts == "cut":
        cut = checkpoint.tokenizer([table.text.iloc[i] for i in too_long], truncation=True, padding=False,
                                  max_length=checkpoint.longest)["input_ids"]  # fmt: skip
        special = list(special)
        for i, ids in zip(too_long, cut, strict=True):
            special[i] = ids
        remarks.append(f"{len(too_long)} of {len(table)} texts were cut to {checkpoint.longest} tokens")
    elif too_long:
        gone = set(table.context.iloc[too_long])
        kept = [i for i, context in enumerate(table.context) if context not in gone]
        remarks.append(
            f"{len(table) - len(kept)} of {len(table)} items ({len(gone)} contexts) left out: "
            f"texts longer than {checkpoint.longest} tokens"
        )
        lacking = sorted(set(table.group) - set(table.group.iloc[kept]))
        if lacking:
            what = f"every group must have a text that {checkpoint.name} takes"
            got = Phrase(f"no item of at most {checkpoint.longest} tokens in group {lacking[0]!r}")
            raise BadInput(what, "long_texts", got, "write long_texts='cut', or choose a model that takes longer texts")
        table, special = table.iloc[kept].reset_index(drop=True), [special[i] for i in kept]
    known = int(getattr(checkpoint.config, "vocab_size", 0)) or sys.maxsize
    largest = max((max(ids) for ids in special if ids), default=0)
    if largest >= known:
        what = f"{checkpoint.name} must have an embedding for every token"
        remedy = "use the tokenizer that belongs to the checkpoint"
        raise BadInput(what, checkpoint.name, Phrase(f"token {largest} of {known}"), remedy)
    empty = next((i for i, ids in enumerate(special) if not ids), None)
    if empty is not None:
        what = f"tokenizer of {checkpoint.name} must give every text a token"
        raise BadInput(what, checkpoint.name, table.text.iloc[empty], "use another tokenizer")
    tokens = tuple(torch.tensor(ids, dtype=torch.int64) for ids in special)
    keys = id_keys(list(table.item))
    return Encoded(table, tokens, checkpoint.tokenizer.pad_token_id, keys), remarks


class ShuffledBatches:
    """Batches to train on: a fresh order each epoch from the seed, already on the device."""

    def __init__(self, encoded: Encoded, size: int, seed: int, device: torch.device) -> None:
        self._encoded, self._size, self._device = encoded, size, device
        self._order = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self._encoded.tokens) // self._size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        labels = self._encoded.labels
        for rows in torch.randperm(len(labels), generator=self._order).split(self._size):
            batch = {**self._encoded.inputs(rows.tolist()), "labels": labels[rows]}
            yield {name: value.to(self._device) for name, value in batch.items()}
