"""Monitors of labels as they come: is the error among the kept still what was promised? Valid at any time.

A gambler bets against the promise with each kept example; his wealth is at most 1/α with probability 1 − α for ever,
however often one looks, where the promise holds (Ville; Waudby-Smith and Ramdas 2024).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dropscope.checks import check_share
from dropscope.deploy.bounds import lower_bound, upper_bound
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
        errors: How many of them were wrong.
        max_error: The promise.
        alpha: How often there is ever a false alarm, at most.
    """

    alarm: bool
    p_value: float
    labelled: int
    errors: int
    max_error: float
    alpha: float

    def __str__(self) -> str:
        seen = f"{self.errors} of {self.labelled} kept examples were wrong"
        if not self.labelled:
            return "no label of a kept example yet"
        low, high = (bound(self.errors, self.labelled, 0.025) for bound in (lower_bound, upper_bound))
        rate = f"{100 * self.errors / self.labelled:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"
        word = "ALARM: the error is above" if self.alarm else "nothing says that the error is above"
        return f"{word} {100 * self.max_error:g} %: {seen}, {rate}; p = {self.p_value:.3g} at any time"


class Monitor:
    """Watches the error among the kept. Threads may share it.

    Args:
        max_error: What was promised.
        alpha: How often there may ever be a false alarm.

    Examples:
        >>> monitor = Monitor(0.05)
        >>> monitor.update([True] * 50).alarm, monitor.update([False] * 20).alarm
        (False, True)
    """

    def __init__(self, max_error: float, alpha: float = 0.05) -> None:
        self.max_error, self.alpha = max_error, check_share(alpha, "alpha", 0.05)
        self._lock = threading.Lock()
        self._wealth = self._best = 0.0
        self._count = self._errors = 0

    def update(self, correct: ArrayLike, deferred: ArrayLike | None = None) -> MonitorState:
        """Takes in outcomes in the order in which they came.

        Args:
            correct: Whether each prediction was right.
            deferred: Which of them were deferred: these do not count.

        Returns:
            Where the monitor stands.

        Raises:
            BadInput: If they are not true or false, or not as many as each other.
        """
        right = np.asarray(correct)
        if right.ndim != 1 or not np.isin(right, (0, 1)).all():
            raise BadInput("correct must be true or false for each example", "correct", Phrase(str(right)[:60]),
                           "leave out examples without a label")  # fmt: skip
        if deferred is not None:
            away = np.asarray(deferred, bool)
            if away.shape != right.shape:
                got = Phrase(f"{len(away)} for {len(right)} examples")
                raise BadInput("deferred must be one per example", "deferred", got, "pass as many as in correct")
            right = right[~away]
        with self._lock:
            self._take_in(right.astype(bool).tolist())
            return self._state()

    @property
    def state(self) -> MonitorState:
        """Where the monitor stands."""
        with self._lock:
            return self._state()

    def _state(self) -> MonitorState:
        p = math.exp(-self._best)
        return MonitorState(p <= self.alpha, p, self._count, self._errors, self.max_error, self.alpha)

    def _take_in(self, right: Sequence[bool]) -> None:
        limit = self.max_error
        for one in right:
            # The stake that grows fastest at the error seen so far, twice the promise before any is seen.
            error = (self._errors + 2 * limit * _SOON / 10) / (self._count + _SOON / 10)
            stake = min(max(0.0, (error - limit) / (limit * (1 - limit))), _MOST / limit)
            self._wealth += math.log1p(stake * ((not one) - limit))
            self._best = max(self._best, self._wealth)
            self._count += 1
            self._errors += not one
