"""Cases of a data set, and their split by patient into nested training sets, validation and test.

See `decathlon` and `phantom` for where cases come from, and `preparation` for scaling and cropping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from dropscope.errors import BadInput, Phrase
from dropscope.studies.segmentation_measures import published

ROLES = ("train", "validation", "test")
_VALIDATION_SHARE, _TEST_SHARE = (count / sum(published.PATIENTS) for count in published.PATIENTS[1:])


@dataclass(frozen=True, eq=False)
class Case:
    """One labelled image. `load` returns (image float32 [channels, *spatial], label int64 [*spatial])."""

    name: str
    shape: tuple[int, ...]  # spatial
    load: Callable[[], tuple[Tensor, Tensor]]
    patient: str
    centre: str = "all"
    role: str | None = None  # train, validation or test, where the data says so
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
    """Indices of cases. `train` holds those of one patient after the other: a smaller training set is its beginning."""

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
    """Patients divided at random by `seed`, in the paper's shares unless numbers are given; roles in the data win.

    Without any `n_train` nothing is trained, and all patients are for validation and test.

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
        shares = (_VALIDATION_SHARE, _TEST_SHARE)
        if not n_train:  # nothing is trained: the rest is for the test
            shares = (_VALIDATION_SHARE / sum(shares), _TEST_SHARE / sum(shares))
        validating = round(shares[0] * len(order)) if n_validation is None else n_validation
        testing = round(shares[1] * len(order)) if n_test is None else n_test
        testing = min(testing, len(order) - validating) if not n_train else testing
        rest = max(0, len(order) - validating - testing)
        parts = [order[:rest], order[rest : rest + validating], order[rest + validating :]]
        if rest + validating + testing > len(order):
            parts[0] = []
    if n_train:
        _check_sizes(parts, n_train, len(order))
    train, validation, test = ([tuple(members[p]) for p in part] for part in parts)
    return Split(tuple(train), tuple(c for p in validation for c in p), tuple(c for p in test for c in p))


def _by_role(members: dict[str, list[int]], roles: Sequence[str | None]) -> dict[str, str]:
    named = {}
    for patient, cases in members.items():
        own = {roles[case] for case in cases}
        if len(own) != 1 or next(iter(own)) not in ROLES:
            remedy = f"give every case of a patient one role of {', '.join(ROLES)}, or none to any"
            raise BadInput(f"patient {patient!r} must have one role", "role", sorted(map(str, own)), remedy)
        named[patient] = str(next(iter(own)))
    return named


def _check_sizes(parts: Sequence[Sequence[str]], n_train: Sequence[int], patients: int) -> None:
    train, validation, test = map(len, parts)
    for name, count in (("n_validation", validation), ("n_test", test)):
        if count < 1:
            received = Phrase(f"{count} of {patients} patients")
            raise BadInput(f"{name} must be at least 1", name, received, f"add volumes, or write {name}=1")
    for n in n_train:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1 or n > train:
            what = f"n_train must be from 1 to {train}, the patients of {patients} that are left for training"
            remedy = f"write numbers from 1 to {train}" if train else "lower n_validation and n_test"
            raise BadInput(what, "n_train", n, remedy)
