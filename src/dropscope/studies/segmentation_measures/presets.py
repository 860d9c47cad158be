"""The sizes of the study: `paper` as published, `small` for one GPU and some minutes, `smoke` to see that it runs."""

from __future__ import annotations

from dataclasses import dataclass

from dropscope.studies.segmentation_measures.dice_training import Regime
from dropscope.studies.segmentation_measures.phantom import SHAPE, SIZES, SPACING
from dropscope.studies.segmentation_measures.unet import FEATURES, NOISES


@dataclass(frozen=True)
class Phantoms:
    """How many generated cases there are for training, validation and test, and how large."""

    sizes: tuple[int, int, int] = SIZES
    shape: tuple[int, int, int] = SHAPE
    spacing: tuple[float, float, float] = SPACING


_PAPER_REGIME, _PAPER_PHANTOMS = Regime(epochs=600), Phantoms()


@dataclass(frozen=True)
class Preset:
    """A size of the whole study. Numbers of a preset that the data cannot fill are left out, and said."""

    n_train: tuple[int, ...] = (3, 5, 9, 15, 25, 30, 40, 69)
    rates: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    noises: tuple[str, ...] = NOISES
    regime: Regime = _PAPER_REGIME
    passes: int = 50
    features: tuple[int, ...] = FEATURES
    n_validation: int | None = None
    n_test: int | None = None
    phantoms: Phantoms = _PAPER_PHANTOMS


PRESETS = {
    "paper": Preset(),
    "small": Preset(
        n_train=(5, 15, 40, 100),
        rates=(0.1, 0.3, 0.5),
        regime=Regime(epochs=None, steps=1500, validations=15, batch=2, precision="auto"),
        n_validation=20,
        n_test=60,
        phantoms=Phantoms((100, 20, 39), (96, 96, 12)),
    ),
    "smoke": Preset(
        n_train=(2, 4),
        rates=(0.3,),
        regime=Regime(epochs=None, steps=100, validations=5, batch=2, precision="auto"),
        passes=8,
        features=(4, 8, 16),
        n_validation=2,
        n_test=4,
        phantoms=Phantoms((4, 2, 4), (48, 48, 6), (0.6, 0.6, 4.0)),
    ),
}
