"""Runs for reports: a small network with many errors, and names that would be dangerous in HTML."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from dropscope import PlacementGrid, sweep
from dropscope.runs import Run

SCHEMA = json.loads(files("dropscope.report.page").joinpath("files", "report.schema.json").read_text("utf-8"))
NASTY = "<script>document.title='broken'</script>"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


def examples(n: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs with labels, a fifth of which are wrong: enough errors for a verdict."""
    torch.manual_seed(1)
    x = torch.randn(n, 6)
    labels = network()(x).argmax(1)
    return x, torch.where(torch.rand(n) < 0.2, (labels + 1) % 3, labels)


@cache
def small_run(**options: Any) -> Run:
    return sweep(network(), ["0=0.2", "2=0.5", "0=0.2,2=0.5"], examples(), passes=5, progress=False, **options)


def stored_run(folder: Path) -> Path:
    """The folder of a run whose examples have dangerous names."""
    x, labels = examples()
    ids = [f"{NASTY}{number}" for number in range(len(x))]
    sweep(network(), ["0=0.2", "2=0.5"], (x, labels), passes=5, ids=ids, out=folder, progress=False)
    return folder


def large_run(sites: int = 4) -> Run:
    """A run with the rows of every placement of a grid; only their texts and counts are real."""
    small = small_run()
    texts = [str(placement) for placement in PlacementGrid([f"layer{n}" for n in range(sites)])]
    draw = np.random.default_rng(0)
    measures = list(small.rows.measure.unique())
    rows = pd.DataFrame({"placement": np.repeat(texts, len(measures)), "measure": measures * len(texts)})
    for name in ("accuracy", "aurc", "augrc", "error_auroc", "error_auprc", "isotonic_penalty", "cost"):
        rows[name] = draw.random(len(rows))
    rows["aurc_minus_single_pass"] = rows.aurc - 0.5
    rows["equivalent_to"] = None
    return Run(rows, small.baseline, small.intervals, small.examples, small.spec, "shared", origin=small.origin)
