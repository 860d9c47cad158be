"""Large states on a CPU, a cache at a time: views of running sums and of the passes that go into them.

Owns the sizes. A volume in float64 runs through memory once per operation; a piece stays in a cache for all of them.
"""

from __future__ import annotations

from torch import Tensor

# Values taken in at once: in float64 they fit into a cache, and torch does not share them out among threads that would
# wait for each other longer than they work (it does from 32,768 on).
_IN_CACHE = 3 << 13
_PASSES_IN_CACHE = 8
_DENSE = 1 << 16  # values per pass from which that repays
_ELEMENTWISE = frozenset({"sum_p", "squared", "shift"})  # statistics that look at one value at a time


def pieces(state: dict[str, Tensor], p: Tensor) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Views of a state and of `p[passes, *cells, C]`, a few neighbouring values at a time, in the order of memory.

    None where there are few values, where a statistic looks at several classes at once, or where state and passes do
    not lie in memory alike.
    """
    shape = p.shape[1:]
    if p[0].numel() < _DENSE or not state or not set(state) <= _ELEMENTWISE:
        return []
    order = sorted(range(len(shape)), key=lambda dim: -p.stride(dim + 1))
    try:
        rows = p.permute(0, *(dim + 1 for dim in order)).view(len(p), -1)
        views = {name: value.expand(shape).permute(order).view(-1) for name, value in state.items()}
    except RuntimeError:
        return []
    passes = min(len(p), _PASSES_IN_CACHE)
    step = _IN_CACHE // passes
    return [
        ({name: view[begin : begin + step] for name, view in views.items()}, some[:, begin : begin + step])
        for begin in range(0, rows.shape[1], step)
        for some in rows.split(passes)
    ]
