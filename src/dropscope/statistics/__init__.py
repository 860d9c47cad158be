"""Running statistics over passes: update, merge, finish. Passes themselves are never kept."""

from dropscope.statistics.histograms import Compared, compare, top_two
from dropscope.statistics.running import CHEAP, PassStatistics, broadcasts, from_passes, statistics_bytes

__all__ = ["CHEAP", "Compared", "PassStatistics", "broadcasts", "compare", "from_passes", "statistics_bytes", "top_two"]
