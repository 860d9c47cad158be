"""Monitors of labels as they come: is the error among the kept still what was promised? Valid at any time.

A gambler bets against the promise with each kept example, or each group of them; his wealth is at most 1/α with
probability 1 − α for ever, however often one looks, where the promise holds (Ville; Waudby-Smith and Ramdas 2024).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dropscope.checks import check_count, check_share
from dropscope.deploy.bounds import lower_bound, upper_bound
from dropscope.deploy.rules import DeferralRule, as_floats
from dropscope.errors import BadInput, Phrase

_MOST = 0.75  # share of the largest stake that is bet at most
_SOON = 200  # labels after which a doubled error should be seen


@dataclass(frozen=True)
class MonitorState:
    """Where a monitor stands.

    Attributes:
        alarm: Whether the promise is refuted.
        p_value: Valid at any time: the least so far.
        labelled: Kept examples with a label so far.
        errors: How many of them were wrong, or the sum of their losses.
        max_error: The promise.
        alpha: How often there is ever a false alarm, at most.
        groups: How many groups the labelled are of; None where each is independent.
    """

    alarm: bool
    p_value: float
    labelled: int
    errors: float
    max_error: float
    alpha: float
    groups: int | None = None

    def __str__(self) -> str:
        if not self.labelled:
            return "no label of a kept example yet"
        of = f"{self.labelled} kept examples" + ("" if self.groups is None else f" of {self.groups} groups")
        rate = f"{100 * self.errors / self.labelled:.1f} %"
        if not float(self.errors).is_integer():
            seen = f"the mean loss of {of} is {rate}"
        elif self.groups is not None:
            seen = f"{self.errors:g} of {of} were wrong, {rate}"
        else:
            low, high = (bound(self.errors, self.labelled, 0.025) for bound in (lower_bound, upper_bound))
            seen = f"{self.errors:g} of {of} were wrong, {rate} ({100 * low:.1f} to {100 * high:.1f} %)"
        word = "ALARM: the error is above" if self.alarm else "nothing says that the error is above"
        return f"{word} {100 * self.max_error:g} %: {seen}; p = {self.p_value:.3g} at any time"


class Monitor:
    """Watches the error among the kept. Threads may share it.

    Args:
        max_error: What was promised.
        alpha: How often there may ever be a false alarm.
        largest: Examples of one group, at most, where examples come in groups.

    Examples:
        >>> monitor = Monitor(0.05)
        >>> monitor.update([True] * 50).alarm, monitor.update([False] * 20).alarm
        (False, True)
    """

    def __init__(self, max_error: float, alpha: float = 0.05, largest: int = 1) -> None:
        self.max_error, self.alpha = max_error, check_share(alpha, "alpha", 0.05)
        self.largest = check_count(largest, "largest", 10)
        self._lock = threading.Lock()
        self._wealth = self._best = self._errors = 0.0
        self._count = self._units = 0
        self._groups: set[Hashable] = set()

    def update(
        self,
        correct: ArrayLike,
        deferred: ArrayLike | None = None,
        groups: Sequence[Hashable] | None = None,
    ) -> MonitorState:
        """Takes in outcomes in the order in which they came.

        Args:
            correct: Whether each prediction was right; or a share from 0 to 1, such as a Dice score.
            deferred: Which of them were deferred: these do not count.
            groups: What is independent, where examples are not: one per example. All of a group come at once.

        Returns:
            Where the monitor stands.

        Raises:
            BadInput: If they are no outcomes, not as many as each other, or a group is too large or not new.
        """
        right = as_floats(correct, "correct")
        if not ((right >= 0) & (right <= 1)).all():
            raise BadInput("correct must be true or false for each example, or a share", "correct",
                           Phrase(str(right)[:60]), "leave out examples without a label")  # fmt: skip
        listed = list(range(len(right))) if groups is None else list(groups)
        kept = np.ones(len(right), bool) if deferred is None else ~np.asarray(deferred, bool)
        for name, count in (("deferred", len(kept)), ("groups", len(listed))):
            if count != len(right):
                got = Phrase(f"{count} for {len(right)} examples")
                raise BadInput(f"{name} must be one per example", name, got, "pass as many as in correct")
        units: dict[Hashable, list[float]] = {}
        for group, loss in zip((listed[i] for i in np.flatnonzero(kept)), 1 - right[kept], strict=True):
            units.setdefault(group, []).append(float(loss))
        with self._lock:
            if groups is not None:
                self._check_groups(units)
                self._groups |= {*listed}
            for losses in units.values():
                self._take_in(losses)
            return self._state()

    @property
    def state(self) -> MonitorState:
        """Where the monitor stands."""
        with self._lock:
            return self._state()

    def _state(self) -> MonitorState:
        p = math.exp(-self._best)
        grouped = self._units if self._groups else None
        return MonitorState(p <= self.alpha, p, self._count, self._errors, self.max_error, self.alpha, grouped)

    def _check_groups(self, units: dict[Hashable, list[float]]) -> None:
        for group, losses in units.items():
            if group in self._groups:
                remedy = "hold its examples back until all of them have labels"
                raise BadInput("groups must come whole", "groups", Phrase(f"{group!r} for the second time"), remedy)
            if len(losses) > self.largest:
                got, remedy = (
                    Phrase(f"{len(losses)} of {group!r}"),
                    f"write monitor(largest={len(losses)}) at the start",
                )
                raise BadInput(f"groups must have {self.largest} kept examples at most", "groups", got, remedy)

    def _take_in(self, losses: Sequence[float]) -> None:
        """One bet, on all examples of a group."""
        limit = self.max_error
        # The stake that grows fastest at the error seen so far, twice the promise before any is seen.
        error = (self._errors + 2 * limit * _SOON / 10) / (self._count + _SOON / 10)
        stake = min(max(0.0, (error - limit) / (limit * (1 - limit))), _MOST / limit)
        self._wealth += math.log1p(stake * (sum(losses) - limit * len(losses)) / self.largest)
        self._best = max(self._best, self._wealth)
        self._count += len(losses)
        self._units += 1
        self._errors += sum(losses)


def monitor_of(rule: DeferralRule | None, unit: NDArray[np.int64], alpha: float, largest: int | None) -> Monitor:
    """A monitor of what a rule promised; groups are as large as those of the calibration, unless said otherwise.

    Raises:
        BadInput: If there is no rule that promises an error.
    """
    if rule is None or not rule.found or rule.max_error is None:
        raise BadInput("predictor must have a rule that promises an error", "predictor", Phrase("none"),
                       "fit it with max_error=0.05, and enough data")  # fmt: skip
    return Monitor(rule.max_error, alpha, int(np.bincount(unit).max()) if largest is None else largest)
