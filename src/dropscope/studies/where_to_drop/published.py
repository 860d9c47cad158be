"""Published numbers of "Where to Drop" (Benyamina, Jemelen), per task; margins, least replicates and quotations.

Owns the constants; `claims` compares them with ours. Where the paper leaves open what a number is of, the comment says
so and every reading is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dropscope.studies.where_to_drop.tasks import Task


@dataclass(frozen=True)
class TableThree:
    """A row of table 3: expected entropy under one placement."""

    rates: Mapping[str, float]
    isotonic: float
    rearrangement: float


@dataclass(frozen=True)
class Number:
    """A published rearrangement penalty: of placements that mask `layer` alone, the least or the peak over rates."""

    layer: str
    measure: str
    statistic: str  # "minimum" or "peak"
    value: float


@dataclass(frozen=True)
class Published:
    """What the paper says about one task."""

    accuracy: float
    accuracy_range: tuple[float, float]  # a network trained alike is expected in here
    examples: Mapping[str, int]  # of the validation and the test part
    table_three: tuple[TableThree, ...] = ()
    p_mean: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # measure → penalty at the two ends
    single: tuple[Number, ...] = ()
    highest_first: tuple[str, ...] = ()  # measures whose penalty it calls highest where the first layer alone is masked
    early_layers_best: bool = False  # whether it says that the penalty is least with early layers and rises with l_last


FACTOR = 2.0  # a published number is met within this factor
MARGIN, AURC_MARGIN = 0.1, 0.02  # of the mean penalty, and of the mean AURC: a smaller effect does not matter
USEFUL = 0.3  # a rank correlation of penalty and AURC that makes choosing by the penalty worth while
LEAST_NETWORKS, LEAST_EXAMPLES = 3, 30  # below, nothing is decided
NO_IMPACT = (
    "“No statistically significant impact was observed regarding dropout placement (before or after activation layers) "
    "or the total number of masked layers”"
)
PENULTIMATE = (
    "“applying dropout only to the penultimate layer (the first fully connected layer in the CIFAR-10 CNN, or the "
    "second convolutional layer in the DDSM EffNet) consistently yields the best calibration. Compared with "
    "multi-layer masking, this configuration reduces mean penalties by half, reaching a minimum rearrangement "
    "penalty for the variation of the predicted class of about 0.079 on CIFAR-10 and 0.0001 on DDSM (see Figure 3)”"
)

_CIFAR = Published(
    accuracy=0.7267,
    accuracy_range=(0.71, 0.76),
    examples={"validation": 5_000, "test": 10_000},
    table_three=(
        TableThree({"fc1": 0.8}, 0.002668, 0.005607),
        TableThree({"conv2": 0.7, "conv3": 0.8, "fc1": 0.4}, 0.030307, 0.469543),
    ),
    p_mean={"predictive_entropy": (0.00015, 0.0012), "variation_predicted": (0.13, 0.03)},
    single=(
        Number("conv1", "variation_predicted", "peak", 0.11),
        Number("conv1", "variation_max", "peak", 0.04),
        Number("fc1", "variation_predicted", "minimum", 0.079),
    ),
    highest_first=("variation_predicted", "variation_max"),
)

_MAMMOGRAPHY = Published(
    accuracy=0.8720,
    accuracy_range=(0.852, 0.892),  # two points either side: the paper gives one network
    examples={"validation": 703, "test": 781},
    single=(  # "the second convolutional layer" may be either
        Number("block2", "variation_predicted", "minimum", 0.0001),
        Number("block3", "variation_predicted", "minimum", 0.0001),
    ),
    early_layers_best=True,
)

_INSIDE = replace(
    _MAMMOGRAPHY, single=tuple(replace(number, layer=f"{number.layer}.shrink") for number in _MAMMOGRAPHY.single)
)  # the same layers, by their last convolutions
_BY_TASK: dict[tuple[str, tuple[str, ...]], Published] = {
    ("cifar10-cnn", ("conv1", "conv2", "conv3", "fc1")): _CIFAR,
    ("mammography", ("stem", "block1", "block2", "block3")): _MAMMOGRAPHY,
    ("mammography", ("stem.conv", "block1.shrink", "block2.shrink", "block3.shrink")): _INSIDE,
}


def published_for(task: Task) -> Published | None:
    """The paper's numbers where the task is one of its two, layers and all; None for every other network."""
    return _BY_TASK.get((task.name, task.layers))
