"""Options of the study: what a user may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Options:
    """What to study. None means: as the preset has it, or as the data and the machine allow.

    Attributes:
        data: A folder of the Medical Segmentation Decathlon, phantom, or a prepared.safetensors of another run.
        preset: How large: as in the paper, minutes on a GPU, or seconds.
        out: Folder of the study; an interrupted study continues there.
        n_train: Numbers of training patients; smaller training sets are nested in larger ones.
        rates: Rates of dropping.
        noises: bernoulli, gaussian or both.
        epochs: Passes over the training set, per network.
        steps: Training steps, the same for every network, instead of `epochs`.
        validations: How often the validation loss is computed.
        batch: Images per training step; 1 in the paper.
        precision: Of training. Passes are fp32.
        roi: Sides of the region; all of every volume if not given.
        passes: Passes per test image.
        features: Feature maps per level of the U-Net.
        n_validation: Validation patients.
        n_test: Test patients.
        workers: Networks trained at once; what memory allows if not given.
        device: cpu or cuda; the GPU where there is one if not given.
        seed: Seed of the split, the weights and the noise.
        model: file.py:callable of another network, trained in the same way, or trained already with `train` none.
        train: The grid of networks, or none of them: for networks that are trained already.
        weights: With `train` none: a file of weights per network, safetensors or a plain state_dict; the model as it
            comes if not given.
        scale: Intensities: the 5th percentile of each channel becomes 0 and its 95th 1, or they stay as they are.
        transforms: file.py:callable of preprocessing, a function of the array [channels, *shape], after `scale`.
        placement: Noise at inference, with {rate} and {noise} in it; 'dropout={rate} noise={noise}' if not given.
        dropout: During training too, or at inference only.
        patients: Regular expression whose match in a file's name is its patient: 'patient[0-9]+'; a table cases.csv
            with a column patient wins.
        ignore_label: Label of voxels that count nowhere.
        preregister: File of a preregistration. A new one: claims, margins, seeds and options are written to it, and
            nothing is run. One that is there: the summary says whether the run is as registered.
    """

    data: str = "phantom"
    preset: Literal["paper", "small", "smoke"] = "small"
    out: str | Path = "segmentation-measures"
    n_train: Sequence[int] | None = None
    rates: Sequence[float] | None = None
    noises: Sequence[str] | None = None
    epochs: int | None = None
    steps: int | None = None
    validations: int | None = None
    batch: int | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None
    roi: Sequence[int] | None = None
    passes: int | None = None
    features: Sequence[int] | None = None
    n_validation: int | None = None
    n_test: int | None = None
    workers: int | None = None
    device: str | None = None
    seed: int = 0
    model: str | None = None
    train: Literal["grid", "none"] = "grid"
    weights: Sequence[str] | None = None
    scale: Literal["percentiles", "none"] = "percentiles"
    transforms: str | None = None
    placement: str | None = None
    dropout: Literal["training", "inference"] = "training"
    patients: str | None = None
    ignore_label: int | None = None
    preregister: str | Path | None = None
