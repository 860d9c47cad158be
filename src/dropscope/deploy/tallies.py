"""Tallies of scored rows: a hash that depends on the rows and their scores alone, not on order, batches or parts.

Every row has a hash of its key and of the bits of its scores; that of a set of rows is their sum, so that parts add up,
and a row that is missing or there twice shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

_LANES = 2  # of 64 bits
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)


@dataclass(frozen=True)
class Tally:
    """How many rows, how many of them deferred, and the sum of their hashes.

    >>> keys, scores = np.arange(4, dtype=np.uint64), {"a": np.arange(4.0), "defer": np.arange(4) > 1}
    >>> whole = Tally.of_rows(keys, scores)
    >>> parts = [Tally.of_rows(keys[i], {name: one[i] for name, one in scores.items()}) for i in ([3, 0], [1, 2])]
    >>> parts[1] + parts[0] == whole, whole.rows, whole.deferred, len(whole.hash)
    (True, 4, 2, 32)
    """

    rows: int = 0
    deferred: int = 0
    sums: tuple[int, ...] = (0,) * _LANES

    @classmethod
    def of_rows(cls, keys: NDArray[np.uint64], scores: Mapping[str, NDArray[Any]]) -> Tally:
        """The tally of some rows, from a key and the scores of each."""
        sums = []
        with np.errstate(over="ignore"):
            for lane in range(_LANES):
                state = mixed(keys ^ _ODD[lane])
                for name in sorted(scores):
                    state = mixed(state * _ODD[lane] + _bits(scores[name]))
                sums.append(int(state.sum(dtype=np.uint64)))
        return cls(len(keys), int(scores["defer"].sum()), tuple(sums))

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Tally:
        """From `facts`."""
        return cls(int(facts["rows"]), int(facts["deferred"]), tuple(int(one, 16) for one in facts["sums"]))

    def facts(self) -> dict[str, Any]:
        """In values that JSON can hold."""
        return {"rows": self.rows, "deferred": self.deferred, "sums": [f"{one:016x}" for one in self.sums]}

    @property
    def hash(self) -> str:
        return "".join(f"{one:016x}" for one in self.sums)

    def __add__(self, other: Tally) -> Tally:
        sums = ((a + b) % (1 << 64) for a, b in zip(self.sums, other.sums, strict=True))
        return Tally(self.rows + other.rows, self.deferred + other.deferred, tuple(sums))


def content_keys(values: NDArray[Any]) -> NDArray[np.uint64]:
    """A key per row, from its values: numbers of any shape, or texts.

    >>> a = content_keys(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> bool(a[0] == a[2]), bool(a[0] == a[1])
    (True, False)
    """
    if values.dtype.kind in "OUS":
        return pd.util.hash_array(np.asarray([str(one) for one in values], dtype=object), categorize=False)
    state = np.zeros(len(values), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in values.reshape(len(values), -1).T:
            state = (state ^ _bits(np.ascontiguousarray(column))) * _ODD[0]
            state ^= state >> np.uint64(32)
    return state


def mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of a state moves every bit of the result."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _bits(values: NDArray[Any]) -> NDArray[np.uint64]:
    if values.dtype.kind == "f":
        return values.astype(np.float64).view(np.uint64)
    return values.astype(np.int64).view(np.uint64)


def as_columns(batch: pa.RecordBatch) -> dict[str, NDArray[Any]]:
    """Column → values; lists of one length become rows of a matrix."""
    found = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_fixed_size_list(column.type):
            flat = column.flatten().to_numpy(zero_copy_only=False)
            found[name] = flat.reshape(len(column), -1)
        else:
            found[name] = column.to_numpy(zero_copy_only=False)
    return found
