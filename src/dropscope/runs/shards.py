"""Shards: a run divided among processes that need not know of each other, such as the tasks of a SLURM array.

Owns which part of the work is whose. It follows from the plan alone, so every process that plans the same run divides
it in the same way.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dropscope.errors import BadInput
from dropscope.runs.result import Run

Item = TypeVar("Item")
_SHARD = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*")


@dataclass(frozen=True)
class Shard:
    """One of `of` shares of a run, numbered from 1.

    >>> shard = Shard.parse("2/3")
    >>> str(shard), shard.share([1, 1, 9, 4, 4], lambda work: work)
    ('2/3', [4, 1])
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: object) -> Shard:
        """The shard that a text such as "2/8" names.

        Raises:
            BadInput: If it names none.
        """
        match = _SHARD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise BadInput("shard must be a number and how many there are", "shard", text, "write shard='1/4'")
        number, of = int(match[1]), int(match[2])
        if not 1 <= number <= of:
            remedy = f"write shard='1/{of}' to shard='{of}/{of}'" if of else "write shard='1/4'"
            raise BadInput("shard must be between 1 and how many there are", "shard", text, remedy)
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def share(self, items: Sequence[Item], work: Callable[[Item], float]) -> list[Item]:
        """What of the items is this shard's, the most work first: each goes to the shard with the least so far."""
        loads = [(0.0, number) for number in range(1, self.of + 1)]
        own = []
        for item in sorted(items, key=work, reverse=True):
            load, number = heapq.heappop(loads)
            if number == self.number:
                own.append(item)
            heapq.heappush(loads, (load + work(item), number))
        return own


@dataclass(frozen=True, eq=False)
class ShardResult:
    """What a shard of a sweep did, and how far the run is.

    Attributes:
        shard: Which one it is, such as "2/8".
        computed: Parts that it computed now; those of its share that were there already are not among them.
        there: Parts of the whole run that are there.
        parts: Parts of the whole run.
        folder: Where the run is.
        run: The finished `Run`, if no part is missing; else None.
    """

    shard: str
    computed: int
    there: int
    parts: int
    folder: Path | str
    run: Run | None

    def __str__(self) -> str:
        said = f"shard {self.shard}: {self.computed} parts computed, {self.there} of {self.parts} are in {self.folder}"
        rest = "the run is finished" if self.run is not None else "the shard that brings the last part finishes the run"
        return f"{said}; {rest}"
