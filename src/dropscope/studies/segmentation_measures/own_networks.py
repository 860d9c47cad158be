"""Networks of the user's own, trained already: which there are, where their noise goes, and what is asked of options.

Each file of weights is a network, each network with each noise an experiment. Nothing is trained: cases are divided
into validation, for the curves of P(error), and test.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from dropscope.errors import BadInput, Phrase
from dropscope.injection import examine
from dropscope.model import Call
from dropscope.studies.segmentation_measures.experiments import Experiment, Network, make_grid
from dropscope.studies.segmentation_measures.options import Options
from dropscope.studies.segmentation_measures.presets import Preset
from dropscope.studies.segmentation_measures.units import default_placement

_OF_TRAINING = ("n_train", "epochs", "steps", "validations", "batch", "precision")
OWN = "own"  # noise of a placement that says its rates itself


def check_own(options: Options) -> None:
    """Refuses options that contradict each other.

    Raises:
        BadInput: For the first of them.
    """
    if options.train != "none":
        if options.weights is not None:
            remedy = "write train='none', or leave weights out"
            raise BadInput("weights must go with train='none'", "weights", list(options.weights), remedy)
        return
    if options.model is None and options.weights is None:
        what = "model or weights must be given with train='none'"
        raise BadInput(what, "model", None, "write model='mine.py:unet', or weights=['net.safetensors']")
    for name in _OF_TRAINING:
        if getattr(options, name) is not None:
            what = f"{name} must be left out with train='none'"
            raise BadInput(what, name, getattr(options, name), f"leave {name} out")


def own_files(options: Options) -> dict[str, str | None]:
    """Name → file of weights of each network; None where the model comes with its own.

    Raises:
        BadInput: Where a file is named twice or is not there.
    """
    if options.weights is None:
        return {str(options.model).rpartition(":")[2]: None}
    paths = [Path(each) for each in options.weights]
    if not paths or len({path.resolve() for path in paths}) < len(paths):
        raise BadInput("weights must name each file once", "weights", [*map(str, paths)], "name each file once")
    for path in paths:
        if not path.is_file():
            raise BadInput("weights must be existing files", "weights", str(path), "check the path")
    stems = [path.stem for path in paths]
    if len({*stems}) < len(stems):
        stems = [f"{path.parent.name}-{path.stem}" for path in paths]
    if len({*stems}) < len(stems):
        stems = [f"{number}-{stem}" for number, stem in enumerate(stems)]
    return dict(zip(stems, map(str, paths), strict=True))


def own_placement(options: Options, net: nn.Module, image: Tensor) -> str:
    """Where noise goes: as asked, or at the network's own dropout, or after every layer of a network without any."""
    if options.placement is not None:
        return options.placement
    if options.model is None or examine(net, Call.of(image)).has_own:
        asked = options.model is None or options.rates is not None or options.noises is not None
        return default_placement(options.model, "training") if asked else OWN
    return default_placement(options.model, "inference")


def plan_own(
    files: dict[str, str | None], placement: str, preset: Preset, options: Options
) -> tuple[list[Experiment], list[Network]]:
    """Experiments and networks: every rate and noise where the placement has a place for them, else one each."""
    if "{" not in placement:
        if options.rates is not None or options.noises is not None:
            what = "placement must have {rate} and {noise} in it where rates or noises are given"
            raise BadInput(what, "placement", placement, "write placement='all={rate} noise={noise}'")
        noises = [(0.0, OWN)]
    else:
        grid = make_grid([1], preset.rates, preset.noises if options.noises is not None else ("bernoulli",))
        noises = [(e.rate, e.noise) for e in grid]
    units = []
    for name in files:
        own = tuple(Experiment(0, rate, noise, name) for rate, noise in noises)
        units.append(Network(name, own, 0, 0.0, "bernoulli"))
    return [experiment for unit in units for experiment in unit.experiments], units


def held_out_remark(roles: Sequence[str | None]) -> list[str]:
    """What to know of cases that may have been trained on."""
    left_out = sum(role == "train" for role in roles)
    if left_out:
        return [f"{left_out} cases with the role train in cases.csv are left out: networks have seen them"]
    return ["every case counts as unseen; say which ones were trained on in cases.csv, by the role train"]


def refuse_without_test(validation: int, test: int) -> None:
    """Refuses data without a case for the curves or for the test."""
    for name, count in (("n_validation", validation), ("n_test", test)):
        if count < 1:
            received = Phrase(f"{count} patients")
            raise BadInput(f"{name} must be at least 1", name, received, "add cases that were not trained on")
