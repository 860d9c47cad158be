"""What the study needs of a task, and what it finds out about one trained network. CIFAR-10, mammography and a user's
own classifier are each a `Task`; nothing below this line knows which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope.studies.training import History


@dataclass(frozen=True, eq=False)
class Task:
    """Data and network of one task. `layers` are the maskable sites in order, the penultimate last."""

    name: str
    layers: tuple[str, ...]
    penultimate: tuple[str, ...]  # the layers that the paper's rule may mean; the first is the default reading
    build: Callable[[], nn.Module]
    train: Callable[[nn.Module, int, torch.device, bool | None], History] | None  # None: the network comes trained
    validation: tuple[Tensor, Tensor]  # inputs, labels: a placement is chosen here
    test: tuple[Tensor, Tensor]  # … and reported here
    positions: tuple[str, ...] = ("before_activation", "after_activation")  # ("auto",): each layer's own only
    masks_inputs: bool = True  # whether the grid is repeated with masks on the layers' inputs
    test_groups: list[str] | None = None  # patients, where examples share them
    about: dict[str, Any] = field(default_factory=dict)  # fingerprint of data and recipe: a folder holds one study
    exhibits: Callable[[Path], object] | None = None  # writes figures of the data themselves into the study's folder
    remarks: tuple[str, ...] = ()  # for the summary: leaks, what was left out


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """Everything the analyses read of one trained network."""

    name: str  # "seed 0"
    accuracy: float  # of one plain pass on the test set
    rows: pd.DataFrame  # sweep rows of the whole grid (positions before and after), on the test set
    baseline: pd.DataFrame  # one-pass rows
    levels: dict[str, dict[str, float]]  # penalty → level of a random and of a monotone measure
    curves: (
        pd.DataFrame
    )  # placement, measure, example, uncertainty, correct: the placements of table 3 and figures 1, 4, 5
    inputs: pd.DataFrame | None = None  # sweep rows with the masks on the layers' inputs (the authors' code)
    chosen: pd.DataFrame | None = None  # the best of the validation images on the test images against one plain pass
