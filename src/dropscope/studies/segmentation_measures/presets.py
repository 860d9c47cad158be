"""Presets of the study: `paper` as published, `small` for one GPU and some minutes, `smoke` to see that it runs.

Owns the parts of a preset: how long a network is trained (`Regime`) and how many phantoms there are (`Phantoms`), and
puts what was asked for in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from dropscope.checks import check_choice, check_count, check_literals, check_passes, check_training_seed
from dropscope.errors import BadInput, Phrase
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.experiments import make_grid
from dropscope.studies.segmentation_measures.networks import FEATURES, NOISES
from dropscope.studies.segmentation_measures.options import Options
from dropscope.studies.segmentation_measures.phantom import SHAPE, SPACING

PRECISIONS = ("auto", "fp32", "bf16", "fp16")  # auto: bf16 on a GPU, fp32 elsewhere


@dataclass(frozen=True)
class Regime:
    """How long and how a network is trained.

    Either `epochs` (passes over the training set, as in the paper) or `steps` (the same number for every network,
    whatever its training set). There are `validations` validations, at the latest one after every epoch.
    """

    epochs: int | None = published.EPOCHS
    steps: int | None = None
    validations: int | None = None
    batch: int = 1
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            received = Phrase(f"epochs={self.epochs} and steps={self.steps}")
            raise BadInput("exactly one of epochs and steps must be given", "epochs", received, "leave one of them out")
        for name, value, example in (("epochs", self.epochs, published.EPOCHS), ("steps", self.steps, 1500)):
            if value is not None:
                check_count(value, name, example)
        check_count(self.batch, "batch", 1)
        if self.validations is not None:
            check_count(self.validations, "validations", 20)
        check_choice(self.precision, "precision", PRECISIONS)

    def on(self, device: torch.device) -> Regime:
        """The regime with the precision that `auto` means on a device."""
        auto = "bf16" if device.type == "cuda" else "fp32"
        return replace(self, precision=auto) if self.precision == "auto" else self

    def rounds(self, n_train: int) -> tuple[int, int]:
        """(rounds, steps in each): a round ends with a validation.

        >>> Regime(epochs=600).rounds(9), Regime(epochs=None, steps=1000, validations=20, batch=2).rounds(9)
        ((600, 9), (20, 50))
        """
        per_epoch = -(-n_train // self.batch)
        steps = self.steps if self.steps is not None else (self.epochs or 1) * per_epoch
        rounds = min(self.validations or self.epochs or 20, steps)
        return rounds, -(-steps // rounds)


@dataclass(frozen=True)
class Phantoms:
    """How many generated cases there are for training, validation and test, and how large."""

    sizes: tuple[int, int, int] = published.PATIENTS
    shape: tuple[int, int, int] = SHAPE
    spacing: tuple[float, float, float] = SPACING


_PAPER_REGIME, _PAPER_PHANTOMS = Regime(), Phantoms()


@dataclass(frozen=True)
class Preset:
    """The size of the whole study. Training sizes that the data cannot fill are left out, with a remark."""

    n_train: tuple[int, ...] = published.N_TRAIN
    rates: tuple[float, ...] = published.RATES
    noises: tuple[str, ...] = NOISES
    regime: Regime = _PAPER_REGIME
    passes: int = published.PASSES
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


def apply_preset(options: Options, device: torch.device) -> Preset:
    """The preset with what was asked for instead, after every check that needs no data."""
    check_literals(options)
    preset = PRESETS[options.preset]
    axes = {name: getattr(options, name) for name in ("n_train", "rates", "noises", "features")}
    counts = {name: getattr(options, name) for name in ("passes", "n_validation", "n_test")}
    asked: dict[str, Any] = {name: tuple(values) for name, values in axes.items() if values is not None}
    asked |= {name: value for name, value in counts.items() if value is not None}
    chosen = replace(preset, **asked, regime=_choose_regime(options, preset.regime).on(device))
    check_passes(chosen.passes)
    check_training_seed(options.seed)
    if options.workers is not None:
        check_count(options.workers, "workers", 1)
    make_grid(chosen.n_train, chosen.rates, chosen.noises)
    return chosen


def _choose_regime(options: Options, regime: Regime) -> Regime:
    names = ("validations", "batch", "precision")
    asked: dict[str, Any] = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.epochs is not None or options.steps is not None:
        asked |= {"epochs": options.epochs, "steps": options.steps}
        if options.validations is None and options.epochs is not None:
            asked["validations"] = None  # a preset's number of validations belongs to its number of steps
    return replace(regime, **asked)
