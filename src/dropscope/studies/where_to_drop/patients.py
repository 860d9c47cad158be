"""Patients in training, validation and test: a split by patient, or by image as in the paper.

Owns the split, the number of test images whose patient is in training too (the leak), and balanced test sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dropscope.checks import check_choice
from dropscope.errors import BadInput, Phrase
from dropscope.studies.where_to_drop.mammograms import ABNORMAL, NORMAL, Mammogram

PAPER_SHARES = (6326, 703, 781)  # images: training, validation, test
SPLITS = ("by_patient", "by_image")
_PARTS = ("training", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Indices of the images of each part, in order."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]

    def leaked(self, images: Sequence[Mammogram]) -> int:
        """How many test images show a patient who is in training too."""
        known = {images[i].patient for i in self.train}
        return sum(images[i].patient in known for i in self.test)


def split_mammograms(
    images: Sequence[Mammogram],
    how: str = "by_patient",
    shares: tuple[float, float, float] = PAPER_SHARES,
    seed: int = 0,
) -> Split:
    """Parts in the proportions of `shares`, the same for the same images and seed.

    By patient, patients are dealt out, separately for those with abnormal images, normal ones, and both; so the shares
    hold for patients, and nearly for images. By image, images are dealt out, separately for each class.
    """
    check_choice(how, "split", SPLITS)
    if len(shares) != 3 or min(shares) <= 0:
        raise BadInput("shares must be three positive numbers", "shares", shares, "write shares=(8, 1, 1)")
    members: dict[str, list[int]] = {}
    for index, image in enumerate(images):
        members.setdefault(image.patient if how == "by_patient" else str(index), []).append(index)
    kinds = {unit: frozenset(images[i].label for i in indices) for unit, indices in members.items()}
    parts = _deal(kinds, shares, seed)
    train, validation, test = (sorted(i for unit in part for i in members[unit]) for part in parts)
    for name, part in zip(_PARTS, (train, validation, test), strict=True):
        _check_both_classes(images, part, name, how, len(members))
    return Split(tuple(train), tuple(validation), tuple(test))


def _deal(
    kinds: dict[str, frozenset[int]], shares: tuple[float, float, float], seed: int
) -> tuple[list[str], list[str], list[str]]:
    """Units in three parts. Within a kind the order is drawn; counts are rounded so that they add up over the kinds."""
    draw = np.random.default_rng([seed, 1])
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    total, seen, dealt = sum(shares), 0, [0, 0]
    for kind in sorted(set(kinds.values()), key=sorted):
        units = sorted(unit for unit in kinds if kinds[unit] == kind)
        order = [units[i] for i in draw.permutation(len(units))]
        seen += len(units)
        tested, validated = (round(seen * shares[part] / total) - dealt[part - 1] for part in (2, 1))
        tested, validated = min(tested, len(units)), min(validated, len(units) - min(tested, len(units)))
        dealt = [dealt[0] + validated, dealt[1] + tested]
        parts[2].extend(order[:tested])
        parts[1].extend(order[tested : tested + validated])
        parts[0].extend(order[tested + validated :])
    return parts


def _check_both_classes(images: Sequence[Mammogram], part: Sequence[int], name: str, how: str, units: int) -> None:
    labels = {images[i].label for i in part}
    missing = [word for label, word in ((ABNORMAL, "abnormal"), (NORMAL, "normal")) if label not in labels]
    if missing:
        unit = "patients" if how == "by_patient" else "images"
        got = Phrase(f"no {' and no '.join(missing)} one, of {units} {unit} in all")
        remedy = f"add {unit}, choose larger shares, or another seed"
        raise BadInput(f"the {name} part must have mammograms of both classes", "data", got, remedy)


def draw_balanced(images: Sequence[Mammogram], part: Sequence[int], at_most: int | None, seed: int) -> tuple[int, ...]:
    """As many images of one class as of the other, drawn without replacement: all of the smaller class, unless that
    would be more than `at_most` in all."""
    classes = _by_class(images, part)
    each = min(*map(len, classes), *([] if at_most is None else [max(1, at_most // 2)]))
    return _draw(classes, [each, each], seed)


def draw_at_most(images: Sequence[Mammogram], part: Sequence[int], at_most: int | None, seed: int) -> tuple[int, ...]:
    """At most so many images, drawn without replacement, the classes in the proportions they have, none left out."""
    if at_most is None or at_most >= len(part):
        return tuple(part)
    classes = _by_class(images, part)
    first = min(max(1, round(at_most * len(classes[0]) / len(part))), max(1, at_most - 1))
    return _draw(classes, [first, max(1, at_most - first)], seed)


def _by_class(images: Sequence[Mammogram], part: Sequence[int]) -> list[list[int]]:
    return [[i for i in part if images[i].label == label] for label in (ABNORMAL, NORMAL)]


def _draw(classes: list[list[int]], counts: list[int], seed: int) -> tuple[int, ...]:
    draw = np.random.default_rng([seed, 2])
    chosen = (draw.choice(one, min(n, len(one)), replace=False) for one, n in zip(classes, counts, strict=True))
    return tuple(sorted(int(i) for part in chosen for i in part))
