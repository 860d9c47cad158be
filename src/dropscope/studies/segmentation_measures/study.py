"""The study: which measure, computed from T passes, best predicts the misclassified voxels of a 3-D U-Net?

Owns the order: `plan(options)` reads and checks everything, `run(plan)` trains and evaluates the grid, shows the best
network, judges the claims and writes. See `published` for the paper, and `presets` for the sizes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from dropscope.atomic import output_folder, read_json
from dropscope.device import as_device
from dropscope.errors import BadInput, nearest
from dropscope.loading import load_weights
from dropscope.model import weights_fingerprint
from dropscope.report import Claim, Registration, Summary, claim_folder, write_claims
from dropscope.studies.segmentation_measures import claims as rules_of_claims
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.calibration import ErrorCurve
from dropscope.studies.segmentation_measures.cases import Split, split
from dropscope.studies.segmentation_measures.estimates import fitting_workers, measure_seconds, worker_bytes
from dropscope.studies.segmentation_measures.experiments import Experiment, Network, make_grid, plan_networks
from dropscope.studies.segmentation_measures.networks import check_network
from dropscope.studies.segmentation_measures.options import Options
from dropscope.studies.segmentation_measures.own_networks import (
    check_own,
    held_out_remark,
    own_files,
    own_placement,
    plan_own,
    refuse_without_test,
)
from dropscope.studies.segmentation_measures.preparation import (
    PREPARED,
    Prepared,
    check_classes,
    load_data,
    write_prepared,
)
from dropscope.studies.segmentation_measures.presets import Preset, apply_preset
from dropscope.studies.segmentation_measures.report import write_report
from dropscope.studies.segmentation_measures.rules import RULES
from dropscope.studies.segmentation_measures.showcase import EXHIBITS, make_exhibits, read_exhibits
from dropscope.studies.segmentation_measures.units import Work, default_placement
from dropscope.studies.segmentation_measures.workers import run_units

STUDY = "segmentation-measures"
_THREADS = 8  # of a unit on a CPU, at most


@dataclass(frozen=True, eq=False)
class Plan:
    """A study with everything checked; nothing is trained or written yet."""

    options: Options
    preset: Preset  # with the wishes of the options in it
    experiments: tuple[Experiment, ...]
    prepared: Prepared
    split: Split
    units: tuple[Network, ...]
    work: Work
    workers: int
    remarks: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Training steps of all networks together."""
        if self.work.own:
            return 0
        rounds = [self.preset.regime.rounds(len(self.split.first(unit.n_train))) for unit in self.units]
        return sum(count * steps for count, steps in rounds)

    @property
    def forwards(self) -> int:
        """Passes over validation and test cases, all together."""
        cases = len(self.split.validation) + len(self.split.test)
        return len(self.experiments) * cases * self.preset.passes

    def facts(self) -> dict[str, Any]:
        """What the study will do, as plain values."""
        regime = self.preset.regime
        return {
            "data": self.prepared.about["source"],
            "preset": self.options.preset,
            "networks": len(self.units),
            "own": [name for name, _ in self.work.own],
            "experiments": len(self.experiments),
            "n_train": sorted({e.n_train for e in self.experiments}),
            "rates": sorted({e.rate for e in self.experiments}),
            "noise": sorted({e.noise for e in self.experiments}),
            "dropout": self.options.dropout,
            "placement": self.work.placement,
            "cases": [sum(map(len, self.split.train)), len(self.split.validation), len(self.split.test)],
            "channels": self.prepared.about["channels"],
            "classes": self.prepared.about["classes"],
            "roi": list(self.prepared.roi),
            "training": f"{regime.epochs} epochs" if regime.steps is None else f"{regime.steps} steps",
            "training_steps": self.steps,
            "batch": self.preset.regime.batch,
            "precision": self.preset.regime.precision,
            "passes": self.preset.passes,
            "test_forwards": len(self.experiments) * len(self.split.test) * self.preset.passes,
            "workers": self.workers,
            "device": self.work.device,
            "folder": self.work.folder,
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results: claims judged, tables, rows (experiment × case × measure), their folder, and what the summary says
    first."""

    folder: Path
    claims: tuple[Claim, ...]
    tables: dict[str, pd.DataFrame]
    rows: pd.DataFrame
    summary: Summary


def plan(options: Options, *, show: bool | None = None) -> Plan:
    """Reads and checks everything; raises `BadInput` before any network is trained."""
    device, folder = as_device(options.device), output_folder(options.out)
    preset = apply_preset(options, device)
    check_own(options)
    if options.train == "none":
        return _plan_own(options, preset, device, folder, show=show)
    prepared = load_data(options, preset, show=show)
    divided, sizes, remarks = _divide(prepared, preset, options)
    check_classes(prepared, divided.first(min(sizes)))
    experiments = make_grid(sizes, preset.rates, preset.noises)
    units = plan_networks(experiments, options.dropout)
    workers = options.workers or fitting_workers(
        len(units), device, prepared.roi, prepared.classes, preset.regime, preset.features
    )
    threads = torch.get_num_threads()
    work = Work(
        str(folder), divided, preset.regime, preset.features, preset.passes, options.seed, str(device),
        options.model, options.placement or default_placement(options.model, options.dropout),
        min(_THREADS, threads) if device.type == "cpu" else max(1, threads // workers),
    )  # fmt: skip
    net = work.build_for(units[0], prepared).to(device)
    placement = _example_placement(work, experiments[0])
    check_network(net, prepared.images[:1].to(device), prepared.classes, placement, drops=units[0].rate > 0)
    preset = replace(preset, n_train=tuple(sizes))
    remarks += _region_remarks(prepared)
    return Plan(options, preset, tuple(experiments), prepared, divided, tuple(units), work, workers, tuple(remarks))


def _plan_own(options: Options, preset: Preset, device: torch.device, folder: Path, *, show: bool | None) -> Plan:
    """The plan for networks that are trained already: one after the other, each file of weights tried."""
    files = own_files(options)
    prepared = load_data(options, preset, show=show)
    roles = [None if role is None else str(role) for role in prepared.about["roles"]]
    counts = (options.n_validation, options.n_test)
    divided = replace(split(prepared.about["patients"], roles, options.seed, [], *counts), train=())
    refuse_without_test(len(divided.validation), len(divided.test))
    work = Work(
        str(folder), divided, preset.regime, preset.features, preset.passes, options.seed, str(device), options.model,
        "", torch.get_num_threads(), tuple(files.items()),
    )  # fmt: skip
    image = prepared.images[:1].to(device)
    units = [Network(name, (), 0, 0.0, "bernoulli") for name in files]
    placement = own_placement(options, work.load_trained(units[0], prepared).to(device), image)
    work = replace(work, placement=placement)
    experiments, units = plan_own(files, placement, preset, options)
    example = _example_placement(work, experiments[0])
    for unit in units:
        net = work.load_trained(unit, prepared).to(device)
        check_network(net, image, prepared.classes, example, drops=False, trains=False)
    remarks = held_out_remark(roles) + _region_remarks(prepared)
    return Plan(options, preset, tuple(experiments), prepared, divided, tuple(units), work, 1, tuple(remarks))


def _region_remarks(prepared: Prepared) -> list[str]:
    remarks = list(prepared.about["remarks"])
    if lost := prepared.about["lost"]:
        remarks.insert(0, f"{sum(lost.values())} foreground voxels of {len(lost)} cases lie outside the region")
    return remarks


def _divide(prepared: Prepared, preset: Preset, options: Options) -> tuple[Split, list[int], list[str]]:
    """(split, training sizes, remarks): sizes that were asked for must fit, those of a preset are cut to the data."""
    patients, roles = prepared.about["patients"], prepared.about["roles"]
    wanted, counts = list(preset.n_train), (preset.n_validation, preset.n_test)
    if options.n_train is not None:
        return split(patients, roles, options.seed, wanted, *counts), wanted, []
    available = len(split(patients, roles, options.seed, [min(wanted)], *counts).train)
    sizes = [n for n in wanted if n <= available]
    left_out = ", ".join(str(n) for n in wanted if n > available)
    remarks = [f"n_train {left_out} left out: {available} patients to train on"] if left_out else []
    return split(patients, roles, options.seed, sizes, *counts), sizes, remarks


def _example_placement(work: Work, experiment: Experiment) -> str:
    try:
        return work.placement_of(experiment)
    except (KeyError, IndexError, ValueError) as error:
        remedy = "write placement='dropout={rate} noise={noise}'"
        what = "placement must have no fields but {rate} and {noise}"
        raise BadInput(what, "placement", work.placement, remedy) from error


def estimate(plan: Plan) -> dict[str, float]:
    """Seconds and bytes of the whole study, from a few steps run now; units at once share the device fairly."""
    work, prepared, preset = plan.work, plan.prepared, plan.preset
    device = torch.device(work.device)
    net = work.build_for(plan.units[0], prepared)
    step, forward = measure_seconds(net, prepared.images[:1], preset.regime, device)
    each = worker_bytes(prepared.roi, prepared.classes, preset.regime, preset.features, device)
    return {
        "seconds_per_step": step,
        "seconds_per_forward": forward,
        "seconds": step * plan.steps + forward * plan.forwards,
        "bytes": float(each * plan.workers),
    }


def run(plan: Plan, *, show: bool | None = None) -> Outcome:
    """Trains and evaluates what is missing in the folder, then writes tables, figures and the summary."""
    work, folder = plan.work, Path(plan.work.folder)
    claim_folder(folder, _spec(plan))
    _registration(plan).check(plan.options.preregister, folder)
    if not (folder / PREPARED).exists():
        write_prepared(plan.prepared, folder / PREPARED)
    rows = run_units(work, plan.units, plan.workers, show=show)
    exhibits = make_exhibits(work, plan.units, rows, plan.prepared)
    summary, tables = write_report(folder, rows, exhibits, plan.facts())
    write_claims(folder, STUDY, plan.prepared.fingerprint(), summary.claims)
    return Outcome(folder, summary.claims, tables, rows, summary)


def preregister(plan: Plan) -> str:
    """Writes the claims, margins, seeds and options of a run that has not begun; returns their hash."""
    assert plan.options.preregister is not None
    return _registration(plan).write(plan.options.preregister, Path(plan.work.folder))


def _registration(plan: Plan) -> Registration:
    sources = (rules_of_claims, published)
    grid = {"grid": [experiment.name for experiment in plan.experiments]}
    setting, files = _spec(plan) | grid, ("data", "weights")
    return Registration.of(STUDY, plan.options, setting, [plan.work.seed], RULES, sources, files)


def _spec(plan: Plan) -> dict[str, Any]:
    """What all networks of a folder have in common, for `study.json`. The grid is not in it: a study may grow."""
    preset, prepared, work = plan.preset, plan.prepared, plan.work
    return {
        "study": STUDY, "data": prepared.fingerprint(), "seed": work.seed,
        "regime": asdict(preset.regime), "features": list(preset.features), "passes": preset.passes,
        "model": work.model, "placement": work.placement, "dropout": plan.options.dropout,
        "channels": prepared.channels, "classes": prepared.classes, "dims": len(prepared.roi),
        "split": [len(plan.split.train), len(plan.split.validation), len(plan.split.test)],
        **_own_spec(plan),
    }  # fmt: skip


def _own_spec(plan: Plan) -> dict[str, Any]:
    """Of networks that are trained already: their weights."""
    if not plan.work.own:
        return {}
    weights = {unit.name: weights_fingerprint(plan.work.load_trained(unit, plan.prepared)) for unit in plan.units}
    return {"train": "none", "weights": weights}


def trained_network(folder: str | Path, experiment: str | None = None) -> tuple[nn.Module, str]:
    """A network of a finished study and the placement it was evaluated with; the exhibited one if none is named.

    In a file for the other commands: `def model(): return trained_network("segmentation-measures")[0]`.
    """
    root = Path(folder)
    if not (root / "study.json").exists():
        remedy = "name the folder of a segmentation-measures study"
        raise BadInput("folder must hold a finished study", "folder", str(root), remedy)
    about = read_json(root / "study.json")
    names = sorted(path.stem for path in (root / "rows").glob("*.parquet"))
    name = experiment or (read_exhibits(root / EXHIBITS).about["experiment"] if (root / EXHIBITS).exists() else None)
    if name is None or name not in names:
        what = "experiment must be one of the study's"
        raise BadInput(what, "experiment", name, nearest(str(name), names))
    row = pd.read_parquet(root / "rows" / f"{name}.parquet", columns=["n_train", "rate", "noise"]).iloc[0]
    chosen = Experiment(int(row.n_train), float(row.rate), str(row.noise))
    (unit,) = plan_networks([chosen], about["dropout"])
    work = Work.of_folder(root, about)
    net = load_weights(work.build(unit, about["channels"], about["classes"], about["dims"]), work.weights_file(unit))
    return net, work.placement_of(chosen)


def calibrated(folder: str | Path, measure: str, experiment: str | None = None) -> ErrorCurve:
    """P(error) of a voxel as a function of a measure, as a finished study fitted it on its validation cases.

    Args:
        folder: Of the study.
        measure: Name of the measure, such as "averaged_variance".
        experiment: Whose curve; of the exhibited network if not given.

    Returns:
        A function of a tensor of uncertainties.
    """
    root = Path(folder)
    names = sorted(path.stem for path in (root / "calibration").glob("*.json"))
    chosen = experiment or (read_exhibits(root / EXHIBITS).about["experiment"] if (root / EXHIBITS).exists() else None)
    if chosen not in names:
        what = "experiment must be one of the study's, with a curve"
        raise BadInput(what, "experiment", chosen, nearest(str(chosen), names))
    curves = read_json(root / "calibration" / f"{chosen}.json")
    if measure not in curves:
        raise BadInput("measure must be one of the study's", "measure", measure, nearest(measure, list(curves)))
    return ErrorCurve.of(curves[measure])
