"""Running sums over passes: which there are, what they cost, and how passes go into them.

Owns the arithmetic on a state of named tensors; `running` says when it applies. On a CPU large states are handled a
cache at a time: a volume in float64 runs through memory once per operation, a block stays in a cache for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor

from dropscope.errors import BadInput, nearest
from dropscope.measures.statistics import histograms

# name → (what is kept per cell, bytes per cell as a function of classes and bins). A cell is one example or voxel.
STATISTICS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "sum_p": ("Σ_t p_t(c), per class", lambda classes, bins: 8 * classes),
    "sum_plogp": ("Σ_t Σ_c p log p", lambda classes, bins: 8),
    "max_moments": ("first and second moment of max_c p_t(c)", lambda classes, bins: 20),
    "predicted_deviation": ("Σ_t (p_t(c*) − p*(c*))²; needs the plain pass", lambda classes, bins: 20),
    "class_moments": ("first and second moment of p_t(c), per class", lambda classes, bins: 20 * classes),
    "votes": ("how many passes predict class c", lambda classes, bins: 4 * classes),
    "histogram": (
        "how many passes put class c into each bin of [0, 1], and on a CPU the bins of the last 32 passes",
        lambda classes, bins: (2 * bins + histograms.WAITING) * classes,
    ),
    "correct": ("correct predictions of each pass, per group; needs labels; grows as passes × groups", lambda c, b: 0),
}
CHEAP = ("sum_p", "sum_plogp", "max_moments", "class_moments", "votes")

# Values taken in at once: in float64 they fit into a cache, and torch does not share them out among threads that would
# wait for each other longer than they work (it does from 32,768 on).
_IN_CACHE = 3 << 13
_PASSES_IN_CACHE = 8
_DENSE = 1 << 16  # values per pass from which blocks pay off
_ELEMENTWISE = frozenset({"sum_p", "squared", "shift"})  # statistics that look at one value at a time


def statistics_bytes(needs: Collection[str], classes: int, bins: int = 100) -> int:
    """Bytes kept per example (per voxel), whatever the number of passes.

    >>> statistics_bytes(("sum_p", "sum_plogp"), classes=10), statistics_bytes(("histogram",), classes=3)
    (88, 696)
    """
    return sum(STATISTICS[name][1](classes, bins) for name in check_needs(needs))


def advance(state: dict[str, Tensor], p: Tensor) -> dict[str, Tensor]:
    """The state after the passes `p[passes, ..., C]`: a pure function of tensors, so that torch.compile can fuse it."""
    return {**state, **{name: state[name] + more for name, more in _increments(state, p)}}


def advance_in_place(state: dict[str, Tensor], p: Tensor) -> None:
    """`advance`, written into the state: nothing of its size is made."""
    for name, more in _increments(state, p):
        state[name].add_(more)


def _increments(state: dict[str, Tensor], p: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What passes add to each sum.

    Sums run in float64. Squares are taken of deviations from a fixed shift (the plain pass, or the first pass seen),
    subtracted in float64 too: rounding the differences to float32 alone would cost 1e-8 in a variance.
    """
    if "sum_p" in state:
        yield "sum_p", _total(p)
    if "sum_plogp" in state:
        # Not xlogy, which is no vector code on a CPU. The logarithm of 0 is a number here, and 0 times it is 0.
        terms = p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p)
        yield "sum_plogp", _total(terms.sum(-1))
    if "sum_max" in state:
        highest = p.amax(-1)
        yield "sum_max", _total(highest)
        yield "squared_max", _total(highest.double().sub_(state["shift_max"]).square_())
    if "squared_predicted" in state:
        # Not take_along_dim, which looks for negative numbers first.
        at_predicted = p.gather(-1, state["plain_class"].expand(*p.shape[:-1], 1)).squeeze(-1)
        yield "squared_predicted", _total(at_predicted.double().sub_(state["plain_value"]).square_())
    if "squared" in state:
        yield "squared", _total(p.to(torch.float64, copy=True).sub_(state["shift"]).square_())
    if "votes" in state:
        classes = torch.arange(p.shape[-1], device=p.device)
        yield "votes", (p.argmax(-1, keepdim=True) == classes).sum(0, dtype=torch.int32)


def _total(values: Tensor) -> Tensor:
    """The sum over passes, in float64; one pass is its own, whatever its precision."""
    return values[0] if len(values) == 1 else values.sum(0, dtype=torch.float64)


def cache_blocks(state: dict[str, Tensor], p: Tensor) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Views of a state and of `p[passes, *cells, C]`, a few neighbouring values at a time, in the order of memory.

    An empty list where there are few values, where a statistic looks at several classes at once, or where state and
    passes do not lie in memory alike.
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
        ({name: view[begin : begin + step] for name, view in views.items()}, several[:, begin : begin + step])
        for begin in range(0, rows.shape[1], step)
        for several in rows.split(passes)
    ]


def check_needs(needs: Collection[str]) -> frozenset[str]:
    """The names as a set, if each is a statistic."""
    names = (needs,) if isinstance(needs, str) else tuple(needs)
    for name in names:
        if name not in STATISTICS:
            raise BadInput("needs must name statistics that exist", "needs", name, nearest(name, STATISTICS))
    return frozenset(names)


def variance(total: Tensor, squared: Tensor, shift: Tensor, passes: int) -> Tensor:
    """Population variance from a sum, the squared deviations from a shift, and that shift."""
    return (squared / passes - (total / passes - shift).square()).clamp_min(0)
