"""Splits by patient and by image, the leak between their parts, and balanced test sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dropscope.studies.where_to_drop.mammograms import ABNORMAL, NORMAL, Mammogram
from dropscope.studies.where_to_drop.patients import PAPER_SHARES, draw_at_most, draw_balanced, split_mammograms


def people(patients: int, each: int, abnormal: int) -> list[Mammogram]:
    """Patients with `each` images, the first `abnormal` patients abnormal."""
    labels = [ABNORMAL if p < abnormal else NORMAL for p in range(patients)]
    return [Mammogram(Path(f"{p}-{i}.png"), f"p{p}", labels[p]) for p in range(patients) for i in range(each)]


@pytest.mark.parametrize("seed", range(5))
def test_by_patient_no_patient_is_on_two_sides(seed: int) -> None:
    images = people(200, 4, 130)
    split = split_mammograms(images, seed=seed)
    patients = [{images[i].patient for i in part} for part in (split.train, split.validation, split.test)]
    assert sum(map(len, patients)) == 200
    assert len(set.union(*patients)) == 200
    assert split.leaked(images) == 0
    assert sorted((*split.train, *split.validation, *split.test)) == list(range(800))
    # the paper's proportions, 81 : 9 : 10, of patients, and the classes' of each part
    assert [len(part) for part in patients] == [162, 18, 20]
    assert sum(images[i].label == ABNORMAL for i in split.test) / len(split.test) == pytest.approx(0.65, abs=0.05)
    assert split_mammograms(images, seed=seed) == split


def test_by_image_gives_the_papers_numbers_and_the_leak_is_counted() -> None:
    images = people(1953, 4, 1360)[: sum(PAPER_SHARES)]
    split = split_mammograms(images, "by_image")
    assert (len(split.train), len(split.validation), len(split.test)) == PAPER_SHARES
    known = {images[i].patient for i in split.train}
    by_hand = len([i for i in split.test if images[i].patient in known])
    assert split.leaked(images) == by_hand
    assert by_hand / len(split.test) > 0.95  # 1 − .19³ of patients with three more images


def test_a_balanced_test_set_is_drawn_without_replacement() -> None:
    images = people(30, 2, 22)
    chosen = draw_balanced(images, range(60), None, 0)
    assert len(set(chosen)) == len(chosen) == 32
    assert sum(images[i].label == NORMAL for i in chosen) == 16
    assert len(draw_balanced(images, range(60), 10, 0)) == 10
    few = draw_at_most(images, range(60), 15, 0)
    assert len(few) == 15
    assert sum(images[i].label == ABNORMAL for i in few) == 11  # 44 of 60
    assert draw_at_most(images, range(60), None, 0) == tuple(range(60))
