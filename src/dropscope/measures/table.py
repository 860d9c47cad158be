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
from dropscope.measures.own import FORMS, Form, base_name, called, form_of
from dropscope.measures.spread import (
    averaged_std,
    averaged_variance,
    variation_max,
    variation_predicted,
    variation_ratio,
)
from dropscope.measures.statistics import PassStatistics, from_passes


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
        own: Whether it is a function of the user's, whose result is checked.

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
    own: bool = False

    @property
    def needs_plain(self) -> bool:
        """Whether it reads the plain pass."""
        return self.of == "plain" or PLAIN in self.needs

    def __call__(self, passes: PassStatistics | Tensor) -> Tensor:
        """The measure of these passes."""
        if not self.own:
            return self.function(passes)
        if self.of == "statistics" and isinstance(passes, Tensor):
            passes = from_passes(passes, self.needs)
        return called(self.function, self.name, passes)


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


def of_statistics(
    function: Callable[..., Tensor], *, name: str | None = None, needs: Sequence[str] | None = None
) -> Measure:
    """A measure that is a function of the statistics, under a name.

    Args:
        function: Takes a `PassStatistics`, whose properties are `[..., C]` or `[...]`, and returns `[...]`.
        name: What the measure is called; None takes the function's own name.
        needs: Statistics that it reads; None finds them out.

    Returns:
        A row, for `measures=[...]`.

    Raises:
        BadInput: Where the function does not work on statistics.

    Examples:
        >>> row = of_statistics(lambda stats: stats.class_variance.amax(-1), name="largest_variance")
        >>> import torch
        >>> row(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.2500], dtype=torch.float64)
    """
    return _own(function, name, "statistics", needs)


def of_passes(function: Callable[..., Tensor], *, name: str | None = None) -> Measure:
    """A measure that is a function of the passes themselves, under a name. Memory grows with their number.

    Args:
        function: Takes probabilities `[passes, N, C, ...]` and returns `[N, ...]`.
        name: What the measure is called; None takes the function's own name.

    Returns:
        A row, for `measures=[...]`.

    Raises:
        BadInput: Where the function does not work on passes.

    Examples:
        >>> row = of_passes(lambda passes: passes.amax(2).quantile(0.9, 0), name="high_confidence")
        >>> import torch
        >>> row(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([1.])
    """
    return _own(function, name, "passes", None)


def resolve(
    measures: str | Callable[..., Tensor] | Measure | Sequence[str | Callable[..., Tensor] | Measure] | None = None,
) -> list[Measure]:
    """The rows for what a user names.

    Args:
        measures: A name in `TABLE` or `PLAIN_TABLE`, a function, a row, or several of these; None means `DEFAULT`,
            "all" every measure of `TABLE`. A function of your own takes the `PassStatistics` or the stored passes
            `[passes, N, C, ...]`: it is tried on a few numbers to see which, unless its annotation or its attribute
            `of` says so. Its attribute `needs` names the statistics that it reads. A lambda is called `lambda_1`,
            `lambda_2` and so on; `of_statistics` and `of_passes` name it.

    Returns:
        A row for each, in the same order.

    Raises:
        BadInput: Where a name is not in the table, a function fits neither form, or two rows have the same name.

    Examples:
        >>> [row.name for row in resolve(["bald", "margin"])]
        ['bald', 'margin']
        >>> def spread(statistics):
        ...     return statistics.class_variance.sum(-1)
        >>> [(row.name, row.of) for row in resolve([spread, lambda passes: passes.std(0).amax(1)])]
        [('spread', 'statistics'), ('lambda_1', 'passes')]
    """
    if measures is None:
        measures = DEFAULT
    elif isinstance(measures, str) or callable(measures):
        measures = [measures]
    named = [one for measure in measures for one in (_ALL if measure == "all" else [measure])]
    taken = {name for measure in named if (name := _stated_name(measure)) is not None}
    rows = [_row(measure, taken) for measure in named]
    names = [row.name for row in rows]
    if not names or len(set(names)) < len(names):
        remedy = "name each measure once; functions of one name by measures.of_passes(function, name='another')"
        raise BadInput("measures must be one or more, each with its own name", "measures", names, remedy)
    reserved = sorted(_COLUMNS & {*names})
    if reserved:
        rule = f"measures must not be called {' or '.join(map(repr, reserved))}, a column of its own"
        raise BadInput(rule, "measures", names, "give the measure another name")
    return rows


_COLUMNS = {
    "id", "group", "label", "prediction", "predicted_class", "probability", "correct", "passes", "settled", "deferred",
}  # fmt: skip


def _stated_name(measure: Any) -> str | None:
    """The name that a measure comes with; None for a lambda and the like."""
    if isinstance(measure, str):
        return measure
    if isinstance(measure, Measure):
        return measure.name
    name, own = base_name(measure)
    return name if own else None


def _row(measure: Any, taken: set[str]) -> Measure:
    """The row; a name that is made up here is added to those that are taken."""
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
    name, own = base_name(measure)
    if not own:
        numbers = range(1, len(taken) + 2)
        name = next(f"{name}_{number}" for number in numbers if f"{name}_{number}" not in taken)
        taken.add(name)
    form = getattr(measure, "of", None)
    if form is not None and form not in FORMS:
        remedy = "leave `of` out, or set it to 'statistics' or 'passes'"
        raise BadInput("measures of your own must say what they take, or leave it open", "measures", form, remedy)
    return _own(measure, name, form, getattr(measure, "needs", None))


def _own(function: Any, name: str | None, form: Form | None, needs: Sequence[str] | None) -> Measure:
    if not callable(function):
        remedy = "use names in the table, functions, or rows"
        raise BadInput("measures of your own must be functions", "measures", function, remedy)
    name = base_name(function)[0] if name is None else name
    if not isinstance(name, str) or not name.isidentifier():
        raise BadInput("measures must have Python names", "measures", name, "write name='my_measure'")
    of, reads = form_of(function, name, form, (needs,) if isinstance(needs, str) else needs)
    return Measure(name, function, reads, "as its author says", "the user's own", of=of, own=True)
