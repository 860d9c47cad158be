"""Volumes at the command line: their options, and what a predictor of volumes learns, says and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dropscope.cli.console import print_facts, print_json, records, stdout
from dropscope.cli.model import load_model
from dropscope.cli.options import DataOptions
from dropscope.errors import BadInput, Phrase

if TYPE_CHECKING:
    import pandas as pd

    from dropscope.deploy import Evaluation, UncertaintyPredictor, VolumePredictor

_LISTED, _FIRST = 30, 3  # cases in the list, and those to look at first
_NAME = 26  # columns of a case's name
_GROUP_COLUMNS = ("group", "patient")

Images = Annotated[
    list[str] | None,
    typer.Option(
        "--image", help="A NIfTI file, a folder, or a.nii.gz,b.nii.gz for channels of one case; may be repeated."
    ),
]
VolumeTransforms = Annotated[
    str | None,
    typer.Option(help="Preprocessing of your own, file.py:callable: a function of the array, or MONAI transforms."),
]


@dataclass(frozen=True)
class ExampleOptions(DataOptions):
    __doc__ = DataOptions.__doc__

    data: str | None = None  # type: ignore[assignment]  # volumes are --image


@dataclass(frozen=True)
class VolumeOptions:
    """How volumes are cut into windows and what is written of them; arguments of `volumes.predict` by the same names.

    Attributes:
        roi: Window, such as 128x128x16; 128x128 for the slices of a 2-D network. Default: all at once.
        overlap: Share of a window that the next one covers again.
        measures: Maps. Default: predictive_entropy, averaged_variance, plain_entropy.
        scale: percentiles: the 5th of each channel becomes 0, the 95th 1 (default without --transforms); or none.
        masks: per_example: a draw for each window; per_pass: one for all windows of a pass.
        batch_size: Windows at once.
        overlays: Draw a picture of every case, and one of all.
        rank_by: What ranks cases: uncertainty, volume_variation, pairwise_dice, MAP_foreground_mean, MAP_worst_patch.
    """

    roi: str | None = None
    overlap: float = 0.25
    measures: Sequence[str] | None = None
    scale: Literal["percentiles", "none"] | None = None
    masks: Literal["per_example", "per_pass"] = "per_example"
    batch_size: int = 4
    overlays: bool = True
    rank_by: str = "uncertainty"

    def arguments(self) -> dict[str, Any]:
        given = asdict(self) | {"roi": _sides(self.roi)}
        return given if self.measures is not None else {name: given[name] for name in given if name != "measures"}


# --- predictors -------------------------------------------------------------------------------------------------------


def calibrate_cases(
    model: str, placement: str, images: Sequence[str], labels: str | None, out: str, given: dict[str, Any], *,
    groups: str | None, test: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Makes a predictor of volumes from scans and their label maps; `given` are more arguments of `fit`."""
    from dropscope import volumes
    from dropscope.deploy import VolumePredictor

    if labels is None:
        raise BadInput("labels must be given with images", "labels", None, "name the folder of their label maps")
    cases = volumes.find_cases(images)
    if test is not None:
        volumes.find_cases([test])
    members = None if groups is None else _groups(groups)
    given |= _loaded(given)
    loaded = load_model(model)
    if dry_run:
        plan = {"placement": placement, "passes": given["passes"], "cases": len(cases), "would_write": out}
        print_facts(plan, as_json)
        return
    fitted = VolumePredictor.fit(loaded.module, placement, images, labels, groups=members, **given)
    fitted.save(out)
    tested = None if test is None else fitted.evaluate([test], labels, groups=members)
    known = {"n": len(fitted.known.ids), "mean": float(fitted.known.right.mean())}
    facts = {"folder": out, "options": fitted.options.facts(), **known}
    print_fitted(fitted, tested, facts, f"dropscope predict {model} --image NEW --predictor {out} --out MAPS", as_json)


def print_fitted(
    fitted: UncertaintyPredictor | VolumePredictor,
    tested: Evaluation | None,
    facts: dict[str, Any],
    next_command: str,
    as_json: bool,
) -> None:
    """A predictor that was saved, how it does on a test set, and how to use it; ends with 1 where there is no rule."""
    rule = fitted.rule
    if as_json:
        judged = {"rule": rule and rule.facts(), "evaluation": tested and tested.facts()}
        print_json(facts | judged)
    else:
        shown = [
            str(fitted),
            *([] if tested is None else [str(tested)]),
            f"predictor in {facts['folder']}; {next_command}",
        ]
        stdout().print("\n\n".join(shown), soft_wrap=True)
    if rule is None or not rule.found:
        raise typer.Exit(1)


