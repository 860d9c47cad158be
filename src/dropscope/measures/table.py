"""Table of measures: what each is called, reads and means; and the rows for what a user names.

A function of the user's own becomes a row too: see `resolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from dropscope.errors import BadInput, nearest
from dropscope.measures.confidence import (
    margin,
    max_probability,
    plain_entropy,
    plain_margin,
    plain_max_probability,
)
from dropscope.measures.histograms import averaged_entropy, bhattacharyya, kullback_leibler
from dropscope.measures.information import bald, bald_corrected, expected_entropy, predictive_entropy
from dropscope.measures.needs import FACTS, PLAIN
from dropscope.measures.spread import (
    averaged_std,
    averaged_variance,
    variation_max,
    variation_predicted,
    variation_ratio,
)
from dropscope.statistics import CHEAP, PassStatistics


@dataclass(frozen=True)
class Measure:
    """One row of the table of measures. Calling it computes the measure.

    Attributes:
        name: What the measure is called in arguments and tables.
        function: The function itself.
        needs: Statistics that it reads, as `PassStatistics` names them.
        range: Values it can take, in words.
        reference: Where it is defined.
        direction: What a higher value means: the same for all measures.
        of: What the function takes: "statistics", "passes" for the stored passes `[passes, N, C, ...]`, or "plain" for
            the probabilities `[N, C, ...]` of one pass without noise.

    Examples:
        >>> import torch
        >>> from dropscope import measures
        >>> measures.TABLE["bald"].range
        '[0, predictive_entropy]'
        >>> measures.TABLE["bald"](torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
        [0.6931471824645996]
    """

    name: str
    function: Callable[..., Tensor]
    needs: tuple[str, ...]
    range: str
    reference: str
    direction: str = "higher = more uncertain"
    of: Literal["statistics", "passes", "plain"] = "statistics"

    @property
    def needs_plain(self) -> bool:
        """Whether it compares with the plain pass."""
        return PLAIN in self.needs

    def __call__(self, passes: PassStatistics | Tensor) -> Tensor:
        """The measure of these passes."""
        return self.function(passes)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        variation_predicted, variation_max, predictive_entropy, expected_entropy, bald, bald_corrected,
        averaged_variance, averaged_std, averaged_entropy, bhattacharyya, kullback_leibler,
        variation_ratio, max_probability, margin,
    )
} | {"mutual_information": bald}  # fmt: skip
TABLE: dict[str, Measure] = {name: Measure(name, _FUNCTIONS[name], *facts) for name, facts in FACTS.items()}
PLAIN_TABLE: dict[str, Measure] = {  # of one plain pass: what the others have to beat
    name: Measure(name, function, (), range_, reference, of="plain")
    for name, function, range_, reference in (
        ("plain_max_probability", plain_max_probability, "[0, 1 - 1/C]", "Hendrycks and Gimpel 2017"),
        ("plain_entropy", plain_entropy, "[0, log C]", "Shannon 1948"),
        ("plain_margin", plain_margin, "[0, 1]", "Scheffer et al. 2001"),
    )
}
DEFAULT = ("variation_predicted", "variation_max", "predictive_entropy", "expected_entropy", "bald")
SEGMENTATION = ("averaged_variance", "averaged_entropy", "bhattacharyya", "kullback_leibler")
_ALL = tuple(name for name in TABLE if name != "mutual_information")  # which is bald


def resolve(
    measures: str | Callable[..., Tensor] | Measure | Sequence[str | Callable[..., Tensor] | Measure] | None = None,
) -> list[Measure]:
    """The rows for what a user names.

    Args:
        measures: A name in `TABLE` or `PLAIN_TABLE`, a function, a row, or several of these; None means `DEFAULT`,
            "all" every measure of `TABLE`. A function of your own becomes a row under its name. It gets the
            `PassStatistics` with what its attribute `needs` names (without one: the cheap statistics), or with the
            attribute `of = "passes"` the stored passes `[passes, N, C, ...]`, whose memory grows with their number.

    Returns:
        A row for each, in the same order.

    Raises:
        BadInput: Where a name is not in the table, a function has no name, or two rows have the same name.

    Examples:
        >>> [row.name for row in resolve(["bald", "margin"])]
        ['bald', 'margin']
        >>> def spread(statistics):
        ...     return statistics.class_variance.sum(-1)
        >>> resolve(spread)[0].name
        'spread'
    """
    if measures is None:
        measures = DEFAULT
    elif isinstance(measures, str) or callable(measures):
        measures = [measures]
    rows = [_row(one) for measure in measures for one in (_ALL if measure == "all" else [measure])]
    names = [row.name for row in rows]
    if not names or len(set(names)) < len(names):
        remedy = "name each measure once (functions by a __name__ of their own)"
        raise BadInput("measures must be one or more, each with its own name", "measures", names, remedy)
    return rows


def _row(measure: Any) -> Measure:
    if isinstance(measure, Measure):
        return measure
    if isinstance(measure, str):
        if measure not in (known := TABLE | PLAIN_TABLE):
            rule = "measures must be names in the table, or functions"
            raise BadInput(rule, "measures", measure, nearest(measure, known))
        return known[measure]
    for row in (*TABLE.values(), *PLAIN_TABLE.values()):
        if measure is row.function:
            return row
    name = getattr(measure, "__name__", "")
    of = getattr(measure, "of", "statistics")
    if not callable(measure) or not name.isidentifier() or of not in ("statistics", "passes"):
        remedy = "define the measure with def, and leave `of` out or set it to 'passes'"
        raise BadInput("measures of your own must be named functions", "measures", measure, remedy)
    needs = tuple(getattr(measure, "needs", () if of == "passes" else CHEAP))
    kind: Literal["statistics", "passes"] = "passes" if of == "passes" else "statistics"
    return Measure(name, measure, needs, "as its author says", "the user's own", of=kind)
