"""Options of the study: what a user may ask for, and the preset with these wishes in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dropscope.checks import check_choice, check_count, check_passes, check_seed
from dropscope.studies.segmentation_measures.experiments import DROPOUT, make_grid
from dropscope.studies.segmentation_measures.presets import PRESETS, Preset, Regime


@dataclass(frozen=True)
class Options:
    """What to study. None means: as the preset has it, or as the data and the machine allow.

    Attributes:
        data: A Decathlon folder, "phantom", or a `prepared.safetensors` of another run.
        preset: "paper", "small" or "smoke".
        out: Folder of the study; an interrupted study continues there.
        n_train: Numbers of training patients; smaller training sets are nested in larger ones.
        rates: Rates of dropping.
        noises: "bernoulli", "gaussian" or both.
        epochs: Passes over the training set, per network.
        steps: Training steps, the same for every network, instead of `epochs`.
        validations: How often the validation loss is computed.
        batch: Images per training step.
        precision: Of training: "fp32", "bf16", "fp16" or "auto". Passes are fp32.
        roi: Sides of the region, of every volume the whole if None.
        passes: Passes per test image.
        features: Feature maps per level of the U-Net.
        n_validation: Validation patients.
        n_test: Test patients.
        workers: Networks trained at once.
        device: "cpu" or "cuda"; the GPU where there is one if None.
        seed: Seed of the split, the weights and the noise.
        model: "file.py:callable" of another network, trained in the same way.
        placement: Noise at inference, with {rate} and {noise} in it.
        dropout: During "training" too, or at "inference" only.
        ignore_label: Label of voxels that count nowhere.
    """

    data: str = "phantom"
    preset: str = "small"
    out: str | Path = "segmentation-measures"
    n_train: Sequence[int] | None = None
    rates: Sequence[float] | None = None
    noises: Sequence[str] | None = None
    epochs: int | None = None
    steps: int | None = None
    validations: int | None = None
    batch: int | None = None
    precision: str | None = None
    roi: Sequence[int] | None = None
    passes: int | None = None
    features: Sequence[int] | None = None
    n_validation: int | None = None
    n_test: int | None = None
    workers: int | None = None
    device: str | None = None
    seed: int = 0
    model: str | None = None
    placement: str | None = None
    dropout: str = "training"
    ignore_label: int | None = None


def apply_preset(options: Options, device: torch.device) -> Preset:
    """The preset with what was asked for instead, after every check that needs no data."""
    preset = PRESETS[check_choice(options.preset, "preset", PRESETS)]
    axes = {name: getattr(options, name) for name in ("n_train", "rates", "noises", "features")}
    counts = {name: getattr(options, name) for name in ("passes", "n_validation", "n_test")}
    asked: dict[str, Any] = {name: tuple(values) for name, values in axes.items() if values is not None}
    asked |= {name: value for name, value in counts.items() if value is not None}
    chosen = replace(preset, **asked, regime=_choose_regime(options, preset.regime).on(device))
    check_passes(chosen.passes)
    check_seed(options.seed)
    check_choice(options.dropout, "dropout", DROPOUT)
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
