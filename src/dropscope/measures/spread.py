"""Measures of spread over passes: how far probabilities, or votes, move from pass to pass."""

from __future__ import annotations

from torch import Tensor

from dropscope.measures.needs import measure_docs, statistics_of
from dropscope.measures.statistics import PassStatistics


@measure_docs(
    raises="Where `plain` is missing, or the statistic was not kept.",
    plain="Probabilities `[N, C, ...]` of the plain pass; required with stored passes.",
)
def variation_predicted(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Mean squared deviation of the predicted class's probability from the plain pass.

    (1/T) Σ_t (p_t(c*) − p*(c*))², where c* and p* come from the plain pass. In [0, 1].

    Not the variance of p_t(c*), which is around the mean of the passes and so misses their common shift from p*.
    Reference: Benyamina and Jemelen, eq 9.

    Examples:
        >>> import torch
        >>> variation_predicted(torch.tensor([[[0.7, 0.3]], [[0.9, 0.1]]]), plain=torch.tensor([[1.0, 0.0]]))
        tensor([0.0500])
    """
    kept = statistics_of(passes, "variation_predicted", plain)
    return kept.predicted_deviation.to(kept.dtype)


@measure_docs()
def variation_max(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Variance over passes of the highest probability.

    Population variance over t of max_c p_t(c). In [0, 1/4].

    Not averaged_variance, which follows every class; here the class may change from pass to pass unseen.
    Reference: Benyamina and Jemelen, eq 10.

    Examples:
        >>> import torch
        >>> variation_max(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])).tolist()
        [0.0625]
    """
    kept = statistics_of(passes, "variation_max", plain)
    return kept.max_variance.to(kept.dtype)


@measure_docs()
def averaged_variance(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Variance over passes of each class's probability, averaged over classes.

    (1/C) Σ_c Var_t p_t(c), the trace of the covariance over C; population variance. In [0, 1/4].

    Not averaged_std, the mean of the standard deviations, which ranks differently.
    Reference: Camarasa et al. (2020), eq 3.

    Examples:
        >>> import torch
        >>> averaged_variance(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
        [0.25]
    """
    kept = statistics_of(passes, "averaged_variance", plain)
    return kept.class_variance.mean(-1).to(kept.dtype)


@measure_docs()
def averaged_std(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Standard deviation over passes of each class's probability, averaged over classes.

    (1/C) Σ_c sqrt(Var_t p_t(c)); population variance. In [0, 1/2].

    Not averaged_variance, which is what Camarasa et al. define; this is what their code computes.
    Reference: Camarasa et al. (2020), code of eq 3.

    Examples:
        >>> import torch
        >>> averaged_std(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
        [0.5]
    """
    kept = statistics_of(passes, "averaged_std", plain)
    return kept.class_variance.sqrt().mean(-1).to(kept.dtype)


@measure_docs()
def variation_ratio(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Share of passes that do not predict the class that most passes predict.

    1 − (votes of that class)/T. In [0, 1 − 1/C].

    Not max_probability, which weighs votes by their probability; here there are only T + 1 values, so many ties.
    Reference: Gal (2016), Uncertainty in Deep Learning, eq 3.19.

    Examples:
        >>> import torch
        >>> variation_ratio(torch.tensor([[[0.6, 0.4]], [[0.4, 0.6]], [[0.9, 0.1]], [[0.8, 0.2]]])).tolist()
        [0.25]
    """
    kept = statistics_of(passes, "variation_ratio", plain)
    return (1 - kept.read("votes").amax(-1).double() / kept.passes).to(kept.dtype)
