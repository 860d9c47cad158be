"""Study S3, "Quantitative Comparison of Monte-Carlo Dropout Uncertainty Measures for Multi-class Segmentation"
(Camarasa et al., 2020): which measure, computed from T passes, best predicts the misclassified voxels of a 3-D U-Net?

Owns the order of a run: train and evaluate the grid that was planned, show the best network, judge, write. The claims
are in `judged.py`, the sizes in `presets.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
from torch import nn

from dropscope.errors import BadInput, nearest
from dropscope.report import Claim, claim_folder
from dropscope.studies.segmentation_measures import reports
from dropscope.studies.segmentation_measures.exhibits import EXHIBITS, exhibit, read_exhibits
from dropscope.studies.segmentation_measures.experiments import PREPARED, Experiment, Work, networks, run_all
from dropscope.studies.segmentation_measures.planning import Planned
from dropscope.studies.segmentation_measures.preparing import write_prepared
from dropscope.studies.training import load_weights


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came out: rows (experiment × case × measure), the published claims judged, and where the files are."""

    folder: Path
    rows: pd.DataFrame
    claims: tuple[Claim, ...]
    tables: dict[str, pd.DataFrame]


def run(planned: Planned, show: bool | None = None) -> Outcome:
    """Trains and evaluates what is missing in the folder, then writes tables, figures and the summary."""
    work, folder = planned.work, Path(planned.work.folder)
    _claim_folder(planned)
    path = folder / PREPARED
    if not path.exists():
        write_prepared(planned.prepared, path)
    rows = run_all(work, planned.units, planned.workers, show)
    shown = exhibit(work, planned.units, rows, planned.prepared)
    claims, tables = reports.report(folder, rows, shown, planned.facts())
    return Outcome(folder, rows, tuple(claims), tables)


def trained_network(folder: str | Path, experiment: str | None = None) -> tuple[nn.Module, str]:
    """A network of a finished study and the placement it was evaluated with; the exhibited one if none is named.

    In a file for the other commands: `def model(): return trained_network("segmentation-measures")[0]`.
    """
    root = Path(folder)
    try:
        about = json.loads((root / "study.json").read_text())
    except OSError as error:
        remedy = "name the --out of a segmentation-measures study"
        raise BadInput("a folder holds a study", "folder", str(root), remedy) from error
    names = sorted(path.stem for path in (root / "rows").glob("*.parquet"))
    name = experiment or (read_exhibits(root / EXHIBITS).about["experiment"] if (root / EXHIBITS).exists() else None)
    if name is None or name not in names:
        raise BadInput("an experiment of the study is named", "experiment", name, nearest(str(name), names))
    row = pd.read_parquet(root / "rows" / f"{name}.parquet", columns=["n_train", "rate", "noise"]).iloc[0]
    chosen = Experiment(int(row.n_train), float(row.rate), str(row.noise))
    (unit,) = networks([chosen], about["dropout"])
    work = Work.of_folder(root, about)
    net = load_weights(work.build(unit, about["channels"], about["classes"], about["dims"]), work.weights_file(unit))
    return net, work.text(chosen)


def _claim_folder(planned: Planned) -> None:
    """`study.json`: what a folder's networks have in common. The grid is not in it: a study may grow."""
    s = planned.settings
    about = {
        "study": "segmentation-measures", "data": planned.prepared.fingerprint(), "seed": planned.work.seed,
        "regime": asdict(s.regime), "features": list(s.features), "passes": s.passes,
        "model": planned.work.model, "placement": planned.work.placement, "dropout": planned.dropout,
        "channels": planned.prepared.channels, "classes": planned.prepared.classes, "dims": len(planned.prepared.roi),
        "split": [len(planned.divided.train), len(planned.divided.validation), len(planned.divided.test)],
    }  # fmt: skip
    claim_folder(Path(planned.work.folder), about)
