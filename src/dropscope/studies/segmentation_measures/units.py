"""Units of work: each network of the grid, trained, evaluated and kept, and never done twice.

Owns how a network is built, what its unit writes and where. See `workers` for units that run at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from dropscope.atomic import atomic_write, read_json
from dropscope.loading import load_model, load_weights
from dropscope.model import random_state_kept
from dropscope.report import write_text
from dropscope.studies.segmentation_measures.cases import Split
from dropscope.studies.segmentation_measures.dice_training import train, validation_loss
from dropscope.studies.segmentation_measures.evaluation import evaluate, fit_curves, open_engine
from dropscope.studies.segmentation_measures.experiments import Experiment, Network
from dropscope.studies.segmentation_measures.networks import UNet, with_feature_dropout
from dropscope.studies.segmentation_measures.preparation import Prepared
from dropscope.studies.segmentation_measures.presets import Regime
from dropscope.studies.training import trained_once
from dropscope.tracing import is_dropout

Tick = Callable[[int], None]


@dataclass(frozen=True)
class Work:
    """What all units have in common; plain values, so that it can be sent to other processes."""

    folder: str
    split: Split
    regime: Regime
    features: tuple[int, ...]
    passes: int
    seed: int
    device: str
    model: str | None = None  # file.py:callable instead of the study's U-Net
    placement: str = "dropout={rate} noise={noise}"
    threads: int | None = None
    own: tuple[tuple[str, str | None], ...] = ()  # networks that are trained already: name, file of weights

    @classmethod
    def of_folder(cls, folder: Path, about: dict[str, Any]) -> Work:
        """From the `study.json` of a finished study: enough to build its networks and to find their files."""
        nothing, features = Split((), (), ()), tuple(about["features"])
        regime, passes, seed = Regime(**about["regime"]), about["passes"], about["seed"]
        return cls(str(folder), nothing, regime, features, passes, seed, "cpu", about["model"], about["placement"])

    def build(self, network: Network, channels: int, classes: int, dims: int) -> nn.Module:
        """The untrained network: the same weights for every unit, its own dropout at the unit's rate and noise."""
        with random_state_kept():
            torch.manual_seed(self.seed)
            if self.own and self.model is not None:
                return load_model(self.model).module.eval()
            if self.model is None:
                return UNet(channels, classes, network.rate, network.noise, self.features, dims)
            return with_feature_dropout(load_model(self.model).module, network.rate, network.noise, dims)

    def build_for(self, network: Network, prepared: Prepared) -> nn.Module:
        return self.build(network, prepared.channels, prepared.classes, len(prepared.roi))

    def placement_of(self, experiment: Experiment) -> str:
        """The placement of an experiment, as text."""
        return self.placement.format(rate=f"{experiment.rate:g}", noise=experiment.noise)

    def rows_file(self, experiment: Experiment) -> Path:
        return Path(self.folder) / "rows" / f"{experiment.name}.parquet"

    def weights_file(self, network: Network) -> Path:
        return Path(self.folder) / "networks" / f"{network.name}.safetensors"

    def load_trained(self, network: Network, prepared: Prepared) -> nn.Module:
        net = self.build_for(network, prepared)
        if not self.own:
            return load_weights(net, self.weights_file(network))
        file = dict(self.own)[network.name]
        return net if file is None else load_weights(net, Path(file))

    def curves_file(self, experiment: Experiment) -> Path:
        return Path(self.folder) / "calibration" / f"{experiment.name}.json"

    def validation_loss(self, network: Network) -> float:
        """The best validation Dice loss, from the record of a trained network."""
        record = read_json(self.weights_file(network).with_suffix(".json"))
        return -float(record["scores"][record["best_epoch"]])


def count_steps(work: Work, network: Network) -> int:
    """What is left of a unit: training steps and forwards of test cases."""
    training = 0
    if not work.own and not work.weights_file(network).exists():
        rounds, each = work.regime.rounds(network.n_train)
        training = rounds * each
    missing = [e for e in network.experiments if not work.rows_file(e).exists()]
    return training + len(missing) * work.passes * (len(work.split.validation) + len(work.split.test))


def run_unit(work: Work, network: Network, prepared: Prepared, tick: Tick) -> str:
    """Trains the network if its weights are missing, and evaluates each experiment whose rows are missing."""
    device = torch.device(work.device)
    net = _judged_network(work, network, prepared, device) if work.own else _trained(work, network, prepared, tick)
    for experiment in network.experiments:
        path = work.rows_file(experiment)
        if not path.exists():
            asked = (work.placement_of(experiment), work.passes, work.seed, device)
            curves = fit_curves(open_engine(net, prepared, work.split.validation, *asked), prepared, tick)
            rows = evaluate(net, prepared, work.split.test, *asked, tick, curves)
            text = json.dumps({name: curve.facts() for name, curve in curves.items()})
            write_text(work.curves_file(experiment), text + "\n")
            rows = pd.DataFrame({"experiment": experiment.name, **asdict(experiment)}, index=rows.index).join(rows)
            atomic_write(path, lambda part, rows=rows: rows.to_parquet(part, index=False))  # type: ignore[misc]
    return network.name


def _judged_network(work: Work, network: Network, prepared: Prepared, device: torch.device) -> nn.Module:
    """A network of the user's own; its validation loss is kept as that of a trained one is."""
    net = work.load_trained(network, prepared)
    record = work.weights_file(network).with_suffix(".json")
    if not record.exists():
        chosen = list(work.split.validation)
        held = (part[chosen].to(device) for part in (prepared.images, prepared.labels, prepared.valid))
        with torch.no_grad():
            loss = validation_loss(net.to(device), *held)
        write_text(record, json.dumps({"scores": [-loss], "best_epoch": 0}) + "\n")
        net.cpu()
    return net


def _trained(work: Work, network: Network, prepared: Prepared, tick: Tick) -> nn.Module:
    device, cases = torch.device(work.device), work.split.first(network.n_train)
    about: dict[str, Any] = {
        "network": network.name, "data": prepared.fingerprint(), "seed": work.seed, "regime": asdict(work.regime),
        "features": list(work.features), "model": work.model, "train": [prepared.names[i] for i in cases],
    }  # fmt: skip
    return trained_once(
        work.weights_file(network),
        lambda: work.build_for(network, prepared),
        lambda net: train(net, prepared, cases, work.split.validation, work.regime, work.seed, device, tick),
        about,
    )


def default_placement(model: str | None, dropout: str) -> str:
    """Noise at the network's dropout modules, or after every layer of a user's network without any.

    The text has {rate} and {noise} in it, for `Work.placement_of`.
    """
    sites = "dropout={rate}" if model is None or dropout == "training" else "all={rate}"
    if model is not None and dropout == "training":
        modules = dict(load_model(model).module.named_modules())
        if "dropout" in modules:  # the family's name is a module's name there: so each module is named
            sites = ",".join(f"{name}@output={{rate}}" for name, module in modules.items() if is_dropout(module))
    return sites + " noise={noise}"
