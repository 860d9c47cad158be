"""Monotonicity of accuracy as less certain examples are let in: the curve, its corrections, the penalties.

As defined by Benyamina and Jemelen (docs/papers.md). A penalty does not say how useful an uncertainty is: a useless one
has a flat curve and a small penalty. So show it beside `reference_levels` and a `detection` score, never alone.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.docs import correction_docs, curve_docs
from dropscope.scores.ranking import Ranking, rank


@curve_docs("`[..., points]`, float64.")
def accuracy_curve(uncertainty: Tensor, correct: Tensor, points: int = 100) -> Tensor:
    """Accuracy on the most certain examples, as more of them are let in.

    a_q = accuracy on S_q = {U ≤ τ_q}, q = 1/points … 1; τ_q the k-th smallest U, k = ⌈q n⌉ in integers. In [0, 1].
    Falling is good. Ties enter together, so the last value is the accuracy of all.

    Not `risk_coverage_curve`, which has n points and shares out ties.
    Reference: Benyamina and Jemelen, hypothesis 1.

    Examples:
        >>> accuracy_curve(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 1, 0, 1]), points=4).tolist()
        [1.0, 1.0, 0.6666666666666666, 0.75]
    """
    return curve_of(rank(uncertainty, correct), points)


@correction_docs
def isotonic_correction(curve: Tensor) -> Tensor:
    """The non-increasing curve nearest to a curve in least squares, with equal weights.

    In the range of the curve. By the min-max formula c_k = min_{i≤k} max_{j≥k} mean(a_i … a_j), which gives what
    pooling adjacent violators (PAVA) gives, without data-dependent steps.

    Not the rearrangement, which keeps the values and moves them. Reference: Benyamina and Jemelen, eq 15.

    Examples:
        >>> isotonic_correction(torch.tensor([1.0, 0.6, 0.8])).round(decimals=3).tolist()
        [1.0, 0.7, 0.7]
    """
    curve = _checked_curve(curve)
    points = curve.shape[-1]
    a = curve.reshape(-1, points).T.contiguous()  # curves last: every step below runs over all of them at once
    total = torch.cat([torch.zeros_like(a[:1]), a.cumsum(0)])
    lengths = torch.arange(points, 0, -1, device=a.device, dtype=a.dtype).unsqueeze(-1)
    best, fitted = torch.full_like(a, -torch.inf), torch.empty_like(a)
    for k in reversed(range(points)):
        means = (total[k + 1] - total[: k + 1]) / lengths[-k - 1 :]  # of a_i … a_k, for each i ≤ k
        best[: k + 1] = torch.maximum(best[: k + 1], means)
        fitted[k] = best[: k + 1].amin(0)
    # Cumulative sums leave rounding of 1e-16 where nothing is to be corrected: a falling curve has penalty 0 exactly.
    return torch.where((fitted - a).abs() < 1e-12, a, fitted).T.reshape(curve.shape)


@correction_docs
def rearrangement_correction(curve: Tensor) -> Tensor:
    """The values of a curve in decreasing order.

    In the range of the curve. Not the running minimum that the authors' code computes under this name.
    Reference: Benyamina and Jemelen, eq 16.

    Examples:
        >>> rearrangement_correction(torch.tensor([1.0, 0.5, 0.75])).tolist()
        [1.0, 0.75, 0.5]
    """
    return _checked_curve(curve).sort(dim=-1, descending=True).values


@correction_docs
def running_minimum_correction(curve: Tensor) -> Tensor:
    """The running minimum of a curve.

    min(a_1 … a_k). In the range of the curve, never above it. Not a projection: one dip holds everything after it down.
    Reference: Benyamina and Jemelen, the authors' code.

    Examples:
        >>> running_minimum_correction(torch.tensor([1.0, 0.5, 0.75])).tolist()
        [1.0, 0.5, 0.5]
    """
    return _checked_curve(curve).cummin(-1).values


@curve_docs()
def isotonic_penalty(uncertainty: Tensor, correct: Tensor, points: int = 100) -> Tensor:
    """Mean distance of the accuracy curve from its isotonic correction.

    (1/N) Σ_k |a_k − c_k| over the N points. In [0, 1/2]. Lower is better. 0 for every non-increasing curve, flat ones
    too; biased up by chance, the more the smaller n.

    Not a discrimination score. Reference: Benyamina and Jemelen, eq 8, 15, 17.

    Examples:
        >>> round(isotonic_penalty(torch.tensor([1, 2, 3]), torch.tensor([1, 0, 1]), points=3).item(), 6)
        0.055556
    """
    return isotonic_penalty_of(accuracy_curve(uncertainty, correct, points))


@curve_docs()
def running_minimum_penalty(uncertainty: Tensor, correct: Tensor, points: int = 100) -> Tensor:
    """Area between the accuracy curve and its running minimum.

    ∫ (a − running minimum of a) dq by the trapezoid rule over q = linspace(0, 1, points). In [0, 1]. Lower is better.
    Here a_q is the accuracy on S_q = {U < τ_q}, strict, with τ_q the linear-interpolation quantile of U (the same sets
    as the order statistic ⌈q(n − 1)⌉ gives, which is what is used: no rounding). Empty sets, q = 0 always, are dropped.

    Not the rearrangement penalty, although the authors' code calls it that.
    Reference: Benyamina and Jemelen, the authors' code (docs/papers.md, known discrepancy).

    Examples:
        >>> running_minimum_penalty(torch.tensor([1, 2, 3, 4, 5]), torch.tensor([1, 0, 1, 1, 1]), points=5)
        tensor(0.0729, dtype=torch.float64)
    """
    return running_minimum_penalty_of(rank(uncertainty, correct), points)


@curve_docs()
def rearrangement_penalty(uncertainty: Tensor, correct: Tensor, points: int = 100) -> Tensor:
    """Mean distance of the accuracy curve from the same values in decreasing order.

    (1/N) Σ_k |a_k − c_k| over the N points. In [0, 1/2]. Lower is better. At most twice the isotonic penalty.

    Not a discrimination score. Reference: Benyamina and Jemelen, eq 8, 16, 17.

    Examples:
        >>> round(rearrangement_penalty(torch.tensor([1, 2, 3]), torch.tensor([1, 0, 1]), points=3).item(), 6)
        0.111111
    """
    return rearrangement_penalty_of(accuracy_curve(uncertainty, correct, points))


def reference_levels(
    accuracy: float, n: int, *, points: int = 100, draws: int = 200, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Mean penalty of a random and of a truly monotone measure at this accuracy and n, by simulation.

    Random: each example is correct with probability `accuracy`, whatever its rank. Monotone: with a probability that
    falls linearly in the rank r ∈ (0, 1), accuracy + (1 − 2r)·min(accuracy, 1 − accuracy), whose mean is the accuracy.
    A penalty near the random level says nothing; one below the monotone level is luck.

    Not a test: the levels are means, and a penalty scatters around them.

    Args:
        accuracy: Share of correct examples, in [0, 1].
        n: How many examples there are.
        points: Points of the accuracy curve, at least 2.
        draws: How many data sets are simulated.
        seed: Same seed, same numbers.

    Returns:
        For each penalty the levels "random" and "monotone".

    Raises:
        BadInput: Where a value is out of range.

    Examples:
        >>> levels = reference_levels(0.73, 200, draws=50)
        >>> sorted(levels), levels["isotonic_penalty"]["random"] > 4 * levels["isotonic_penalty"]["monotone"]
        (['isotonic_penalty', 'rearrangement_penalty', 'running_minimum_penalty'], True)
    """
    if not 0 <= accuracy <= 1:
        raise BadInput("accuracy must be in [0, 1]", "accuracy", accuracy, "give a share, not a percentage")
    for name, count in (("n", n), ("draws", draws)):
        if count < 1:
            raise BadInput(f"{name} must be at least 1", name, count, f"write {name}=200")
    # Six decimals are far finer than the level's own error, and let near-equal accuracies share one simulation.
    rows = _levels(round(float(accuracy), 6), int(n), points, draws, seed)
    return {name: {"random": random, "monotone": monotone} for name, random, monotone in rows}


