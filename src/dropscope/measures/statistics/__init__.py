"""Running statistics over passes: update, merge, read. The passes themselves are never kept."""

from dropscope.measures.statistics.blocks import (
    BLOCKS,
    BlockedStatistics,
    begin_statistics,
    block_shares,
    block_size,
    growing_block,
    split_error,
)
from dropscope.measures.statistics.histograms import HistogramSummary, summarize, top_two
from dropscope.measures.statistics.running import SUMMED, PassStatistics, from_passes
from dropscope.measures.statistics.sums import CHEAP, statistics_bytes

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
