"""Texts as tokens: made once per model, counted against what the model takes, batched so that little is padding.

Owns the batches of the study. Noise is keyed by the item, so that batching changes no mask.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from dropscope.data import Batch, Data
from dropscope.errors import BadInput
from dropscope.model import Call, id_keys
from dropscope.studies.transformer_profile.checkpoints import Described

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
        """The items, or some of them, as the engine takes them: keyed by item, grouped by context."""
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
        """`input_ids` and `attention_mask` of some rows, padded on the right to the longest of them."""
        some = [self.tokens[i] for i in rows]
        ids = torch.nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=self.pad)
        lengths = torch.tensor([len(tokens) for tokens in some])
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


def encode(described: Described, table: pd.DataFrame, long_texts: str = "skip") -> tuple[Encoded, list[str]]:
    """Every text tokenised. One that is longer than the model takes is left out together with the rest of its context,
    or cut, as `long_texts` says; either is counted in the remarks."""
    if long_texts not in LONG_TEXTS:
        raise BadInput("texts that are too long are skipped or cut", "--long-texts", long_texts, "write skip or cut")
    special = described.tokenizer(list(table.text), truncation=False, padding=False)["input_ids"]
    too_long = [i for i, ids in enumerate(special) if len(ids) > described.longest]
    remarks = []
    if too_long and long_texts == "cut":
        cut = described.tokenizer([table.text.iloc[i] for i in too_long], truncation=True, padding=False,
                                  max_length=described.longest)["input_ids"]  # fmt: skip
        special = list(special)
        for i, ids in zip(too_long, cut, strict=True):
            special[i] = ids
        remarks.append(f"{len(too_long)} of {len(table)} texts were cut to {described.longest} tokens")
    elif too_long:
        gone = set(table.context.iloc[too_long])
        kept = [i for i, context in enumerate(table.context) if context not in gone]
        remarks.append(
            f"{len(table) - len(kept)} of {len(table)} items ({len(gone)} contexts) left out: "
            f"texts longer than {described.longest} tokens"
        )
        lacking = sorted(set(table.group) - set(table.group.iloc[kept]))
        if lacking:
            got = f"no item of at most {described.longest} tokens in group {lacking[0]!r}"
            remedy = "write --long-texts cut, or choose a model that takes longer texts"
            raise BadInput("every group has a text that the model takes", described.name, got, remedy)
        table, special = table.iloc[kept].reset_index(drop=True), [special[i] for i in kept]
    known = int(getattr(described.config, "vocab_size", 0)) or sys.maxsize
    largest = max((max(ids) for ids in special if ids), default=0)
    if largest >= known:
        got, remedy = f"token {largest} of {known}", "use the tokenizer that belongs to the checkpoint"
        raise BadInput("the model has an embedding for every token", described.name, got, remedy)
    empty = next((i for i, ids in enumerate(special) if not ids), None)
    if empty is not None:
        raise BadInput("every text has a token", described.name, table.text.iloc[empty], "use another tokenizer")
    tokens = tuple(torch.tensor(ids, dtype=torch.int64) for ids in special)
    keys = id_keys(list(table.item))
    return Encoded(table, tokens, described.tokenizer.pad_token_id, keys), remarks


class Shuffled:
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
