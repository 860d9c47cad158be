"""What a run of the study will do, checked before any network is trained: volumes read, split, grid, network, workers.

Owns `plan` and its checks, and the estimate that a dry run prints. It trains nothing and writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.checks import check_passes
from dropscope.device import as_device
from dropscope.errors import BadInput, nearest
from dropscope.injection import examine, resolve
from dropscope.loading import load_model
from dropscope.model import Call, random_state_kept
from dropscope.placement import as_placement
from dropscope.studies.segmentation_measures import experiments as grid_of
from dropscope.studies.segmentation_measures.decathlon import read_decathlon
from dropscope.studies.segmentation_measures.dice_training import Regime
from dropscope.studies.segmentation_measures.estimates import seconds, worker_bytes
from dropscope.studies.segmentation_measures.experiments import PREPARED, Experiment, Network, Work
from dropscope.studies.segmentation_measures.phantom import phantom
from dropscope.studies.segmentation_measures.preparing import (
    Prepared,
    check_classes,
    prepare_volumes,
    read_prepared,
    region,
)
from dropscope.studies.segmentation_measures.presets import PRESETS, Preset
from dropscope.studies.segmentation_measures.volumes import Split, Volumes, split
from dropscope.tracing import is_dropout

_THREADS = 8  # of a unit on a CPU, at most


@dataclass(frozen=True, eq=False)
class Planned:
    """A study that is checked and ready: nothing is trained yet."""

    preset: str
    settings: Preset
    prepared: Prepared
    divided: Split
    experiments: tuple[Experiment, ...]
    units: tuple[Network, ...]
    work: Work
    workers: int
    dropout: str
    remarks: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Training steps of all networks together."""
        regime = self.settings.regime
        rounds = [regime.rounds(len(self.divided.first(unit.n_train))) for unit in self.units]
        return sum(r * s for r, s in rounds)

    def facts(self) -> dict[str, Any]:
        """What it will do, as plain values."""
        return {
            "data": self.prepared.about["source"],
            "preset": self.preset,
            "networks": len(self.units),
            "experiments": len(self.experiments),
            "n_train": sorted({e.n_train for e in self.experiments}),
            "rates": sorted({e.rate for e in self.experiments}),
            "noise": sorted({e.noise for e in self.experiments}),
            "dropout": self.dropout,
            "cases": [sum(map(len, self.divided.train)), len(self.divided.validation), len(self.divided.test)],
            "channels": self.prepared.about["channels"],
            "classes": self.prepared.about["classes"],
            "roi": list(self.prepared.roi),
            "training_steps": self.steps,
            "batch": self.settings.regime.batch,
            "precision": self.settings.regime.precision,
            "passes": self.settings.passes,
            "test_forwards": len(self.experiments) * len(self.divided.test) * self.settings.passes,
            "workers": self.workers,
            "device": self.work.device,
            "folder": self.work.folder,
            "remarks": list(self.remarks),
        }


def estimated(planned: Planned) -> dict[str, float]:
    """Seconds and bytes of the whole, from a few steps run now; units at once are taken to share the device fairly."""
    work, prepared, settings = planned.work, planned.prepared, planned.settings
    net = work.fresh(planned.units[0], prepared)
    step, forward = seconds(net, prepared.images[:1], prepared.classes, settings.regime, torch.device(work.device))
    forwards = planned.facts()["test_forwards"]
    device = torch.device(planned.work.device)
    each = worker_bytes(prepared.roi, prepared.classes, settings.regime, settings.features, device)
    return {
        "seconds_per_step": step,
        "seconds_per_forward": forward,
        "seconds": step * planned.steps + forward * forwards,
        "bytes": float(each * planned.workers),
    }


