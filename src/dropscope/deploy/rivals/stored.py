"""Stored probabilities as a rival: arrays `[M, N, C]` in memory, or in .npz, .npy, .safetensors and .parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from dropscope.deploy.rivals.answers import Answer, checked_rows
from dropscope.deploy.rivals.forwards import PlainPass
from dropscope.deploy.rivals.repeated import ROWS
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.loading import check_safetensors, check_unpacked, read_table
from dropscope.measures.statistics import from_passes

SUFFIXES = (".npz", ".npy", ".safetensors", ".parquet")
SOURCES = ("data", "fit", "shifted")
_MAIN = ("data", "probabilities")  # names of the array for the data itself


@dataclass(frozen=True, eq=False)
class StoredProbabilities:
    """Probabilities that were computed elsewhere: an ensemble, another library, another machine.

    Attributes:
        arrays: "data", and where those are used "fit" and "shifted", each → `[M, N, C]` for M members, or `[N, C]`;
            rows in the order of that data.
        name: What it is called in messages.
    """

    arrays: Mapping[str, Tensor]
    name: str = "probabilities"

    @classmethod
    def of(cls, given: Any, name: str = "probabilities") -> StoredProbabilities:
        """From an array, a mapping of them, or the name of a file.

        Raises:
            BadInput: Where a file cannot be read, or holds no such arrays.
        """
        if isinstance(given, str | Path):
            given, name = read_arrays(Path(given)), str(given)
        if not isinstance(given, Mapping):
            given = {"data": given}
        found = {"data" if key in _MAIN else str(key): _members(value, name) for key, value in given.items()}
        if "data" not in found and len(found) == 1:
            found = {"data": next(iter(found.values()))}
        if "data" not in found or set(found) - set(SOURCES):
            what = f"{name} must hold one array, or arrays called {', '.join(SOURCES)}"
            raise BadInput(what, "probabilities", sorted(found), "call the array of the data itself 'data'")
        return cls(found, name)

    @property
    def members(self) -> int:
        """How many predictions each example has."""
        return len(self.arrays["data"])

    def check(self, source: str, n: int, classes: int) -> None:
        """Checks shape and values of what is stored for a data set.

        Raises:
            BadInput: Where there is nothing, or it does not fit.
        """
        if source not in self.arrays:
            remedy = f"store them under {source!r}" + (", or leave fit out: then data is split" * (source == "fit"))
            what = f"{self.name} must hold probabilities for {source} too"
            raise BadInput(what, "probabilities", list(self.arrays), remedy)
        whole = self.arrays[source]
        checked_rows(whole, (len(whole), n, classes), self.name, "probabilities")

    def __call__(self, seen: PlainPass) -> Answer:
        """The answer for some examples."""
        chosen = self.arrays[seen.source][:, seen.positions].float()
        needs = {"sum_p"}.union(*(row.needs for row in ROWS))
        kept = from_passes(chosen / chosen.sum(-1, keepdim=True), tuple(needs), seen.probabilities)
        return Answer(kept.mean.float(), {row.name: row(kept).float() for row in ROWS}, float(self.members))


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a file by name.

    A table (.parquet) has a row per example in the order of the data, or one per member and example with the member in
    the column `member`. A column `id` is not read; every other one is a class.

    Raises:
        BadInput: For another kind of file, or one that cannot be read.
    """
    if path.suffix not in SUFFIXES:
        what = f"probabilities must be a file that ends in {', '.join(SUFFIXES)}"
        raise BadInput(what, "probabilities", str(path), "save them with numpy.savez(file, data=array)")
    if not path.is_file():
        raise BadInput("probabilities must be a file that exists", "probabilities", str(path), "check the path")
    try:
        if path.suffix == ".safetensors":
            check_safetensors(path)
            return dict(load_file(path))
        if path.suffix == ".parquet":
            return {"data": _from_table(read_table(path, "probabilities"))}
        check_unpacked(path)
        with path.open("rb") as file:  # which a damaged archive would leave open
            loaded = np.load(file, allow_pickle=False)
            return {"data": loaded} if isinstance(loaded, np.ndarray) else {key: loaded[key] for key in loaded.files}
    except BadInput:
        raise
    except Exception as error:
        received = Phrase(f"{path}: {first_line(error)}")
        raise BadInput("probabilities must be a readable file", "probabilities", received, "save it again") from error


def _from_table(table: pd.DataFrame) -> np.ndarray:
    """`[M, N, C]`: the rows of each member in their order."""
    columns = table.drop(columns=[name for name in ("member", "id") if name in table])
    values = columns.to_numpy(dtype=float)
    if "member" not in table:
        return values[None]
    parts = [values[table.member.to_numpy() == member] for member in table.member.unique()]
    if len({len(part) for part in parts}) > 1:
        received = Phrase(f"{min(map(len, parts))} to {max(map(len, parts))} rows")
        remedy = "write a row for each example and member"
        raise BadInput("members must have one number of rows", "probabilities", received, remedy)
    return np.stack(parts)


def _members(value: Any, name: str) -> Tensor:
    """`[M, N, C]`."""
    try:
        array = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, dtype=float))
    except (TypeError, ValueError) as error:
        received = Phrase(first_line(error))
        raise BadInput(f"{name} must hold numbers", "probabilities", received, "pass an array [M, N, C]") from error
    if array.dim() not in (2, 3) or 0 in array.shape:
        received = Phrase(f"shape {tuple(array.shape)}")
        remedy = "give members, examples and classes, in that order"
        raise BadInput(f"{name} must be of shape [M, N, C] or [N, C]", "probabilities", received, remedy)
    return array.double() if array.dim() == 3 else array.double()[None]
