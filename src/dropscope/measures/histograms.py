"""Measures of histograms over passes: entropy within a class, overlap and divergence of the two likeliest classes.

f_cb is the share of passes whose p_t(c) falls into bin b; f_1 and f_2 are those of the two classes of highest mean. The
measures share one scan of the histograms; see `statistics` for the counting.
"""

from __future__ import annotations

from torch import Tensor

from dropscope.errors import BadInput
from dropscope.measures.needs import measure_docs, statistics_of
from dropscope.measures.statistics import HistogramSummary, PassStatistics, summarize, top_two

_SLAB = 1 << 17  # counts of a histogram that are looked at together: in float64 they fit into a cache
_FLOOR = 1e-7


@measure_docs()
def averaged_entropy(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Entropy over passes of each class's probability, averaged over classes.

    (1/C) Σ_c −Σ_b f_cb log f_cb. In [0, log min(T, bins)]. The left Riemann sum of the paper's integral over densities
    is this minus log(bins): the same ranking, but here 0 is certain.

    Not expected_entropy, the entropy over classes within a pass; this one is over passes within a class.
    Reference: Camarasa et al. (2020), eq 4.

    Examples:
        >>> import torch
        >>> averaged_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
        [0.6931471824645996]
    """
    kept, summary = _scanned(passes, "averaged_entropy", plain)
    return summary.entropy.to(kept.dtype)


@measure_docs(raises="Where there is one class, or a statistic was not kept.")
def bhattacharyya(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Overlap of the histograms of the two classes of highest mean.

    Σ_b sqrt(f_1b f_2b). In [0, 1]: 0 certain, 1 uncertain.

    Not kullback_leibler, which goes on telling apart histograms that do not overlap at all.
    Reference: Camarasa et al. (2020), eq 5.

    Examples:
        >>> import torch
        >>> bhattacharyya(torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]])).tolist()
        [0.5]
    """
    kept, summary = _scanned(passes, "bhattacharyya", plain, two=True)
    assert summary.overlap is not None
    return summary.overlap.to(kept.dtype)


@measure_docs(raises="Where `floor` is no share, there is one class, or a statistic was not kept.")
def kullback_leibler(passes: PassStatistics | Tensor, *, plain: Tensor | None = None, floor: float = _FLOOR) -> Tensor:
    """Minus the divergence of the histograms of the two classes of highest mean.

    −(KL(f_1‖f_2) + KL(f_2‖f_1)). In [2 log(floor), 0] about: 0 most uncertain. Empty bins get the share `floor`, then
    each histogram is normalised. The ranking depends on the floor: report 1e-10 and 1e-3 too.

    Not bhattacharyya, which needs no floor and is 0 for all histograms that do not overlap.
    Reference: Camarasa et al. (2020), eq 6.

    Args:
        floor: Share of an empty bin, in (0, 1).

    Examples:
        >>> import torch
        >>> kullback_leibler(torch.full((3, 1, 2), 0.5)).tolist()
        [0.0]
    """
    if not 0 < floor < 1:
        raise BadInput("floor must be above 0 and below 1", "floor", floor, "leave floor=1e-7")
    kept, summary = _scanned(passes, "kullback_leibler", plain, two=True, floor=floor)
    assert summary.divergence is not None
    return (0.0 - summary.divergence).to(kept.dtype)


def _scanned(
    passes: PassStatistics | Tensor,
    measure: str,
    plain: Tensor | None,
    floor: float | None = None,
    *,
    two: bool = False,
) -> tuple[PassStatistics, HistogramSummary]:
    """The statistics that a measure reads, and what their histograms say."""
    kept = statistics_of(passes, measure, plain)
    return kept, _summary(kept, floor, two=two)


def _summary(kept: PassStatistics, floor: float | None, *, two: bool) -> HistogramSummary:
    """What the histograms say, from one scan that all measures share; without a floor, at any that was asked for."""
    histogram = kept.read("histogram")
    classes = histogram.shape[-2]
    if two and classes < 2:
        rule = "classes must be at least 2 to compare two of them"
        raise BadInput(rule, "classes", classes, "use averaged_entropy for one output")
    if two:
        kept.read("sum_p")  # raises where it was not kept
    known = kept.derived.setdefault("histograms", {})
    if floor is None and known:
        return next(iter(known.values()))
    floor = _FLOOR if floor is None else floor
    if floor not in known:
        paired = two or ("sum_p" in kept.state and classes > 1)
        known[floor] = summarize(histogram, top_two(kept.mean) if paired else None, kept.passes, floor, _SLAB)
    return known[floor]