@lru_cache(maxsize=256)
def _levels(accuracy: float, n: int, points: int, draws: int, seed: int) -> tuple[tuple[str, float, float], ...]:
    generator = torch.Generator().manual_seed(seed)
    position = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    slope = min(accuracy, 1 - accuracy)
    totals = torch.zeros(2, 3, dtype=torch.float64)
    at_once = max(1, (1 << 21) // n)
    for first in range(0, draws, at_once):
        uniform = torch.rand(min(at_once, draws - first), n, generator=generator, dtype=torch.float64)
        # The same uniforms for both levels: their ratio is steadier than either.
        for row, chance in enumerate((torch.full_like(position, accuracy), accuracy + (1 - 2 * position) * slope)):
            wrong = uniform >= chance
            errors = torch.nn.functional.pad(wrong.cumsum(-1), (1, 0))
            ranking = Ranking(position.expand(wrong.shape), wrong, errors)
            totals[row] += torch.stack([p.sum() for p in penalties_of(ranking, points).values()])
    random, monotone = (totals / draws).tolist()
    return tuple(zip(penalties_of(ranking, points), random, monotone, strict=True))


def curve_of(ranking: Ranking, points: int = 100) -> Tensor:
    """`accuracy_curve` of a ranking."""
    _check_points(points)
    n = ranking.n
    k = torch.tensor([(j * n + points - 1) // points for j in range(1, points + 1)], device=ranking.wrong.device)
    threshold = ranking.uncertainty[..., k - 1]
    size = torch.searchsorted(ranking.uncertainty.contiguous(), threshold.contiguous(), right=True)
    return (size - ranking.errors.gather(-1, size)).double() / size


def isotonic_penalty_of(curve: Tensor) -> Tensor:
    """`isotonic_penalty` of a curve."""
    return (curve - isotonic_correction(curve)).abs().mean(-1)


def rearrangement_penalty_of(curve: Tensor) -> Tensor:
    """`rearrangement_penalty` of a curve."""
    return (curve - rearrangement_correction(curve)).abs().mean(-1)


def running_minimum_penalty_of(ranking: Ranking, points: int = 100) -> Tensor:
    """`running_minimum_penalty` of a ranking."""
    _check_points(points)
    steps = points - 1
    at = torch.tensor([-(-j * (ranking.n - 1) // steps) for j in range(points)], device=ranking.wrong.device)
    threshold = ranking.uncertainty[..., at]
    size = torch.searchsorted(ranking.uncertainty.contiguous(), threshold.contiguous(), right=False)
    # Accuracy 1 on empty sets: they come first, and the minimum is at most 1, so they add nothing, as if dropped.
    curve = 1 - ranking.errors.gather(-1, size).double() / size.clamp_min(1)
    excess = curve - curve.cummin(-1).values
    return (excess[..., 1:] + excess[..., :-1]).sum(-1) / (2 * steps)


def penalties_of(ranking: Ranking, points: int = 100) -> dict[str, Tensor]:
    """The three penalties from one sort."""
    curve = curve_of(ranking, points)
    return {
        "isotonic_penalty": isotonic_penalty_of(curve),
        "rearrangement_penalty": rearrangement_penalty_of(curve),
        "running_minimum_penalty": running_minimum_penalty_of(ranking, points),
    }


def _check_points(points: int) -> None:
    if points < 2:
        raise BadInput("points must be at least 2", "points", points, "leave points=100")


def _checked_curve(curve: Tensor) -> Tensor:
    if curve.dim() < 1 or curve.shape[-1] < 1 or not curve.is_floating_point():
        remedy = "give what accuracy_curve returns"
        raise BadInput("curve must be a floating tensor [..., points]", "curve", tuple(curve.shape), remedy)
    return curve.double()
