"""The volumes of a study before they are prepared, and how they are divided: nested training sets, validation, test.

Owns what a case is and the split by patient. Where cases come from is `decathlon.py`'s and `phantom.py`'s; scaling and
cropping are `preparing.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from dropscope.errors import BadInput

ROLES = ("train", "validation", "test")
# 69, 24 and 52 of the paper's 145 patients.
VALIDATION_SHARE, TEST_SHARE = 24 / 145, 52 / 145


@dataclass(frozen=True, eq=False)
class Case:
    """One labelled image. `load` gives (image float32 [channels, *spatial], label int64 [*spatial])."""

    name: str
    shape: tuple[int, ...]  # spatial
    load: Callable[[], tuple[Tensor, Tensor]]
    patient: str
    centre: str = "all"
    role: str | None = None  # where the data says so: train, validation or test
    place: str = ""  # the file, for messages

    @property
    def where(self) -> str:
        return self.place or self.name


@dataclass(frozen=True, eq=False)
class Volumes:
    """Every case of a data set, alike in dimensions and channels."""

    source: str
    cases: tuple[Case, ...]
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    spacing: tuple[float, ...]  # mm, of the first case
    remarks: tuple[str, ...] = field(default=())

    @property
    def dims(self) -> int:
        return len(self.cases[0].shape)


@dataclass(frozen=True)
class Split:
    """Numbers of cases. `train` holds those of one patient after the other: a smaller training set is its beginning."""

    train: tuple[tuple[int, ...], ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]

    def first(self, n_train: int) -> tuple[int, ...]:
        """The cases of the first `n_train` patients: nested, so that more data means the same data and more."""
        return tuple(case for patient in self.train[:n_train] for case in patient)


def split(
    patients: Sequence[str],
    roles: Sequence[str | None],
    seed: int,
    n_train: Sequence[int],
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Split:
    """Patients dealt out at random by `seed`, in the paper's shares unless numbers are given; roles in the data win.

    >>> s = split(["a", "b", "c", "d", "e", "f"], [None] * 6, 0, [2], 1, 2)
    >>> len(s.train), len(s.validation), len(s.test), s.first(1) == s.first(2)[:1]
    (3, 1, 2, True)
    """
    members: dict[str, list[int]] = {}
    for number, patient in enumerate(patients):
        members.setdefault(patient, []).append(number)
    order = [list(members)[i] for i in np.random.default_rng(seed).permutation(len(members))]
    if any(role is not None for role in roles):
        named = _by_role(members, roles)
        parts = [[p for p in order if named[p] == role] for role in ROLES]
        if n_validation is not None or n_test is not None:
            parts[1] = parts[1][: n_validation if n_validation is not None else len(parts[1])]
            parts[2] = parts[2][: n_test if n_test is not None else len(parts[2])]
    else:
        validating = round(VALIDATION_SHARE * len(order)) if n_validation is None else n_validation
        testing = round(TEST_SHARE * len(order)) if n_test is None else n_test
        rest = max(0, len(order) - validating - testing)
        parts = [order[:rest], order[rest : rest + validating], order[rest + validating :]]
        if rest + validating + testing > len(order):
            parts[0] = []
    _check_sizes(parts, n_train, len(order))
    train, validation, test = ([tuple(members[p]) for p in part] for part in parts)
    return Split(tuple(train), tuple(c for p in validation for c in p), tuple(c for p in test for c in p))


def _by_role(members: dict[str, list[int]], roles: Sequence[str | None]) -> dict[str, str]:
    named = {}
    for patient, cases in members.items():
        found = {roles[case] for case in cases}
        if len(found) != 1 or next(iter(found)) not in ROLES:
            remedy = f"give every case of a patient one role of {', '.join(ROLES)}, or none to any"
            raise BadInput("a patient has one role", f"roles of patient {patient!r}", sorted(map(str, found)), remedy)
        named[patient] = str(next(iter(found)))
    return named


def _check_sizes(parts: Sequence[Sequence[str]], n_train: Sequence[int], patients: int) -> None:
    train, validation, test = map(len, parts)
    if validation < 1 or test < 1:
        remedy = "add volumes, or set --n-validation and --n-test"
        received = f"{validation} and {test} of {patients} patients"
        raise BadInput("validation and test each need a patient", "patients for validation and test", received, remedy)
    for n in n_train:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1 or n > train:
            have = f"{train} of {patients} patients are left for training"
            remedy = f"write numbers from 1 to {train}" if train else "lower --n-validation and --n-test"
            raise BadInput(f"n_train is at most the training data: {have}", "--n-train", n, remedy)
