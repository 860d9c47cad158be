"""Options of a prediction of volumes: what identifies its maps, and which measures become maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Any

import torch

from dropscope.checks import check_choice, check_count, check_passes
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure
from dropscope.measures import resolve as resolve_measures
from dropscope.model import Outputs, code_fingerprint
from dropscope.placement import Placement, as_placement
from dropscope.volumes.nifti import SCALES
from dropscope.volumes.windows import Windows

# What the segmentation study found best and cheapest, beside one plain pass: see docs/segmentation-measures.md.
MAPS = ("predictive_entropy", "averaged_variance", "plain_entropy")
LABELS, CONFIDENCE = "prediction", "mean_probability"  # the maps that every case gets
_NOT_IDENTITY = ("batch_size", "device", "memory")  # options that change no prediction


@dataclass(frozen=True)
class Options:
    """How volumes are predicted. All but `batch_size`, `device` and `memory` identify a folder of predictions.

    Args:
        placement: Where noise goes.
        passes: Passes over each volume.
        measures: Names of the measures, each of which becomes a map; those of one plain pass are "plain_entropy",
            "plain_max_probability" and "plain_margin".
        roi: Sides of a window; two sides for the slices of a 2-D network; None for the whole volume, or whole slices,
            at once. Sides that the network does not take are rounded up, and volumes padded with zeros.
        overlap: Share of a window that the next one covers again.
        seed: Seed of the noise.
        masks: "per_example" draws for every window, "per_pass" once for all windows of a pass.
        draws: "independent" passes, or "stratified" ones, whose means are more exact.
        outputs: What the model returns.
        scale: "percentiles" moves the 5th percentile of each channel to 0 and its 95th to 1; "none" does nothing.
            None is "percentiles" without `transforms` and "none" with them.
        batch_size: Windows at once.
        device: Where the model runs; where it is, if None.
        memory: Budget of the statistics, such as "4GiB".
    """

    placement: str
    _: KW_ONLY
    passes: int = 50
    measures: Sequence[str] = MAPS
    roi: Sequence[int] | None = None
    overlap: float = 0.25
    seed: int = 0
    masks: str = "per_example"
    draws: str = "independent"
    outputs: Outputs = "logits"
    scale: str | None = None
    batch_size: int = 4
    device: str | torch.device | None = None
    memory: int | str = "auto"

    @classmethod
    def of(cls, placement: Placement | str, given: dict[str, Any], *, transformed: bool) -> Options:
        """The options as they were given, checked, sequences as tuples.

        Raises:
            BadInput: Where a number or a word cannot be used.
        """
        options = cls(str(as_placement(placement)), **given)
        check_passes(options.passes)
        check_count(options.batch_size, "batch_size", 4)
        scale = ("none" if transformed else "percentiles") if options.scale is None else options.scale
        check_choice(scale, "scale", SCALES)
        names = (options.measures,) if isinstance(options.measures, str) else tuple(options.measures)
        roi = None if options.roi is None else tuple(options.roi)
        return replace(options, measures=names, roi=roi, scale=scale)

    @classmethod
    def of_facts(cls, facts: dict[str, Any], device: str | torch.device | None) -> Options:
        """From `facts`, to run somewhere."""
        sides = None if facts["roi"] is None else tuple(facts["roi"])
        return cls(**facts | {"roi": sides, "measures": tuple(facts["measures"]), "device": device})

    def facts(self) -> dict[str, Any]:
        """What changes predictions, in values that JSON can hold.

        Raises:
            BadInput: If it holds a function.
        """
        facts = {name: value for name, value in asdict(self).items() if name not in _NOT_IDENTITY}
        for name in ("outputs", "measures"):
            values = facts[name] if isinstance(facts[name], tuple) else [facts[name]]
            if not all(isinstance(value, str) for value in values):
                what, got = f"{name} must be named, as a predictor's folder holds no code", Phrase("a function")
                raise BadInput(what, name, got, "put it into the model, or name a measure")
        return facts

    def given(self) -> dict[str, Any]:
        """The keyword arguments that make these options."""
        return {name: value for name, value in asdict(self).items() if name != "placement"}

    def spec(self, windows: Windows, weights: str, voxels: int) -> dict[str, Any]:
        """What identifies the prediction of one case."""
        spec = {name: value for name, value in asdict(self).items() if name not in _NOT_IDENTITY}
        if self.draws == "independent":  # as before there was a choice
            del spec["draws"]
        spec["outputs"] = self.outputs if isinstance(self.outputs, str) else code_fingerprint(self.outputs)
        spec["measures"] = [name if isinstance(name, str) else code_fingerprint(name) for name in self.measures]
        return spec | {"roi": list(windows.size), "weights": weights, "voxels": voxels}


def streamed_measures(names: Sequence[str]) -> tuple[Measure, ...]:
    """The measures, none of which needs all passes at once: those of a volume do not fit into memory."""
    measures = [measure for name in names for measure in resolve_measures(name)]
    taken = [measure.name for measure in measures]
    if len(set(taken)) < len(taken) or not taken:
        raise BadInput("measures must be one or more, each named once", "measures", taken, "name each of them once")
    for measure in measures:
        if measure.of == "passes":
            remedy = "write it on the statistics of passes, or use dropscope.maps on a window"
            raise BadInput("measures of volumes must be computed from statistics", "measures", measure.name, remedy)
    return tuple(measures)