def predict_cases(
    model: str, images: Sequence[str], folder: str, out: str, *, labels: str | None, transforms: str | None,
    overlays: bool, overwrite: bool, device: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Maps of scans, and which of them a person should look at."""
    from dropscope import volumes

    cases = volumes.find_cases(images)
    predictor = opened(model, folder, transforms, device)
    if dry_run:
        print_facts({"placement": predictor.options.placement, "cases": len(cases), "would_write": out}, as_json)
        return
    table = predictor(images, out, labels=labels, overlays=overlays, overwrite=overwrite)
    print_cases(table, out, predictor.measure, as_json=as_json)


def check_cases(
    model: str, images: Sequence[str], folder: str, *, maps: str | None, groups: str | None, alpha: float,
    transforms: str | None, device: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Whether recent scans still look like the calibration."""
    from dropscope import volumes

    cases = volumes.find_cases(images)
    members = None if groups is None else _groups(groups)
    predictor = opened(model, folder, transforms, device)
    if dry_run:
        print_facts({"placement": predictor.options.placement, "cases": len(cases), "alpha": alpha}, as_json)
        return
    found = predictor.check(images, maps, alpha=alpha, groups=members)
    print_json(found.facts()) if as_json else stdout().print(str(found), soft_wrap=True)


def _loaded(given: dict[str, Any]) -> dict[str, Any]:
    """What is named on the command line, as Python takes it."""
    from dropscope.loading import as_class_names, load_transforms

    code = given["transforms"]
    return {"class_names": as_class_names(given["class_names"]),
            "transforms": None if code is None else load_transforms(code)}  # fmt: skip


def opened(model: str, folder: str, transforms: str | None, device: str | None) -> VolumePredictor:
    """The predictor of volumes in a folder."""
    from dropscope.deploy import VolumePredictor
    from dropscope.loading import load_transforms

    code = None if transforms is None else load_transforms(transforms)
    with named_predictor(folder):
        return VolumePredictor.load(folder, load_model(model).module, transforms=code, device=device)


@contextmanager
def named_predictor(folder: str) -> Iterator[None]:
    """Errors about a predictor's folder name the option that named it."""
    if not Path(folder).is_dir():
        raise BadInput("predictor must be a folder that exists", "predictor", folder, "dropscope calibrate writes one")
    try:
        yield
    except BadInput as error:
        if error.name != "folder":
            raise
        what, remedy = error.what.replace("folder", "predictor", 1), "pass a folder that dropscope calibrate wrote"
        raise BadInput(what, "predictor", error.received, remedy) from error


def _groups(file: str) -> dict[str, str]:
    """Case → its patient, from a table."""
    from dropscope.loading import read_table

    path = Path(file)
    table = read_table(path, "groups")
    column = next((name for name in _GROUP_COLUMNS if name in table.columns), None)
    if column is None or "case" not in table.columns:
        what, remedy = "groups must be a table with the columns case and group", "name its columns so"
        raise BadInput(what, "groups", Phrase(f"columns {', '.join(map(str, table.columns))}"), remedy)
    return dict(zip(table["case"].astype(str), table[column].astype(str), strict=True))


# --- what is printed --------------------------------------------------------------------------------------------------


def print_cases(table: pd.DataFrame, out: str, rank_by: str, *, as_json: bool) -> None:
    """The table of cases, for a person or a program."""
    rows = records(table)
    if as_json:
        print_json({"folder": out, "cases": rows, "remarks": list(table.attrs["remarks"])})
        return
    for line in _review(rows, out, rank_by):
        stdout().print(line, soft_wrap=True)


def _review(rows: list[dict[str, Any]], out: str, rank_by: str = "uncertainty") -> list[str]:
    """A short line per case, most uncertain first, and what to look at: where a rule says so, what is deferred."""
    from dropscope.volumes import format_volume

    width = min(_NAME, max(len(row["case"]) for row in rows))
    by = "mean entropy over the foreground" if rank_by == "uncertainty" else rank_by
    lines = [f"{len(rows)} case{'s'[: len(rows) > 1]}, most uncertain first ({by})"]
    for row in rows[:_LISTED]:
        name = row["case"] if len(row["case"]) <= width else f"{row['case'][: width - 9]}…{row['case'][-8:]}"
        lines.append(f"{row['rank']:>4}  {name:<{width}}  {_findings(row, rank_by, format_volume)}")
    if len(rows) > _LISTED:
        lines.append(f"      … {len(rows) - _LISTED} more in {out}/cases.csv")
    first = rows[:_FIRST]
    if "defer" in rows[0]:
        first = [row for row in rows if row["defer"]]
        lines.append(f"{len(first)} of {len(rows)} deferred: a person should look at them")
    if "overlay" in rows[0]:
        lines += ["look at these first:"] * bool(first)
        lines += [f"  {out}/{row['overlay']}" for row in first[:_LISTED]]
        lines.append(f"all at a glance: {out}/overview.png")
    return [*lines, f"table: {out}/cases.csv"]


def _findings(row: dict[str, Any], rank_by: str, format_volume: Callable[..., str]) -> str:
    unit = " nats" if rank_by == "uncertainty" else ""
    said = ["nothing found" if row[rank_by] is None else f"{row[rank_by]:.3f}{unit}"]
    said.append(format_volume(row["ml_low"], row["ml"], row["ml_high"]))
    if row.get("dice") is not None:
        said.append(f"Dice {row['dice']:.2f}")
    if row.get("defer"):
        said.append("defer")
    return "  ".join(said)


def _sides(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.lower().replace("×", "x").replace(",", "x").split("x"))
    except ValueError as error:
        what = "--roi must be the sides of a window, joined by x"
        raise BadInput(what, "--roi", text, "write --roi 128x128x16") from error
