"""Presets of the study: how large it is."""

from __future__ import annotations

from dataclasses import dataclass

from dropscope.checks import check_choice
from dropscope.placement import RATES


@dataclass(frozen=True)
class Preset:
    """How large the study is. `None` means all there is, or the recipe's own number of epochs."""

    rates: tuple[float, ...] = RATES
    input_rates: tuple[float, ...] = (0.1, 0.5, 0.9)  # of the grid with masks on the layers' inputs
    passes: int = 100
    train: int | None = None  # at most so many examples of each part
    validation: int | None = None
    test: int | None = None
    epochs: int | None = None


PRESETS = {
    "paper": Preset(),
    "small": Preset((0.1, 0.3, 0.5, 0.7, 0.9), (0.3, 0.7), 50, validation=1_000, test=1_000, epochs=8),
    "smoke": Preset((0.3, 0.7), (0.3,), 5, train=512, validation=100, test=128, epochs=1),
}

# EffNet works at the full size of its images, so `small` is smaller there.
MAMMOGRAPHY_PRESETS = PRESETS | {
    "small": Preset((0.1, 0.5, 0.9), (0.5,), 20, train=400, validation=60, test=100, epochs=8),
}
SIDES = {"paper": 200, "small": 100, "smoke": 48}  # of a mammogram


def find_preset(name: str, task: str) -> Preset:
    check_choice(name, "preset", PRESETS)
    return (MAMMOGRAPHY_PRESETS if task == "mammography" else PRESETS)[name]
