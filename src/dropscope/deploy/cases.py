"""The predictor of volumes: maps, what to expect of each segmentation, and whether a person should look at it.

A case is an example, its loss is 1 − Dice or the volume error, both between 0 and 1, and a patient may have several.
See `volumes.predict` for the maps, `predictor` for the same of single classes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from dropscope.atomic import atomic_write
from dropscope.checks import check_choice
from dropscope.deploy import folders
from dropscope.deploy.bounds import Floats
from dropscope.deploy.calibration import ErrorCurve
from dropscope.deploy.casebook import (
    LOSSES,
    Groups,
    KnownCases,
    by_case,
    case_uncertainty,
    learned,
    listed,
    looks,
    right_shares,
    units,
)
from dropscope.deploy.deferral import check_asked, defer
from dropscope.deploy.drift import DriftCheck, Seen, check_drift
from dropscope.deploy.evaluation import Evaluation, evaluate_losses
from dropscope.deploy.monitors import Monitor, monitor_of
from dropscope.deploy.rules import DeferralRule
from dropscope.display import headed
from dropscope.errors import BadInput, Phrase
from dropscope.model import code_fingerprint, unwrap, weights_fingerprint
from dropscope.parameters import shares
from dropscope.placement import Placement
from dropscope.volumes import Options, Transforms, predict, rankings


@dataclass(frozen=True, eq=False)
class VolumePredictor:
    """A segmentation network with how it is run, what is known of its errors, and when to defer.

    `VolumePredictor.fit` makes one from scans and their label maps, `load` reads one. A scan gets the same maps always.

    Attributes:
        model: The network. It is left exactly as it was.
        options: How volumes are predicted.
        measure: The column of the table of cases that ranks them.
        loss: "dice" or "volume_error".
        known: What is known from labelled cases.
        rule: When to defer; None where nothing was asked.
        class_names: Names of the classes, or None.
        transforms: Preprocessing, or None.
    """

    model: nn.Module
    options: Options
    measure: str
    loss: str
    known: KnownCases
    rule: DeferralRule | None = None
    class_names: tuple[str, ...] | None = None
    transforms: Transforms | None = None

    @classmethod
    @shares(Options, without=("measures",))
    def fit(
        cls,
        model: nn.Module,
        placement: Placement | str,
        images: Iterable[str | Path],
        labels: str | Path,
        *,
        measure: str = "uncertainty",
        loss: str = "dice",
        max_error: float | None = 0.2,
        confidence: float = 0.9,
        groups: Groups = None,
        rule: Mapping[str, Any] | None = None,
        measures: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        transforms: Transforms | None = None,
        maps: str | Path | None = None,
        overlays: bool = True,
        progress: bool | None = None,
        **options: Any,
    ) -> VolumePredictor:
        """Calibrates a predictor on labelled scans that did not train the network.

        Args:
            model: A trained segmentation network, 3-D or 2-D. It is left exactly as it was.
            placement: Where noise goes, such as "own" or "up.1=0.3".
            images: NIfTI files and folders of them; "a.nii.gz,b.nii.gz" is one case with a channel from each.
            labels: A folder of files named like the cases, or a pattern such as "labels/{case}_seg.nii.gz".
            measure: What ranks cases, as `rank_by` of `volumes.predict`.
            loss: "dice" for 1 − Dice, or "volume_error" for |predicted − true| / true, at most 1; each the mean over
                the structures.
            max_error: What the mean loss of the kept may be at most; None makes no rule.
            confidence: Probability with which that holds.
            groups: The patient of each case, where some have several: {case: patient}, or one per case in their order.
            rule: More arguments of `defer`, such as {"budget": 0.2}.
            measures: Names of the measures that become maps; None takes the usual ones.
            class_names: Names of the classes, with or without the background.
            transforms: Preprocessing of your own, as `volumes.predict` takes it.
            maps: Folder to keep the maps in, and to resume from; None keeps none.
            overlays: Whether to draw a picture of every case that is kept.
            progress: Whether to show progress and remarks; None decides by the terminal.

        Returns:
            The predictor. Where nothing can be promised its rule defers everything, and says why.

        Raises:
            BadInput: For anything that cannot be used, before any pass.
        """
        check_choice(loss, "loss", LOSSES)
        check_asked(max_error, confidence, rule)
        members = by_case(groups, "groups", images)
        chosen = options | ({} if measures is None else {"measures": measures})
        resolved = Options.of(placement, chosen, transformed=transforms is not None)
        check_choice(measure, "measure", rankings([str(name) for name in resolved.measures]))
        with _folder(maps) as out:
            table = predict(model, placement, images, out, labels=labels, class_names=class_names,
                            transforms=transforms, overlays=overlays and maps is not None, rank_by=measure,
                            progress=progress, **chosen)  # fmt: skip
        names = None if class_names is None else tuple(class_names)
        known, patients = learned(table, measure, loss, members)
        asked = {"max_error": max_error, **(rule or {})}
        made = None
        if any(value is not None for value in asked.values()):
            found = np.where(np.isinf(known.uncertainty), np.nan, known.uncertainty)  # NaN is always deferred
            made = defer({measure: found}, known.right, confidence=confidence, groups=patients, **asked)
        return cls(unwrap(model), resolved, measure, loss, known, made, names, transforms)

    # --- cases --------------------------------------------------------------------------------------------------------

    def __call__(
        self, images: Iterable[str | Path], out: str | Path, *, labels: str | Path | None = None,
        overlays: bool = True, overwrite: bool = False, progress: bool | None = None,
    ) -> pd.DataFrame:  # fmt: skip
        """Predicts scans: maps, a picture and a record for each under `out`, and a table that says which to look at.

        Args:
            images: NIfTI files and folders of them.
            out: Folder of the maps. Cases that are finished there are not predicted again.
            labels: For Dice: a folder of files named like the cases, or a pattern.
            overlays: Whether to draw a picture of every case, and one of all.
            overwrite: Whether to predict finished cases again.
            progress: Whether to show progress and remarks; None decides by the terminal.

        Returns:
            The table that is also written to `out/cases.csv`, most uncertain first: as `volumes.predict` gives it, with
            `expected_loss` and `defer`.

        Raises:
            BadInput: Before any pass, where an argument or a file cannot be used.
        """
        table = predict(
            self.model, self.options.placement, images, out, labels=labels, class_names=self.class_names,
            transforms=self.transforms, overlays=overlays, rank_by=self.measure, overwrite=overwrite, progress=progress,
            **self.options.given(),
        )  # fmt: skip
        u = case_uncertainty(table, self.measure)
        table.insert(2, "defer", self._defers(u))
        table.insert(3, "expected_loss", self.known.curve(u))
        atomic_write(Path(out) / "cases.csv", lambda part: table.to_csv(part, index=False))
        return table

    # --- data ---------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        images: Iterable[str | Path],
        labels: str | Path,
        out: str | Path | None = None,
        *,
        groups: Groups = None,
        by: Groups = None,
        overlays: bool = True,
        progress: bool | None = None,
    ) -> Evaluation:
        """Loss and coverage on labelled scans that did not calibrate.

        Args:
            images: NIfTI files and folders of them.
            labels: Their label maps.
            out: Folder to keep the maps in, and to resume from; None keeps none.
            groups: The patient of each case, where some have several.
            by: Subgroups to give on their own: one name per case, or {case: name}.
            overlays: Whether to draw a picture of every case that is kept.
            progress: Whether to show progress and remarks; None decides by the terminal.

        Returns:
            An `Evaluation`, with intervals.

        Raises:
            BadInput: For scans without label maps, or subgroups that do not fit.
        """
        members, subgroups = by_case(groups, "groups", images), by_case(by, "by", images)
        with _folder(out) as maps:
            table = self(images, maps, labels=labels, overlays=overlays and out is not None, progress=progress)
        table = table[table[self.loss].notna()]
        promised = None if self.rule is None or not self.rule.found else self.rule.max_error
        losses, away = 1 - right_shares(table, self.loss), table.defer.to_numpy(bool)
        subsets = listed(table, subgroups)
        return evaluate_losses(losses, away, unit=units(table, members), by=subsets, max_error=promised)

    def check(
        self,
        images: Iterable[str | Path],
        out: str | Path | None = None,
        *,
        alpha: float = 0.05,
        groups: Groups = None,
        progress: bool | None = None,
    ) -> DriftCheck:
        """Whether recent scans still look like the calibration, without labels: uncertainties, deferrals, volumes.

        Args:
            images: Recent scans, of twenty patients or more.
            out: Folder to keep the maps in, and to resume from; None keeps none.
            alpha: How often there may be a false alarm where nothing changed.
            groups: The patient of each case, where some have several.
            progress: Whether to show progress and remarks; None decides by the terminal.

        Returns:
            A `DriftCheck`, with an estimate of 1 − loss.

        Raises:
            BadInput: For scans that cannot be used, or too few.
        """
        members = by_case(groups, "groups", images)
        with _folder(out) as maps:
            table = self(images, maps, overlays=False, progress=progress)
        u, volumes, apart = looks(table, self.measure)
        now = Seen(u, volumes, apart, None if self.rule is None else self._defers(u), units(table, members))
        before = self.known.seen(None if self.rule is None else self._defers(self.known.uncertainty))
        return check_drift(before, now, alpha, curve=self.known.curve, accuracy=float(self.known.right.mean()),
                           named="volumes", outcome=LOSSES[self.loss])  # fmt: skip

    def monitor(self, alpha: float = 0.05, largest: int | None = None) -> Monitor:
        """A monitor of label maps as they come: whether the loss of the kept is still what was promised.

        Args:
            alpha: Probability of a false alarm, ever.
            largest: Cases of one patient, at most; None takes that of the calibration.

        Returns:
            The monitor: `monitor.update(table.dice, table.defer)`.

        Raises:
            BadInput: Without a promise.
        """
        return monitor_of(self.rule, self.known.unit, alpha, largest)

    # --- folders ------------------------------------------------------------------------------------------------------

    def save(self, out: str | Path) -> Path:
        """Writes what is known and decided, as safetensors and JSON: no code, no weights, no images.

        Args:
            out: The folder; a predictor that it holds is replaced.

        Returns:
            The folder.

        Raises:
            BadInput: For a folder of something else, or options that hold a function.
        """
        known = self.known
        arrays = {"uncertainty": known.uncertainty, "right": known.right, "volumes": known.volumes,
                  "disagreement": known.disagreement, "unit": known.unit}  # fmt: skip
        code = None if self.transforms is None else code_fingerprint(self.transforms)
        record = {"options": self.options.facts(), "measure": self.measure, "loss": self.loss, "ids": known.ids,
                  "transforms": code}  # fmt: skip
        stored = folders.Stored(self.rule, self.class_names, weights_fingerprint(self.model), record,
                                arrays | known.curve.tensors())  # fmt: skip
        return folders.write(Path(out), folders.VOLUMES, stored)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        model: nn.Module,
        *,
        transforms: Transforms | None = None,
        device: str | torch.device | None = None,
    ) -> VolumePredictor:
        """Reads what `save` wrote, for the network and the preprocessing that it was fitted with.

        Args:
            folder: Of the predictor.
            model: With the weights it had then.
            transforms: None where there were none.
            device: None for where the model is.

        Returns:
            A predictor that gives a scan the same answer as the one that was saved.

        Raises:
            BadInput: If a file is missing or damaged, or if
                the weights or the transforms are others.
        """
        own, stored = unwrap(model), folders.read(Path(folder), folders.VOLUMES)
        stored.check_weights(own)
        record = stored.record
        if record.get("transforms") != (None if transforms is None else code_fingerprint(transforms)):
            got = Phrase("none" if transforms is None else "others")
            raise BadInput(
                "transforms must be those of the predictor", "transforms", got, "pass what it was fitted with"
            )
        with folders.as_saved(Path(folder)):
            values: dict[str, Any] = dict(stored.tensors)
            known = KnownCases(record["ids"], curve=ErrorCurve.of(values), **values)
            options = Options.of_facts(record["options"], device)
            made = options, record["measure"], record["loss"], known
        return cls(own, *made, stored.rule, stored.class_names, transforms)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        known = self.known
        how = f"with {self.options.placement}, {self.measure}, {self.options.passes} passes"
        lines = headed("predicts", f"{how} ({type(self.model).__name__})")
        patients = len(np.unique(known.unit))
        of = f"{len(known.ids):,} labelled cases" + (f" of {patients:,} groups" if patients < len(known.ids) else "")
        lines += headed("knows", f"{of}, mean {LOSSES[self.loss]} {known.right.mean():.3f}")
        return "\n".join(lines + (["defers   nothing"] if self.rule is None else str(self.rule).splitlines()))

    def _defers(self, uncertainty: Floats) -> NDArray[np.bool_]:
        return np.zeros(len(uncertainty), bool) if self.rule is None else self.rule(uncertainty)


@contextmanager
def _folder(out: str | Path | None) -> Iterator[str | Path]:
    """The folder of maps, or one that is removed again."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="dropscope-") as made:
        yield made
