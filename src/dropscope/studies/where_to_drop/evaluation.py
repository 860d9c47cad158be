"""Evaluation of one network: the sweep of the whole grid, the sweep on inputs, the choice and the curves.

Owns which sweeps there are. Killed at any moment, it continues where it was: sweeps are kept in the study's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from dropscope import measures, scores
from dropscope.placement import Placement, PlacementGrid
from dropscope.runs import Run, judge, sample, sweep, uncertainty
from dropscope.studies.where_to_drop.curves import curve_placements
from dropscope.studies.where_to_drop.presets import Preset
from dropscope.studies.where_to_drop.rows import NetworkResult, with_aurc_intervals
from dropscope.studies.where_to_drop.tasks import Task

_FRESH_SEED = 1  # the choice is made under seed 0: the report sees other masks


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Where and how large: the same for every network of a study."""

    task: Task
    size: Preset
    device: torch.device
    progress: bool | None

    @property
    def grid(self) -> Sequence[Placement]:
        """Every subset of the layers at every rate, before and after the activation where there is one."""
        return PlacementGrid(self.task.layers, self.size.rates, self.task.positions, (self.task.noise,))

    def run(self, net: nn.Module, name: str, accuracy: float, folder: Path) -> NetworkResult:
        """Everything about one network; its sweeps are kept in `folder`."""
        full = self._sweep(net, self.grid, folder / "grid", "top:20")
        inputs = self._sweep_inputs(net, folder)
        chosen = self._choose(net, folder)
        curves = self._curves(net)
        rows = with_aurc_intervals(full)
        return NetworkResult(name, accuracy, rows, full.baseline, full.levels, curves, inputs, chosen)

    def _sweep(self, net: nn.Module, grid: Sequence[Placement], out: Path, keep: str) -> Run:
        """A sweep on the test examples."""
        return sweep(
            net,
            grid,
            self.task.test,
            self.size.passes,
            groups=self.task.test_groups,
            device=self.device,
            out=out,
            keep=keep,
            progress=self.progress,
        )

    def _sweep_inputs(self, net: nn.Module, folder: Path) -> pd.DataFrame | None:
        """Rows of the grid with masks on what the layers take in, which is what the authors' code masks."""
        if not self.task.masks_inputs:
            return None
        grid = PlacementGrid(self.task.layers, self.size.input_rates, ("input",), (self.task.noise,))
        return self._sweep(net, grid, folder / "inputs", "none").rows

    def _choose(self, net: nn.Module, folder: Path) -> pd.DataFrame:
        """For each measure, the placement of the least AURC on the validation examples, judged on the test examples.

        Labels are the plain pass's, so that every candidate ranks the same errors; the masks of the report are fresh.
        """
        task, passes, device = self.task, self.size.passes, self.device
        grid = PlacementGrid(task.layers, self.size.rates, noise=(task.noise,))
        run = sweep(
            net, grid, task.validation, passes, label="plain", device=device, out=folder / "choice", keep="none",
            progress=self.progress,
        )  # fmt: skip
        best = run.rows.sort_values("aurc", kind="stable").groupby("measure", sort=False).head(1)
        plain = sample(net, "none", task.test[0], passes=1, device=device, progress=False)[0].to(device)
        right = plain.argmax(1) == task.test[1].to(device)
        entropy = measures.plain_entropy(plain)
        of_plain = pd.DataFrame({"uncertainty": entropy.cpu().numpy(), "correct": right.cpu().numpy()})
        rows = []
        for row in best.itertuples(index=False):
            table = uncertainty(
                net, row.placement, task.test, passes, measures=[row.measure], seed=_FRESH_SEED, label="plain",
                errors=False, device=device, progress=False,
            )  # fmt: skip
            of_row = of_plain.assign(uncertainty=table[row.measure].to_numpy())
            judged = judge((row.placement, row.measure, "plain_entropy"), of_row, of_plain, groups=task.test_groups)
            theirs = float(scores.aurc(entropy, right))
            rows.append(
                {"placement": row.placement, "measure": row.measure, "aurc": theirs + judged.difference,
                 "plain_aurc": theirs, "difference": judged.difference, "low": judged.low, "high": judged.high,
                 "errors": judged.errors}
            )  # fmt: skip
        return pd.DataFrame(rows)

    def _curves(self, net: nn.Module) -> pd.DataFrame:
        """Per-example values of the placements of table 3 (in this task's layers), of the first layer alone, and of one
        plain pass."""
        tables = []
        for placement in (*curve_placements(self.task), "none"):
            chosen = ["plain_entropy"] if placement == "none" else list(measures.DEFAULT)
            table = uncertainty(
                net, placement, self.task.test, self.size.passes, measures=chosen, groups=self.task.test_groups,
                errors=False, device=self.device, progress=False,
            )  # fmt: skip
            names = [name for name in chosen if name in table]
            long = table.melt(id_vars=["id", "correct"], value_vars=names, var_name="measure", value_name="uncertainty")
            tables.append(long.assign(placement=placement).rename(columns={"id": "example"}))
        return pd.concat(tables, ignore_index=True)[["placement", "measure", "example", "uncertainty", "correct"]]
