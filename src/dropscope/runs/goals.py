"""Goals of `passes="auto"`: after how many passes an example is looked at, and when it has had enough of them.

Owns the test. At each look a measure has an interval, from the jackknife over blocks of passes and Student's quantile,
and is settled where the interval lies to one side of the threshold. Intervals of all looks hold together (Bonferroni),
wherever one stops. Few passes are not normal: measures are taken on a scale on which they nearly are, and only one end
of an interval can be wrong, so that half of the error rate is left for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dropscope.analysis import t_factor
from dropscope.checks import check_choice, check_count, check_passes, finite_number
from dropscope.errors import BadInput
from dropscope.measures import Measure
from dropscope.measures.statistics import BlockedStatistics

AUTO = "auto"
_USUAL = "predictive_entropy"
_TOLERANCE = 0.01
_FIRST_OF_MEANS, _FIRST = 8, 16  # passes at the first look
_AT_MOST_DECIDING, _AT_MOST = 48, 512
# Entropies of means are nearly normal as square roots. What measures the spread of passes is more skewed: it takes more
# of them, and nearly its logarithm.
_POWER_OF_MEANS, _POWER = 1 / 2, 1 / 6
_MEANS = ({"sum_p"}, {"sum_plogp"})
# Where two classes change places, or a bin fills, these have a kink or a jump, and the jackknife is wrong about them.
_KINKED = ("max_probability", "margin", "variation_ratio", "averaged_entropy", "bhattacharyya", "kullback_leibler")


@dataclass(frozen=True)
class Look:
    """What is known of some examples after so many passes.

    Attributes:
        place: The measure of each without its bias, on the scale of the test, `[n]`.
        reach: How far the interval of the test goes to either side.
        error: The standard error of the measure itself.
    """

    place: Tensor
    reach: Tensor
    error: Tensor


@dataclass(frozen=True)
class Goal:
    """When an example has had enough passes: one of these is met, or there are `at_most`.

    Attributes:
        measure: What it is about.
        tolerance: The largest standard error, or None.
        threshold: What the measure is compared with, or None.
        defer: The share of the examples that lie above the threshold, which is found among them, or None.
        error_rate: The largest probability that a settled comparison is wrong.
        at_most: Passes of an example.
    """

    measure: Measure
    tolerance: float | None
    threshold: float | None
    defer: float | None
    error_rate: float
    at_most: int

    @property
    def decides(self) -> bool:
        """Whether examples are compared with a threshold."""
        return self.threshold is not None or self.defer is not None

    @property
    def of_mean(self) -> bool:
        """Whether the measure is of a mean over passes, and not of their spread."""
        return set(self.measure.needs) in _MEANS

    @property
    def looks(self) -> list[int]:
        """Passes after which examples are looked at.

        >>> from dropscope.measures import TABLE
        >>> Goal(TABLE["predictive_entropy"], None, 0.5, None, 0.1, 100).looks
        [8, 12, 16, 24, 32, 48, 64, 96, 100]
        """
        found = [_FIRST_OF_MEANS if self.decides and self.of_mean else _FIRST]
        while found[-1] < self.at_most:
            last = found[-1]
            found.append(min(last * 3 // 2 if last & (last - 1) == 0 else last * 4 // 3, self.at_most))
        return found

    def look(self, kept: BlockedStatistics) -> Look:
        """The statistics of one placement and their blocks, as the test sees them."""
        place, spread = kept.corrected(lambda statistics: self.scaled(self.measure(statistics).double()))
        factor = t_factor(kept.blocks - 1, level=1 - self.error_rate, of=len(self.looks))
        return Look(place[0], factor * spread[0], kept.jackknife(self.measure)[0])

    def scaled(self, values: Tensor) -> Tensor:
        """Values on the scale of the test."""
        return values.sign() * values.abs() ** (_POWER_OF_MEANS if self.of_mean else _POWER)

    def unscaled(self, place: float) -> float:
        """A place on that scale as a value of the measure."""
        exponent = 1 / (_POWER_OF_MEANS if self.of_mean else _POWER)
        return float(abs(place) ** exponent * (1 if place > 0 else -1))

    def place_of_threshold(self, places: Tensor) -> float | None:
        """Where the threshold lies on the scale of the test: given, or midway between those deferred and the others.

        Args:
            places: Of all examples, as they were last seen.
        """
        if self.threshold is not None:
            return float(self.scaled(torch.tensor(self.threshold, dtype=torch.float64)))
        if self.defer is None:
            return None
        kept = len(places) - deferred_count(self.defer, len(places))
        lower, upper = places.sort().values[kept - 1 : kept + 1].tolist()
        return (lower + upper) / 2

    def settled(self, look: Look, threshold: float | None, passes: int) -> Tensor:
        """Which of the examples have had enough."""
        met = torch.zeros_like(look.place, dtype=torch.bool)
        if threshold is not None:
            met |= (look.place - threshold).abs() > look.reach
        if self.tolerance is not None and passes >= _FIRST:
            met |= look.error <= self.tolerance
        return met


def deferred_count(share: float, examples: int) -> int:
    """How many examples a share of them is: at least one, and not all."""
    return min(max(round(share * examples), 1), examples - 1)


def goal_of(
    passes: object,
    rows: Sequence[Measure],
    *,
    tolerance: float | None,
    threshold: float | None,
    defer: float | None,
    by: str | None,
    error_rate: float,
    at_most: int | None,
) -> Goal | None:
    """The goal that the arguments of `uncertainty` name; None for a number of passes.

    Raises:
        BadInput: For what cannot be one, and for arguments of a goal beside a number of passes.
    """
    decides = threshold is not None or defer is not None
    if passes != AUTO:
        check_passes(passes, AUTO)
        given = {"tolerance": tolerance, "threshold": threshold, "defer": defer, "by": by, "at_most": at_most}
        for name, value in given.items():
            if value is not None:
                raise BadInput(f"passes must be {AUTO!r} for {name}", "passes", passes, f"write passes={AUTO!r}")
        return None
    measure = _measure_of(rows, by)
    if threshold is not None and defer is not None:
        raise BadInput("defer must not come with a threshold", "defer", defer, "give one of the two")
    if threshold is not None and finite_number(threshold) is None:
        raise BadInput("threshold must be a number", "threshold", threshold, "write a value of the measure")
    if defer is not None and not 0 < (finite_number(defer) or 0) < 1:
        raise BadInput("defer must be a share between 0 and 1", "defer", defer, "write defer=0.1")
    if tolerance is not None and not (finite_number(tolerance) or 0) > 0:
        raise BadInput("tolerance must be above 0", "tolerance", tolerance, f"write tolerance={_TOLERANCE}")
    if not 0 < (finite_number(error_rate) or 0) < 0.5:
        raise BadInput("error_rate must be between 0 and 0.5", "error_rate", error_rate, "write error_rate=0.1")
    if decides and measure.name in _KINKED:
        what = "by must be a smooth measure for a threshold"
        remedy = f"write by={_USUAL!r}, or give a tolerance alone"
        raise BadInput(what, "by", measure.name, remedy)
    most = _AT_MOST_DECIDING if decides else _AT_MOST
    if at_most is not None and (most := check_count(at_most, "at_most", most)) < _FIRST:
        what = f"at_most must be at least {_FIRST} passes"
        raise BadInput(what, "at_most", at_most, f"write at_most={_AT_MOST_DECIDING}")
    goal = Goal(measure, tolerance, threshold, defer, error_rate, most)
    return goal if decides or tolerance is not None else replace(goal, tolerance=_TOLERANCE)


def _measure_of(rows: Sequence[Measure], by: str | None) -> Measure:
    """The measure that a goal is about, if it and the others can be computed at any number of passes."""
    for row in rows:
        if row.of == "passes":
            remedy = "write it as a function of the statistics, or give a number of passes"
            raise BadInput(f"measures must be of the statistics for passes={AUTO!r}", "measures", row.name, remedy)
    several = {row.name: row for row in rows if row.of == "statistics"}
    if not several:
        remedy = f"add {_USUAL!r}"
        raise BadInput(
            f"measures must include one of several passes for passes={AUTO!r}", "measures", rows[0].name, remedy
        )
    if by is None:
        return several.get(_USUAL, next(iter(several.values())))
    return several[check_choice(by, "by", several)]
