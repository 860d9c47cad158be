"""Experiments: the grid n_train × rate × noise, and the networks that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dropscope.checks import check_choice, check_rate
from dropscope.errors import BadInput
from dropscope.studies.segmentation_measures.networks import NOISES

DROPOUT = ("training", "inference")


@dataclass(frozen=True)
class Experiment:
    """One cell of the grid: how many patients a network learns from, and the noise at inference."""

    n_train: int
    rate: float
    noise: str
    network: str = ""  # of the user's own, trained already

    @property
    def name(self) -> str:
        if not self.network:
            return f"n{self.n_train:03d}-{self.noise}-{self.rate:g}"
        return f"{self.network}-{self.noise}-{self.rate:g}" if self.rate else self.network


@dataclass(frozen=True)
class Network:
    """A network to train, and the experiments that it serves."""

    name: str
    experiments: tuple[Experiment, ...]
    n_train: int
    rate: float  # of the dropout that is on during training
    noise: str


def make_grid(n_train: Sequence[int], rates: Sequence[float], noises: Sequence[str]) -> list[Experiment]:
    """Every combination, in a fixed order.

    >>> [e.name for e in make_grid([5], [0.1, 0.5], ["gaussian"])]
    ['n005-gaussian-0.1', 'n005-gaussian-0.5']
    """
    for name, values in (("n_train", n_train), ("rates", rates), ("noises", noises)):
        if not values or len({*values}) < len(values):
            raise BadInput(f"{name} must hold values, each once", name, list(values), "list each value once")
    for noise in noises:
        check_choice(noise, "noises", NOISES)
    for rate in rates:
        if check_rate(rate, "rates") == 0:
            raise BadInput("rates must be above 0", "rates", rate, "leave it out: every experiment needs noise")
    return [Experiment(n, float(rate), noise) for n in n_train for noise in noises for rate in rates]


def plan_networks(experiments: Sequence[Experiment], dropout: str) -> list[Network]:
    """The networks that the experiments need: one each, or one per n_train where dropout is at inference only."""
    check_choice(dropout, "dropout", DROPOUT)
    if dropout == "training":
        return [Network(e.name, (e,), e.n_train, e.rate, e.noise) for e in experiments]
    sizes = dict.fromkeys(e.n_train for e in experiments)
    return [
        Network(f"n{n:03d}-plain", tuple(e for e in experiments if e.n_train == n), n, 0.0, "bernoulli") for n in sizes
    ]
