"""Options of the studies: their choices are what the rooms know, and their doors open late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from dropscope.studies import segmentation_measures, transformer_profile, where_to_drop
from dropscope.studies.segmentation_measures import experiments as s3_experiments
from dropscope.studies.segmentation_measures import presets as s3_presets
from dropscope.studies.transformer_profile import configurations, evaluation, tokens
from dropscope.studies.where_to_drop import cifar, patients

STUDIES = (segmentation_measures, transformer_profile, where_to_drop)


def choices(study: Any, name: str) -> set[str]:
    hint = get_type_hints(study.Options)[name]
    members = (hint,) if get_origin(hint) is Literal else get_args(hint)
    return {word for member in members for word in get_args(member)}


@pytest.mark.parametrize(
    ("study", "name", "known"),
    [
        (where_to_drop, "preset", where_to_drop.PRESETS),
        (where_to_drop, "split", patients.SPLITS),
        (transformer_profile, "preset", transformer_profile.PRESETS),
        (transformer_profile, "rates", configurations.MODES),
        (transformer_profile, "long_texts", tokens.LONG_TEXTS),
        (transformer_profile, "precision", ("auto", *evaluation.PRECISIONS)),
        (segmentation_measures, "preset", s3_presets.PRESETS),
        (segmentation_measures, "precision", s3_presets.PRECISIONS),
        (segmentation_measures, "dropout", s3_experiments.DROPOUT),
    ],
)
def test_a_choice_is_what_the_study_knows(study: Any, name: str, known: Iterable[str]) -> None:
    assert choices(study, name) == set(known)


def test_every_network_that_can_be_asked_for_can_be_built() -> None:
    assert choices(where_to_drop, "network") <= set(cifar.NETWORKS)


@pytest.mark.parametrize("study", STUDIES)
def test_a_door_offers_what_it_lists_and_nothing_else(study: Any) -> None:
    assert all(getattr(study, name) is not None for name in study.__all__)
    assert not hasattr(study, "no_such_name")
