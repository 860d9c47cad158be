"""Uncertainty of each example (or voxel) from the statistics of its passes. Higher always means more uncertain.

Each measure takes a `PassStatistics`, or stored passes `[passes, N, C, ...]` (with `plain=[N, C, ...]` where it
compares with the plain pass), and returns `[N, ...]`. Natural logarithms; 0·log 0 = 0. How good one is, `scores` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dropscope.errors import BadInput, nearest
from dropscope.statistics import CHEAP, Compared, PassStatistics, compare, from_passes, top_two

_SLAB = 1 << 17  # counts of a histogram that are looked at together: in float64 they fit into a cache
_FLOOR = 1e-7


@dataclass(frozen=True)
class Measure:
    """One row of the table: what a measure is called, needs and means."""

    name: str
    function: Callable[..., Tensor]
    needs: tuple[str, ...]
    range: str
    reference: str
    direction: str = "higher = more uncertain"
    of: Literal["statistics", "passes"] = "statistics"

    @property
    def needs_plain(self) -> bool:
        return "predicted_deviation" in self.needs

    def __call__(self, passes: PassStatistics | Tensor) -> Tensor:
        return self.function(passes)


def variation_predicted(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """(1/T) Σ_t (p_t(c*) − p*(c*))², where c* and p* come from the plain pass. In [0, 1].

    Nearest: the variance of p_t(c*), which is around the mean of the passes and so misses their common shift from p*.
    Reference: S1 eq 9.

    >>> variation_predicted(torch.tensor([[[0.7, 0.3]], [[0.9, 0.1]]]), plain=torch.tensor([[1.0, 0.0]]))
    tensor([0.0500])
    """
    kept = _kept(passes, "variation_predicted", plain)
    return kept.predicted_deviation.to(kept.dtype)


def variation_max(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """Population variance over passes of max_c p_t(c). In [0, 1/4].

    Nearest: averaged_variance, which follows every class; here the class may change from pass to pass unseen.
    Reference: S1 eq 10.

    >>> variation_max(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])).tolist()
    [0.0625]
    """
    kept = _kept(passes, "variation_max", plain)
    return kept.max_variance.to(kept.dtype)


def predictive_entropy(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """H(p̂) = −Σ_c p̂ log p̂ of the mean p̂ over passes. In [0, log C].

    Nearest: expected_entropy, the mean of the entropies: it leaves out the disagreement between passes.
    Reference: S1 eq 11.

    >>> predictive_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.6931471824645996]
    """
    kept = _kept(passes, "predictive_entropy", plain)
    return torch.special.entr(kept.mean).sum(-1).to(kept.dtype)


def expected_entropy(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """(1/T) Σ_t H(p_t). In [0, log C].

    Nearest: predictive_entropy, the entropy of the mean, never smaller than this.
    Reference: S1 eq 12.

    >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.0]
    """
    kept = _kept(passes, "expected_entropy", plain)
    return kept.mean_entropy.to(kept.dtype)


def bald(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """H(p̂) − (1/T) Σ_t H(p_t), the mutual information of prediction and mask. In [0, predictive_entropy].

    Biased low by about a factor 1 − 1/T. Differences below the rounding of the passes' own precision (8 eps·H) are 0:
    passes without any noise have exactly none.
    Nearest: bald_corrected, without that bias; expected_entropy, the part of the entropy that is left.
    Reference: S1 eq 13.

    >>> bald(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.6931471824645996]
    """
    kept = _kept(passes, "bald", plain)
    total = torch.special.entr(kept.mean).sum(-1)
    shared = (total - kept.mean_entropy).clamp_min(0).minimum(total)
    return torch.where(shared <= 8 * torch.finfo(kept.dtype).eps * total, 0.0, shared).to(kept.dtype)


mutual_information = bald


def bald_corrected(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """bald + Σ_c s²_c / (2 T p̂_c), s² the sample variance over passes. In [0, log C − expected_entropy]; T ≥ 2.

    H(p̂) of a mean of T passes is low by Σ_c Var_c/(2 T p̄_c) to first order (delta method); the mean entropy is not
    biased. Where the spread is small this is the known factor T/(T − 1); where it is large that factor is too little.
    Nearest: bald, not corrected, never larger. Reference: PITFALLS R21; Miller (1955) for the expansion.

    >>> bald_corrected(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]))
    tensor([0.0637])
    """
    kept = _kept(passes, "bald_corrected", plain)
    if kept.passes < 2:
        raise BadInput("the correction needs a spread over passes", "passes", kept.passes, "run two passes or more")
    spread = kept.class_variance * kept.passes / (kept.passes - 1)
    mean = kept.mean
    missing = torch.where(mean > 0, spread / (2 * kept.passes * mean.clamp_min(1e-300)), 0.0).sum(-1)
    shared = torch.special.entr(mean).sum(-1) - kept.mean_entropy
    room = torch.log(torch.tensor(float(mean.shape[-1]), dtype=torch.float64)).item() - kept.mean_entropy
    return (shared.clamp_min(0) + missing).minimum(room).clamp_min(0).to(kept.dtype)


def averaged_variance(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """(1/C) Σ_c Var_t p_t(c), the trace of the covariance over C; population variance. In [0, 1/4].

    Nearest: averaged_std, the mean of the standard deviations, which ranks differently.
    Reference: S3 eq 3.

    >>> averaged_variance(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.25]
    """
    kept = _kept(passes, "averaged_variance", plain)
    return kept.class_variance.mean(-1).to(kept.dtype)


def averaged_std(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """(1/C) Σ_c sqrt(Var_t p_t(c)); population variance. In [0, 1/2].

    Nearest: averaged_variance, what S3's text defines; this is what its authors' code computes.
    Reference: S3, code of eq 3.

    >>> averaged_std(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.5]
    """
    kept = _kept(passes, "averaged_std", plain)
    return kept.class_variance.sqrt().mean(-1).to(kept.dtype)


def averaged_entropy(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """(1/C) Σ_c −Σ_b f_cb log f_cb, f_cb the share of passes whose p_t(c) falls into bin b. In [0, log min(T, bins)].

    The left Riemann sum of S3's integral over densities is this minus log(bins): the same ranking, but 0 when certain.
    Nearest: expected_entropy, the entropy over classes within a pass; this one is over passes within a class.
    Reference: S3 eq 4.

    >>> averaged_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.6931471824645996]
    """
    kept = _kept(passes, "averaged_entropy", plain)
    return _compared(kept).entropy.to(kept.dtype)


def bhattacharyya(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """Σ_b sqrt(f_1b f_2b): overlap of the histograms of the two classes of highest mean. In [0, 1].

    0 certain, 1 uncertain.
    Nearest: kullback_leibler, which goes on telling apart histograms that do not overlap at all.
    Reference: S3 eq 5.

    >>> bhattacharyya(torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]])).tolist()
    [0.5]
    """
    kept = _kept(passes, "bhattacharyya", plain)
    overlap = _compared(kept, two=True).overlap
    assert overlap is not None
    return overlap.to(kept.dtype)


def kullback_leibler(passes: PassStatistics | Tensor, plain: Tensor | None = None, *, floor: float = _FLOOR) -> Tensor:
    """−(KL(f_1‖f_2) + KL(f_2‖f_1)) of the two classes of highest mean. In [2 log(floor), 0] about: 0 most uncertain.

    Empty bins get the share `floor`, then each histogram is normalised. The ranking depends on the floor: report 1e-10
    and 1e-3 too.
    Nearest: bhattacharyya, which needs no floor and is 0 for all histograms that do not overlap.
    Reference: S3 eq 6.

    >>> kullback_leibler(torch.full((3, 1, 2), 0.5)).tolist()
    [0.0]
    """
    kept = _kept(passes, "kullback_leibler", plain)
    if not 0 < floor < 1:
        raise BadInput("the floor of an empty bin is a share", "floor", floor, "leave floor=1e-7")

    divergence = _compared(kept, floor, two=True).divergence
    assert divergence is not None
    return (0.0 - divergence).to(kept.dtype)


def variation_ratio(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """1 − (votes of the class that most passes predict)/T. In [0, 1 − 1/C].

    Nearest: max_probability, which weighs votes by their probability; here there are only T + 1 values, so many ties.
    Reference: Gal (2016), Uncertainty in Deep Learning, eq 3.19.

    >>> variation_ratio(torch.tensor([[[0.6, 0.4]], [[0.4, 0.6]], [[0.9, 0.1]], [[0.8, 0.2]]])).tolist()
    [0.25]
    """
    kept = _kept(passes, "variation_ratio", plain)
    return (1 - kept.read("votes").amax(-1).double() / kept.passes).to(kept.dtype)


def max_probability(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """1 − max_c p̂(c): an uncertainty, although named after the confidence it turns round. In [0, 1 − 1/C].

    Nearest: plain_max_probability, the same of one pass without noise.
    Reference: Hendrycks and Gimpel (2017).

    >>> max_probability(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])).tolist()
    [0.25]
    """
    kept = _kept(passes, "max_probability", plain)
    return (1 - kept.mean.amax(-1)).clamp_min(0).to(kept.dtype)


def margin(passes: PassStatistics | Tensor, plain: Tensor | None = None) -> Tensor:
    """1 − (p̂_(1) − p̂_(2)), the two largest mean probabilities. In [0, 1].

    Nearest: max_probability, which for two classes ranks the same; with more, the runner-up counts here.
    Reference: Scheffer et al. (2001).

    >>> margin(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])).tolist()
    [0.5]
    """
    kept = _kept(passes, "margin", plain)
    return _margin(kept.mean).to(kept.dtype)


def plain_entropy(p: Tensor, axis: int = 1) -> Tensor:
    """−Σ_c p log p of ONE pass `p[N, C, ...]`, classes along `axis`. In [0, log C]. The baseline of predictive_entropy.

    >>> plain_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.6931471824645996, 0.0]
    """
    return torch.special.entr(_classes_last(p, axis)).sum(-1).to(_precision(p))


def plain_max_probability(p: Tensor, axis: int = 1) -> Tensor:
    """1 − max_c p of ONE pass `p[N, C, ...]`. In [0, 1 − 1/C]. The baseline of max_probability.

    >>> plain_max_probability(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.5, 0.0]
    """
    return (1 - _classes_last(p, axis).amax(-1)).clamp_min(0).to(_precision(p))


def plain_margin(p: Tensor, axis: int = 1) -> Tensor:
    """1 − (p_(1) − p_(2)) of ONE pass `p[N, C, ...]`. In [0, 1]. The baseline of margin.

    >>> plain_margin(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    return _margin(_classes_last(p, axis)).to(_precision(p))


TABLE: dict[str, Measure] = {
    row.name: row
    for row in (
        Measure("variation_predicted", variation_predicted, ("predicted_deviation",), "[0, 1]", "S1 eq 9"),
        Measure("variation_max", variation_max, ("max_moments",), "[0, 1/4]", "S1 eq 10"),
        Measure("predictive_entropy", predictive_entropy, ("sum_p",), "[0, log C]", "S1 eq 11"),
        Measure("expected_entropy", expected_entropy, ("sum_plogp",), "[0, log C]", "S1 eq 12"),
        Measure("bald", bald, ("sum_p", "sum_plogp"), "[0, predictive_entropy]", "S1 eq 13"),
        Measure("mutual_information", bald, ("sum_p", "sum_plogp"), "[0, predictive_entropy]", "S1 eq 13, as bald"),
        Measure("bald_corrected", bald_corrected, ("class_moments", "sum_plogp"), "[0, log C]", "R21; Miller 1955"),
        Measure("averaged_variance", averaged_variance, ("class_moments",), "[0, 1/4]", "S3 eq 3"),
        Measure("averaged_std", averaged_std, ("class_moments",), "[0, 1/2]", "S3, code of eq 3"),
        Measure("averaged_entropy", averaged_entropy, ("histogram",), "[0, log min(T, bins)]", "S3 eq 4"),
        Measure("bhattacharyya", bhattacharyya, ("histogram", "sum_p"), "[0, 1]", "S3 eq 5"),
        Measure("kullback_leibler", kullback_leibler, ("histogram", "sum_p"), "[-33, 0]", "S3 eq 6"),
        Measure("variation_ratio", variation_ratio, ("votes",), "[0, 1 - 1/C]", "Gal 2016 eq 3.19"),
        Measure("max_probability", max_probability, ("sum_p",), "[0, 1 - 1/C]", "Hendrycks and Gimpel 2017"),
        Measure("margin", margin, ("sum_p",), "[0, 1]", "Scheffer et al. 2001"),
    )
}
DEFAULT = ("variation_predicted", "variation_max", "predictive_entropy", "expected_entropy", "bald")
SEGMENTATION = ("averaged_variance", "averaged_entropy", "bhattacharyya", "kullback_leibler")


def resolve(measures: Sequence[str | Callable[..., Tensor] | Measure] | None = None) -> list[Measure]:
    """Rows for what the user named: None is S1's five; a function becomes a row under its own name.

    A function gets the PassStatistics with what its attribute `needs` names (default: `statistics.CHEAP`), or with the
    attribute `of = "passes"` the stored passes `[passes, N, C, ...]`, whose memory grows with their number.

    >>> [row.name for row in resolve(["bald", "margin"])]
    ['bald', 'margin']
    """
    if isinstance(measures, str) or callable(measures):
        measures = [measures]
    rows = [_row(measure) for measure in (DEFAULT if measures is None else measures)]
    names = [row.name for row in rows]
    if not names or len(set(names)) < len(names):
        remedy = "name each measure once (functions by a __name__ of their own)"
        raise BadInput("measures are one or more, each with its own name", "measures", names, remedy)
    return rows


def _row(measure: Any) -> Measure:
    if isinstance(measure, Measure):
        return measure
    if isinstance(measure, str):
        if measure not in TABLE:
            raise BadInput("a measure is in the table, or a function", "measures", measure, nearest(measure, TABLE))
        return TABLE[measure]
    for row in TABLE.values():
        if measure is row.function:
            return row
    name = getattr(measure, "__name__", "")
    of = getattr(measure, "of", "statistics")
    if not callable(measure) or not name.isidentifier() or of not in ("statistics", "passes"):
        remedy = "define it with def, and leave `of` out or set it to 'passes'"
        raise BadInput("a measure of your own is a named function", "measures", measure, remedy)
    needs = tuple(getattr(measure, "needs", () if of == "passes" else CHEAP))
    kind: Literal["statistics", "passes"] = "passes" if of == "passes" else "statistics"
    return Measure(name, measure, needs, "as its author says", "the user's own", of=kind)


def _kept(passes: PassStatistics | Tensor, name: str, plain: Tensor | None) -> PassStatistics:
    if isinstance(passes, PassStatistics):
        return passes
    needs = TABLE[name].needs
    return from_passes(passes, needs, plain if TABLE[name].needs_plain else None)


def _compared(kept: PassStatistics, floor: float | None = None, two: bool = False) -> Compared:
    """What the histograms say, from one scan that all measures share; without a floor, at any that was asked for."""
    histogram = kept.read("histogram")
    if two and histogram.shape[-2] < 2:
        received = histogram.shape[-2]
        raise BadInput("two classes are compared", "classes", received, "use averaged_entropy for one output")
    if two:
        kept.read("sum_p")  # which says so where it was not kept
    known = kept.derived.setdefault("compared", {})
    if floor is None and known:
        return next(iter(known.values()))
    floor = _FLOOR if floor is None else floor
    if floor not in known:
        paired = two or ("sum_p" in kept.state and histogram.shape[-2] > 1)
        known[floor] = compare(histogram, top_two(kept.mean) if paired else None, kept.passes, floor, _SLAB)
    return known[floor]


def _margin(p: Tensor) -> Tensor:
    if p.shape[-1] < 2:
        raise BadInput("a margin is between two classes", "classes", p.shape[-1], "use max_probability for one output")
    top = p.topk(2, -1).values
    return (1 - (top[..., 0] - top[..., 1])).clamp(0, 1)


def _precision(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)


def _classes_last(p: Tensor, axis: int) -> Tensor:
    """Probabilities of one plain pass in float64, checked as the passes are."""
    one_pass = PassStatistics(("sum_p",))
    one_pass.update(p.movedim(axis, -1))
    return one_pass.mean
