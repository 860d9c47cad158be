"""Monte Carlo error: statistics of passes that remember their sums after every block, and the jackknife over blocks.

Blocks are what is independent: a few passes each where draws are independent, whole blocks of 16 where they are
stratified. At most 16 of them are kept, whatever the number of passes. Where that is open, blocks are joined as they
become many, and examples that are done with are left out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.measures.statistics.histograms import Waiting
from dropscope.measures.statistics.running import CONSTANT, PassStatistics

BLOCKS = "blocks"  # among the needs that an engine is given: the sums after every block are kept too
_KEPT = 16  # blocks, at most
_STRATIFIED = 16  # passes of a block of stratified draws
_ENOUGH = 8  # of those, from which on they are the blocks of a run whose length is open
_EXAMPLES = {"sum_p": -2, "squared": -2, "shift": -2, "votes": -2, "plain_class": -2, "histogram": -3}  # else the last


def block_size(passes: int, draws: str) -> int:
    """Passes of a block: sixteenths of all of them, or whole blocks of stratified draws.

    >>> block_size(100, "independent"), block_size(100, "stratified"), block_size(1000, "stratified")
    (7, 16, 64)
    """
    step = _STRATIFIED if draws == "stratified" else 1
    return step * max(1, math.ceil(passes / (_KEPT * step)))


def growing_block(passes: int, draws: str) -> int:
    """Passes of a block so far, in a run whose length is open: each size divides the later ones.

    Passes of a stratified block spread less about their mean than independent ones, so that with few such blocks
    smaller ones are taken, and the error is rather too large.

    >>> [growing_block(passes, "independent") for passes in (8, 16, 24, 48, 200)]
    [1, 1, 2, 4, 16]
    >>> [growing_block(passes, "stratified") for passes in (8, 16, 24, 48, 128, 200)]
    [1, 1, 2, 4, 16, 16]
    """
    size = 1 << max(0, math.ceil(math.log2(passes / _KEPT)))
    return max(size, _STRATIFIED) if draws == "stratified" and passes >= _ENOUGH * _STRATIFIED else size


def begin_statistics(needs: Collection[str], plain: Tensor | None, passes: int, draws: str) -> PassStatistics:
    """Statistics for so many passes, with their sums after every block where the needs include "blocks"."""
    if BLOCKS not in needs:
        return PassStatistics(needs, plain)
    return BlockedStatistics({*needs} - {BLOCKS}, plain, block=block_size(passes, draws))


def block_shares(passes: int, block: int) -> list[float]:
    """The share of the passes in each block.

    >>> block_shares(40, 16)
    [0.4, 0.4, 0.2]
    """
    return [min(block, passes - begin) / passes for begin in range(0, passes, block)]


def splits(blocks: int) -> list[tuple[bool, ...]]:
    """Ways to split blocks into two sets, as even as can be and each unlike the others: rows of a Hadamard matrix.

    Each set has two blocks at least, so that there are none of fewer than four.

    >>> splits(4)[0], splits(3), [sum(first) for first in splits(16)]
    ((True, False, True, False), [], [8, 8, 8, 8, 8, 8, 8, 8])
    """
    rows = (tuple((row & column).bit_count() % 2 == 0 for column in range(blocks)) for row in range(8, 16))
    return [row for row in dict.fromkeys(rows) if 1 < sum(row) < blocks - 1]


def split_error(pairs: Tensor, blocks: Sequence[float]) -> Tensor:
    """The standard error of a statistic that may have steps: how far apart two sets of blocks are.

    A share a of the passes differs from the other share b by 1/(ab) times the variance that all of them have. Ranks and
    counts take steps: leaving out one block of sixteen shows these twice as large as they are, half of them does not.

    Args:
        pairs: The statistic of both sets for each of `splits`, `[splits, 2, …]`.
        blocks: Shares of the blocks.
    """
    first = torch.tensor(splits(len(blocks)), dtype=torch.float64) @ torch.tensor(blocks, dtype=torch.float64)
    weight = (first * (1 - first)).view(-1, *[1] * (pairs.dim() - 2)).to(pairs.device)
    return (weight * (pairs[:, 0] - pairs[:, 1]).square()).mean(0).sqrt()


def jackknifed(whole: Tensor, left: Tensor, shares: Sequence[float]) -> tuple[Tensor, Tensor]:
    """A statistic without its bias, and its standard error: the jackknife over blocks of unequal size.

    Busing, Meijer and van der Leeden 1999, with each pseudo-value weighed by its own share: a last block that is cut
    short varies more than the others where draws are stratified.

    Args:
        whole: The statistic of all passes.
        left: The statistic without each block in turn, `[blocks, …]`.
        shares: Of the blocks.
    """
    share = torch.tensor(shares, dtype=torch.float64, device=left.device).view(-1, *[1] * whole.dim())
    alone = (whole - (1 - share) * left) / share  # pseudo-values
    centre = (share * alone).sum(0)
    return centre, ((share * (alone - centre)).square() / (1 - share)).sum(0).sqrt()


class BlockedStatistics(PassStatistics):
    """Statistics that remember their sums after every block of passes.

    Args:
        needs: As of `PassStatistics`; "correct" is not kept block by block.
        plain: As of `PassStatistics`.
        block: Passes of a block.

    Attributes:
        block: As given.
    """

    def __init__(self, needs: Collection[str], plain: Tensor | None = None, *, block: int) -> None:
        super().__init__(needs, plain)
        self.block = block
        self._after: list[tuple[int, dict[str, Tensor]]] = []

    def update(self, p: Tensor, passes_dim: int | None = None, *, check: bool = True) -> None:
        """Takes in one pass, or a stack of passes; see `PassStatistics.update`."""
        stacked = p.unsqueeze(0) if passes_dim is None else p.movedim(passes_dim, 0)
        while len(stacked):
            count = self.block - self.passes % self.block
            super().update(stacked[:count], passes_dim=0, check=check)
            stacked = stacked[count:]
            if self.passes % self.block == 0:
                self._after.append((self.passes, self._sums()))

    def add_sums(self, sums: Tensor, passes: int) -> None:
        """Refused: such passes cannot be told apart.

        Raises:
            BadInput: Always.
        """
        raise BadInput("passes must come one by one where blocks are kept", "passes", passes, "call update(p)")

    def _sums(self) -> dict[str, Tensor]:
        self._count_waiting()
        return {name: value.clone() for name, value in self.state.items() if name not in CONSTANT}

    @property
    def blocks(self) -> int:
        """How many there are, one that is cut short included."""
        return math.ceil(self.passes / self.block)

    def join(self, block: int) -> None:
        """Joins neighbouring blocks to larger ones, of a multiple of as many passes."""
        self.block = block
        self._after = [(passes, sums) for passes, sums in self._after if passes % block == 0]

    def take(self, examples: Tensor) -> BlockedStatistics:
        """The statistics of chosen examples `[..., n, C]`, by their numbers."""
        self._count_waiting()
        chosen = copy.copy(self)
        vars(chosen).update(
            derived={},
            state=_taken(self.state, examples),
            _after=[(passes, _taken(sums, examples)) for passes, sums in self._after],
            _shape=torch.Size((*self._shape[:-2], len(examples), self._shape[-1])),
            _waiting=Waiting(),
        )
        return chosen

    def jackknife(self, measure: Callable[[PassStatistics], Tensor]) -> Tensor:
        """The standard error of a measure, over blocks of which one at a time is left out.

        Args:
            measure: A function of statistics.

        Returns:
            Shaped like the measure, float64; NaN where there is but one block, or one pass beside it.

        Examples:
            >>> kept = BlockedStatistics(("sum_p",), block=1)
            >>> kept.update(torch.tensor([[[0.2, 0.8]], [[0.4, 0.6]], [[0.9, 0.1]]]), passes_dim=0)
            >>> error = kept.jackknife(lambda stats: stats.mean[..., 0])  # of a mean: the spread over the root of 3
            >>> torch.allclose(error, torch.tensor([0.2, 0.4, 0.9]).std().double() / 3**0.5)
            True
        """
        return self.corrected(measure)[1]

    def corrected(self, measure: Callable[[PassStatistics], Tensor]) -> tuple[Tensor, Tensor]:
        """A measure without the bias that falls with the number of passes, and its standard error.

        Args:
            measure: A function of statistics.

        Returns:
            Both shaped like the measure, float64; the error is NaN where `jackknife` is, and the measure as it is.
        """
        whole = measure(self).double()
        left = [measure(rest).double() for rest in self.left_out()]
        if not left:
            return whole, torch.full_like(whole, math.nan)
        return jackknifed(whole, torch.stack(left), block_shares(self.passes, self.block))

    def left_out(self) -> Iterator[PassStatistics]:
        """The statistics without each block in turn; none where there is but one, or one pass beside it."""
        blocks = self._block_sums()
        if len(blocks) < 2 or self.passes - self.block < 2:  # what is left of two passes has no spread
            return
        for passes, block in blocks:
            yield self._without(block, passes)

    def halves(self) -> Iterator[tuple[PassStatistics, PassStatistics]]:
        """The statistics of two sets of blocks, for each way of `splits`."""
        blocks = self._block_sums()
        for first in splits(len(blocks)):
            sums = {name: torch.zeros_like(value) for name, value in blocks[0][1].items()}
            for (_, block), inside in zip(blocks, first, strict=True):
                if inside:
                    sums = {name: value + block[name] for name, value in sums.items()}
            count = sum(passes for (passes, _), inside in zip(blocks, first, strict=True) if inside)
            second = self._without(sums, count)
            rest = {name: self.state[name] - value for name, value in sums.items()}
            yield self._without(rest, self.passes - count), second

    def _block_sums(self) -> list[tuple[int, dict[str, Tensor]]]:
        """Passes and sums of each block."""
        ends = [*self._after] if self.passes % self.block == 0 else [*self._after, (self.passes, self._sums())]
        found, before, first = [], dict[str, Tensor](), 0
        for last, after in ends:
            found.append((last - first, {name: v - before[name] if before else v for name, v in after.items()}))
            first, before = last, after
        return found

    def _without(self, block: Mapping[str, Tensor], passes: int) -> PassStatistics:
        """The statistics of all passes but those of a block."""
        rest = copy.copy(self)
        rest.passes, rest.derived = self.passes - passes, {}
        rest.state = self.state | {name: self.state[name] - value for name, value in block.items()}
        return rest


def _taken(state: Mapping[str, Tensor], examples: Tensor) -> dict[str, Tensor]:
    return {name: value.index_select(_EXAMPLES.get(name, -1), examples) for name, value in state.items()}
