"""Running statistics over passes: update, merge, read. The passes themselves are never kept."""

from dropscope.statistics.blocks import (
    BLOCKS,
    BlockedStatistics,
    begin_statistics,
    block_shares,
    block_size,
    growing_block,
    split_error,
)
from dropscope.statistics.histograms import HistogramSummary, summarize, top_two
from dropscope.statistics.running import SUMMED, PassStatistics, from_passes
from dropscope.statistics.sums import CHEAP, statistics_bytes

__all__ = [
    "BLOCKS",
    "CHEAP",
    "SUMMED",
    "BlockedStatistics",
    "HistogramSummary",
    "PassStatistics",
    "begin_statistics",
    "block_shares",
    "block_size",
    "from_passes",
    "growing_block",
    "split_error",
    "statistics_bytes",
    "summarize",
    "top_two",
]