def plan(
    data: str = "phantom",
    preset: str = "small",
    out: str | Path = "segmentation-measures",
    *,
    n_train: Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
    noises: Sequence[str] | None = None,
    regime: Regime | None = None,
    roi: Sequence[int] | None = None,
    passes: int | None = None,
    features: Sequence[int] | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    seed: int = 0,
    model: str | None = None,
    placement: str | None = None,
    dropout: str = "training",
    ignore_label: int | None = None,
    show: bool | None = None,
) -> Planned:
    """Reads and checks everything; raises `BadInput` before any network is trained."""
    if preset not in PRESETS:
        raise BadInput(f"a preset is one of {', '.join(PRESETS)}", "--preset", preset, nearest(preset, PRESETS))
    chosen = PRESETS[preset]
    given = {"n_train": n_train, "rates": rates, "noises": noises, "features": features}
    where = as_device(device)
    asked: dict[str, Any] = {name: tuple(value) for name, value in given.items() if value is not None}
    counts = {"passes": passes, "n_validation": n_validation, "n_test": n_test}
    asked |= {name: value for name, value in counts.items() if value is not None}
    settings = replace(chosen, **asked, regime=(regime or chosen.regime).on(where))
    check_passes(settings.passes)
    if workers is not None and workers < 1:
        raise BadInput("at least one unit runs at a time", "--workers", workers, "write --workers 1")
    grid_of.grid(settings.n_train, settings.rates, settings.noises)  # the checks that need no data come first
    prepared = _prepared(data, settings, Path(out), roi, seed, ignore_label, model, show)
    divided, sizes, remarks = _divided(prepared, settings, seed, explicit=n_train is not None)
    check_classes(prepared, divided.first(min(sizes)))
    experiments = grid_of.grid(sizes, settings.rates, settings.noises)
    units = grid_of.networks(experiments, dropout)
    if workers is None:
        workers = grid_of.fitting_workers(
            len(units), where, prepared.roi, prepared.classes, settings.regime, settings.features
        )
    threads = torch.get_num_threads()
    threads = min(_THREADS, threads) if where.type == "cpu" else max(1, threads // workers)
    text = placement or _default_placement(model, dropout)
    work = Work(
        str(out), divided, settings.regime, settings.features, settings.passes, seed, str(where), model, text, threads
    )
    _check_network(work, units, experiments[0], prepared)
    if prepared.about["lost"]:
        lost = prepared.about["lost"]
        remarks.append(f"{sum(lost.values())} foreground voxels of {len(lost)} cases lie outside the region")
    remarks += prepared.about["remarks"]
    settings = replace(settings, n_train=tuple(sizes))
    return Planned(
        preset, settings, prepared, divided, tuple(experiments), tuple(units), work, workers, dropout, tuple(remarks)
    )


def _default_placement(model: str | None, dropout: str) -> str:
    """Noise where the network's dropout modules are; a network of the user's without dropout: after every layer."""
    where = "dropout={rate}" if model is None or dropout == "training" else "all={rate}"
    if model is not None and dropout == "training":
        modules = dict(load_model(model).module.named_modules())
        if "dropout" in modules:  # also a name of its own there: then each is named
            where = ",".join(f"{name}@output={{rate}}" for name, module in modules.items() if is_dropout(module))
    return where + " noise={noise}"


def _prepared(
    data: str, settings: Preset, out: Path, roi: Sequence[int] | None, seed: int, ignore_label: int | None,
    model: str | None, show: bool | None,
) -> Prepared:  # fmt: skip
    if data.endswith(".safetensors"):
        found = read_prepared(Path(data))
        if roi is not None and tuple(roi) != found.roi:
            raise BadInput(
                "prepared volumes keep their region", "--roi", tuple(roi), f"leave it out: it is {found.roi}"
            )
        return found
    volumes = _volumes(data, settings, seed, ignore_label)
    depth = len(settings.features) - 1
    pooled = [2**depth if model is None and (axis < 2) else 1 for axis in range(volumes.dims)]
    wanted = region(volumes, roi, pooled)
    key = _data_key(data, settings, seed, wanted, ignore_label)
    cached = out / PREPARED
    if cached.exists():
        found = read_prepared(cached)
        if found.about.get("key") == key:
            return found
        raise BadInput(
            "a folder holds one study", f"the volumes in {cached}", "others", "choose another folder with --out"
        )
    found = prepare_volumes(volumes, wanted, ignore_label, show)
    return replace(found, about={**found.about, "key": key})


def _volumes(data: str, settings: Preset, seed: int, ignore_label: int | None) -> Volumes:
    if data == "phantom":
        p = settings.phantoms
        return phantom(p.sizes, seed, p.shape, p.spacing)
    return read_decathlon(data, ignore_label)


def _data_key(data: str, settings: Preset, seed: int, roi: Sequence[int], ignore_label: int | None) -> str:
    """What the prepared volumes were made from: files by name, size and time, so that they are read once."""
    facts: list[Any] = [list(roi), ignore_label]
    if data == "phantom":
        facts += [asdict(settings.phantoms), seed]
    else:
        names = sorted(Path(data).glob("*Tr/*")) + sorted(Path(data).glob("*.[cj]s*"))
        facts += [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in names]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _divided(prepared: Prepared, settings: Preset, seed: int, explicit: bool) -> tuple[Split, list[int], list[str]]:
    """The split, and the training sizes: those asked for must be there, those of a preset are cut to what is."""
    patients, roles = prepared.about["patients"], prepared.about["roles"]
    wanted = list(settings.n_train)
    counts = settings.n_validation, settings.n_test
    if explicit:
        return split(patients, roles, seed, wanted, *counts), wanted, []
    available = len(split(patients, roles, seed, [min(wanted)], *counts).train)
    sizes = [n for n in wanted if n <= available]
    left_out = [n for n in wanted if n > available]
    remarks = (
        [f"n_train {', '.join(map(str, left_out))} left out: {available} patients to train on"] if left_out else []
    )
    return split(patients, roles, seed, sizes, *counts), sizes, remarks


def _check_training(net: nn.Module, images: Tensor, wanted: tuple[int, ...], drops: bool) -> None:
    """The same in training, with a look at what its dropout is given."""
    ranks: dict[str, int] = {}

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, args: ranks.update({name: args[0].dim()})

    dropouts = [(name, module) for name, module in net.named_modules() if is_dropout(module)]
    hooks = [module.register_forward_pre_hook(noting(name)) for name, module in dropouts]
    try:
        with random_state_kept():
            shape = tuple(getattr(net.train()(images), "shape", ("not a tensor",)))
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:120]
        raise BadInput(
            "the network can be trained on this region", "--model", reason, "choose a larger --roi"
        ) from error
    finally:
        net.eval()
        for hook in hooks:
            hook.remove()
    if shape[1:] != wanted:
        remedy = "build it without further outputs (deep supervision)"
        raise BadInput(f"the network returns logits {(len(images), *wanted)} in training", "--model", shape, remedy)
    tokens = next((name for name, rank in ranks.items() if rank != images.dim()), None)
    if drops and tokens is not None:
        remedy = "write --dropout inference and name sites with --placement"
        raise BadInput("dropout of the study lies on feature maps", "--model", f"{tokens} is given tokens", remedy)


def _check_network(work: Work, units: Sequence[Network], experiment: Experiment, prepared: Prepared) -> None:
    """One plain forward on the first volume and a look at the sites: a network that does not fit fails here."""
    try:
        text = work.text(experiment)
    except (KeyError, IndexError, ValueError) as error:
        remedy = "write for example 'dropout={rate} noise={noise}'"
        raise BadInput(
            "a placement of the study has {rate} and {noise}", "--placement", work.placement, remedy
        ) from error
    net = work.fresh(units[0], prepared).eval().to(work.device)
    image = prepared.images[:1].to(work.device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch would warn of is refused below
        try:
            shape = tuple(net(image).shape)
        except RuntimeError as error:
            reason = str(error).splitlines()[0][:120]
            remedy = "choose a --roi that the network takes, and as many channels as the images have"
            raise BadInput(f"the network takes {tuple(image.shape)}", "--model", reason, remedy) from error
        wanted = (1, prepared.classes, *prepared.roi)
        if shape != wanted:
            raise BadInput(f"the network returns logits {wanted}", "--model", shape, "build it with those classes")
        _check_training(net, image.expand(2, *image.shape[1:]), wanted[1:], units[0].rate > 0)
        resolve(as_placement(text), examine(net, Call.of(image)))
