"""Report of the study: tables, figures 1, 3, 4 and 5, and the summary, from rows and exhibits alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.errors import BadInput, Phrase
from dropscope.report import Summary, evidence, markdown, write_figure, write_summary, write_table
from dropscope.studies.segmentation_measures import figures, published, tables
from dropscope.studies.segmentation_measures.answers import TERMS, answer
from dropscope.studies.segmentation_measures.calibration import calibration_table, calibration_words
from dropscope.studies.segmentation_measures.claims import judge_claims
from dropscope.studies.segmentation_measures.evaluation import FOUR
from dropscope.studies.segmentation_measures.own_report import own_claims, own_words
from dropscope.studies.segmentation_measures.reliability import reliability_figure
from dropscope.studies.segmentation_measures.rows import mean_auprc
from dropscope.studies.segmentation_measures.showcase import Exhibits
from dropscope.studies.segmentation_measures.strata import strata_table, strata_words

TITLE = "Which uncertainty measure finds the wrong voxels (segmentation-measures)"
_TRAINED = "_without_failures"
_PAPER_TRAINING = f"{published.EPOCHS} epochs of batch 1"
_PAPER = {
    "networks": published.NETWORKS,
    "n_train": list(published.N_TRAIN),
    "rates": list(published.RATES),
    "passes": published.PASSES,
}


def write_report(
    folder: Path, rows: pd.DataFrame, exhibits: Exhibits, facts: dict[str, Any]
) -> tuple[Summary, dict[str, pd.DataFrame]]:
    """Writes tables, figures and `summary.md` into the folder; returns what it says first, and the tables."""
    if not (rows.errors > 0).any():
        what = "test cases must have misclassified voxels, by which measures are judged"
        remedy = "take harder cases or train on fewer; rows and networks are kept"
        raise BadInput(what, "data", Phrase("none"), remedy)
    classes = facts["classes"]
    costs = exhibits.about["costs"]
    made = {"experiments": tables.per_experiment(rows), "pairs": tables.pairs(rows), **_over(rows, costs)}
    if failed := tables.failures(rows):
        trained = rows[~rows.experiment.isin(failed)]
        if (trained.errors > 0).any():
            made |= {f"{name}{_TRAINED}": table for name, table in _over(trained, costs).items()}
    made = {name: table for name, table in made.items() if len(table)}
    captions = {
        "pairs": "Differences of mean AUC-PR over experiments × patients (two-way cluster t), p by Holm over six pairs",
        "experiments": "Every experiment: Dice per class, share of wrong voxels, mean AUC-PR of each measure",
        "measures": "Mean AUC-PR of each measure over experiments, and its paired difference to one plain pass (95 %)",
        "posteriors": "Probability that one measure beats another in an experiment, with 95 % intervals",
        "bootstrap": "Differences of mean AUC-PR over resampled patients, intervals at 1 − .05/6",
        "floors": "Kullback-Leibler at three floors of an empty bin",
        "cases": "The uncertainty of a whole case against 1 − mean foreground Dice, over experiments",
        "calibration": "P(error) of a voxel by a curve fitted on validation cases: ECE and Brier score on test cases, "
        "mean over experiments (5 to 95 %), Brier score against one plain pass over experiments × patients (95 %)",
        "strata": "Mean AUC-PR by distance to the border of the label; shares of voxels and errors below",
    }
    for name, table in made.items():
        words = captions[name.removesuffix(_TRAINED)]
        write_table(folder, name, table, f"{words}; without networks that failed" if name.endswith(_TRAINED) else words)
    best = _best(made["experiments"], exhibits, classes)
    claims = judge_claims(made["posteriors"], made["pairs"], exhibits.about.get("timings", {}))
    values = mean_auprc(rows)
    corner = {"test_patients": rows.patient.nunique(), "cases": rows.case.nunique(), "passes": facts["passes"]}
    useless = made["experiments"].set_index("experiment").error_share
    drawn = {
        "figure1_maps": (figures.maps_figure(exhibits, classes), 1),
        "figure3_dice": (figures.dice_figure(made["experiments"], classes), facts["networks"]),
        "figure4_auprc": (figures.auprc_figure(values, useless), facts["networks"]),
        "figure5_posteriors": (figures.posteriors_figure(values), facts["networks"]),
    }
    if "calibration" in made:
        drawn["reliability"] = reliability_figure(rows), facts["networks"]
    for name, (figure, networks) in drawn.items():
        write_figure(folder, name, figure, evidence(**corner, networks=networks))
    details = _paragraphs(facts, best, exhibits, made)
    if facts["own"]:
        claims, details = own_claims(claims, len(facts["own"])), [own_words(facts), *details[1:]]
    lines = answer(rows, made.get(f"measures{_TRAINED}", made["measures"]), made["experiments"], claims, facts)
    smaller = None if facts["own"] else _smaller(facts)
    return write_summary(folder, TITLE, lines, claims, details, smaller, terms=TERMS), made


def _over(rows: pd.DataFrame, costs: dict[str, float]) -> dict[str, pd.DataFrame]:
    """Tables that average over experiments."""
    return {
        "measures": tables.per_measure(rows, costs),
        "posteriors": tables.posteriors(rows),
        "bootstrap": tables.bootstrap(rows),
        "floors": tables.floors(rows),
        "cases": tables.per_case(rows),
        "calibration": calibration_table(rows),
        "strata": strata_table(rows),
    }


def _ranked(made: dict[str, pd.DataFrame]) -> str:
    """Mean AUC-PR of every measure, highest first; where networks failed, with and without them."""
    columns = {"all networks": made["measures"]}
    if (other := f"measures{_TRAINED}") in made:
        columns = {"without networks that failed": made[other], **columns}
    means = pd.DataFrame({words: table.set_index("measure")["mean AUC-PR ↑"] for words, table in columns.items()})
    return markdown(means.sort_values(means.columns[0], ascending=False).reset_index(names="mean AUC-PR ↑"))


def _best(experiments: pd.DataFrame, exhibits: Exhibits, classes: list[str]) -> dict[str, Any]:
    row = experiments[experiments.experiment == exhibits.about["experiment"]].iloc[0]
    dice = {name: float(row[f"dice_{i}"]) for i, name in enumerate(classes)}
    best = {"experiment": str(row.experiment), "dice": dice, "cases": int(row.images)}
    return best | {"foreground": float(row.dice_foreground)}


def _paragraphs(
    facts: dict[str, Any], best: dict[str, Any], exhibits: Exhibits, made: dict[str, pd.DataFrame]
) -> list[str]:
    experiments = made["experiments"]
    cells = int(experiments.images.sum())
    without = int(experiments.without_errors.sum())
    train, validation, test = facts["cases"]
    per = "during training and at inference" if facts["dropout"] == "training" else "at inference only"
    measured = exhibits.about
    share = sum(measured["costs"][name] for name in FOUR) / measured["costs"]["forward"]
    text = [
        f"{facts['networks']} networks on {facts['data']}: n_train {facts['n_train']} × rate {facts['rates']} × "
        f"{' and '.join(facts['noise'])} dropout {per}; {train}/{validation}/{test} cases for training, validation "
        f"and test; region {'×'.join(map(str, facts['roi']))}; {facts['passes']} passes; preset {facts['preset']}.",
        f"{_ranked(made)}\n\nMeans over experiments; {without} of {cells} segmented images have no error and no AUC-PR "
        "and are left out.",
        f"The best network by validation loss is {best['experiment']}: mean foreground Dice {best['foreground']:.3f} "
        f"on {best['cases']} test cases ({', '.join(f'{name} {value:.3f}' for name, value in best['dice'].items())}); "
        f"the paper's, on other images: {published.DICE}. The four measures by themselves took {share:.1%} of the time "
        f"of its {measured['passes']} passes over a case of {measured['voxels']:,} voxels ({measured['device']}).",
        "Experiments share test patients, so pairs of measures are decided over both at once; the Beta posteriors, "
        "which count each experiment as a trial of its own, are too sure and decide nothing. An AUC-PR "
        "is comparable within an experiment alone: its level follows the share of errors.",
    ]
    if len(failed := experiments.experiment[experiments.failed]):
        text.append(
            f"{len(failed)} of {len(experiments)} networks failed to train (mean foreground Dice below "
            f"{published.FAILED_DICE:g}): {', '.join(failed)}. The answer leaves them out, verdicts count "
            "them, and details give both."
        )
    text += calibration_words(made.get("calibration", pd.DataFrame()))
    text += strata_words(made.get("strata", pd.DataFrame()))
    return text + [f"Remark: {remark}." for remark in facts["remarks"]]


def _smaller(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{name.replace('_', ' ')}: {facts[name]} instead of {paper}"
        for name, paper in _PAPER.items()
        if facts[name] != paper
    ]
    training = f"{facts['training']} of batch {facts['batch']}"
    if training != _PAPER_TRAINING:
        each = facts["training_steps"] // max(1, facts["networks"])
        lines.append(f"training: {training} ({each:,} steps a network on average) instead of {_PAPER_TRAINING}")
    lines.append(
        "the paper's images are private: "
        + ("generated volumes" if "phantom" in facts["data"] else "public volumes")
        + " stand in"
    )
    return lines
