"""The command that compares: placements of dropout beside everything else that one trained network offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dropscope.atomic import output_folder
from dropscope.checks import check_passes
from dropscope.cli.app import app
from dropscope.cli.console import print_json, stdout
from dropscope.cli.model import load_model, with_noises
from dropscope.cli.options import AsJson, DataOptions, DryRun, ModelName, PassOptions, takes_records
from dropscope.cli.placements import PlacementOptions

_NONE = "none"


@dataclass(frozen=True)
class RivalOptions:
    """Who is compared, and with what.

    Attributes:
        rivals: Rivals, comma-separated, or none. Default: every one that the model allows.
        placements: Placements divided by ';', a file with one a line, or none. Default: own, last=0.1 and a few more.
        probabilities: Files of stored probabilities, comma-separated: .npz, .npy, .safetensors or .parquet, of members
            by examples by classes.
        checkpoints: Files of weights for the same network, comma-separated: an ensemble, or snapshots.
        fit: Data to fit on, named as the data. Default: one half of the data.
        shifted: Data of another kind, named as the data: every score again on them.
        passes: Passes per placement.
        measure: What ranks where there are several forwards: best (chosen on the data to fit on), or a measure.
        label: What predicts: each rival's own probabilities (mean), or one plain pass for all (plain).
        against: The row that the others are compared with.
        out: Folder for tables and figures.
    """

    rivals: Sequence[str] | None = None
    placements: str | None = None
    probabilities: Sequence[str] | None = None
    checkpoints: Sequence[str] | None = None
    fit: str | None = None
    shifted: str | None = None
    passes: int = 100
    measure: str = "best"
    label: Literal["mean", "plain"] = "mean"
    against: str = "max_probability"
    out: str = "dropscope-compare"

    @property
    def dropout(self) -> PlacementOptions:
        """The placements as other commands have them."""
        return PlacementOptions(placements=self.placements)

    def chosen(self, model: str) -> dict[str, Any]:
        """Name → what `compare` takes as a rival; a mistake in a placement is reported before torch is imported."""
        found: dict[str, Any] = {}
        if self.rivals is None:
            found["rivals"] = "rivals"
        elif list(self.rivals) != [_NONE]:
            found |= {name: name for name in self.rivals}
        if self.placements is None:
            found["placements"] = "placements"
        elif self.placements != _NONE:
            found |= {str(one): one for one in with_noises(model, self.dropout.chosen)}
        found |= {Path(file).stem: Path(file) for file in self.probabilities or ()}
        if self.checkpoints is not None:
            found[f"ensemble of {len(self.checkpoints)}"] = list(self.checkpoints)
        return found


@app.command("compare")
@takes_records()
def run_compare(
    model: ModelName,
    source: DataOptions,
    field: RivalOptions,
    how: PassOptions,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compare placements of dropout with what else one network offers: one-pass scores, Laplace, augmentation …"""
    check_passes(field.passes)
    output_folder(field.out)
    chosen = field.chosen(model)
    from dropscope.deploy.rivals import compare, plan_comparison

    opened = source.open()
    named = {"fit": field.fit, "shifted": field.shifted}
    others = {name: replace(source, data=data).open() for name, data in named.items() if data is not None}
    loaded = load_model(model)
    data = opened(loaded)
    options: dict[str, Any] = {
        **asdict(how), "rivals": chosen, "passes": field.passes, "label": field.label, "measure": field.measure,
        "against": field.against, **{name: load(loaded) for name, load in others.items()},
    }  # fmt: skip
    with field.dropout.explained():
        if dry_run:
            plan = plan_comparison(loaded.module, data, **options)
            print_json(asdict(plan)) if as_json else stdout().print(str(plan), soft_wrap=True)
            return
        result = compare(loaded.module, data, out=field.out, **options)
    if as_json:
        print_json({**result.facts(), "folder": field.out})
        return
    out = field.out
    stdout().print(result.text(stdout().width), soft_wrap=True)
    stdout().print(f"\nfigures  {out}/figures/comparison.png, differences.png (and .pdf)", soft_wrap=True)
    stdout().print(f"tables   {out}/table.csv, .md, .tex, differences.csv, examples.parquet", soft_wrap=True)
    stdout().print(f"{result.seconds:.0f} s in all", soft_wrap=True)
