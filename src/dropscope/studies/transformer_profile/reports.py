"""From the tables of an evaluation to everything a reader gets: tables, figures, claims, and the words of the summary.

Owns which files there are. The numbers are `findings`', the words `paragraphs`'.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pandas as pd

from dropscope.report import Claim, write_figure, write_table
from dropscope.studies.transformer_profile import figures, paragraphs, tables
from dropscope.studies.transformer_profile.comparisons import WITHIN_METHODS
from dropscope.studies.transformer_profile.findings import Findings, find
from dropscope.studies.transformer_profile.judged import judge
from dropscope.studies.transformer_profile.recommend import RULE, recommendations_table
from dropscope.studies.transformer_profile.results import COLUMNS, OVERALL, Evaluated, read


def write_reports(out: Path) -> list[Claim]:
    """Writes `tables/` and `figures/` of the study in `out` from its parquet tables; returns the judged claims."""
    f = findings(out)
    if f is None:
        return []
    for name, (table, caption) in _tables(f).items():
        if len(table):
            write_table(out, name, _named(f.e, table), caption)
    numbered = [OVERALL, *reversed(f.e.groups)]  # as in the paper: overall, reasoning, memory
    for number, group in enumerate(numbered, start=1):
        write_figure(out, f"figure_{number}_{_plain(group)}", figures.bars(f.e, f.levels, group))
    if f.e.sensitivity is not None:
        for model in dict.fromkeys(f.e.sensitivity.model):
            if model in f.e.shown:
                name = f"sensitivity_{_plain(f.e.shown[model])}"
                write_figure(out, name, figures.sensitivity_map(f.e, model))
    return judge(f)


def summary_paragraphs(out: Path) -> list[str]:
    """What the summary says beside the claims: skipped models, audits, accuracies, flags, tests, recommendations."""
    skipped = paragraphs.skipped(read(out))
    f = findings(out)
    return [*skipped, "No model was evaluated."] if f is None else [*skipped, *paragraphs.about(f)]


def findings(out: Path) -> Findings | None:
    """Computed once for the tables as they are; None where no model was evaluated."""
    stamps = tuple(
        (out / f"{name}.parquet").stat().st_mtime_ns for name in COLUMNS if (out / f"{name}.parquet").exists()
    )
    return _findings(out.resolve(), stamps)


@lru_cache(maxsize=1)
def _findings(out: Path, stamps: tuple[int, ...]) -> Findings | None:
    e = read(out)
    return find(e) if e.names else None


def _tables(f: Findings) -> dict[str, tuple[pd.DataFrame, str]]:
    mc = f.e.mc
    return {
        "table_4": (
            tables.table_4(f.e, f.levels),
            f"Accuracy at {mc}: mean and std over passes, 95 % interval over contexts, and the published numbers",
        ),
        "table_5": (
            tables.table_5(f.e, f.levels, f.within),
            f"Deterministic against MC dropout at {mc}, the largest drop first; p_t: {WITHIN_METHODS['p_t']}; "
            f"p_bootstrap: {WITHIN_METHODS['p_bootstrap']}; beyond: both are",
        ),
        "table_6": (
            tables.table_6(f.e, f.levels),
            "Mean accuracy over models by configuration, with t intervals over models",
        ),
        "accuracy": (f.levels, "Accuracy of every evaluation; averaged: of the mean probabilities over passes"),
        "tests_within_models": (
            f.within,
            f"MC correctness frequency minus deterministic correctness; p_t: {WITHIN_METHODS['p_t']}; "
            f"p_bootstrap: {WITHIN_METHODS['p_bootstrap']}; Holm over all rows; d_over_passes and d_over_items: "
            "Cohen's d over passes, and of paired differences over items",
        ),
        "attention_or_ffn": (
            f.attention_or_ffn, "Accuracy at high attention minus that at high FFN, paired over items",
        ),
        "stability": (f.stability, f"Models from the steadiest: std over passes of overall accuracy at {mc}"),
        "stability_quartiles": (
            f.quartiles, "Steadiest against least steady quarter of the models, on accuracy; three tests at .05/3",
        ),
        "encoders_decoders": (f.kinds, f"Encoders and decoders at {mc}, t intervals over models"),
        "drops": (f.drops, "Loss of accuracy under high dropout in the paper's three readings, over models"),
        "family_or_size": (f.family_or_size, "Left-out models' std predicted from their family and from their size"),
        "consistency": (f.consistency, "Overall std against the least that the stds of its groups allow"),
        "calibration": (f.calibration, "Calibration by group with 95 % intervals over contexts"),
        "calibration_differences": (
            f.differences, "Scores of MC dropout minus those of one deterministic pass, paired",
        ),
        "recommendations": (recommendations_table(f.recommendations), RULE),
    }  # fmt: skip


def _named(e: Evaluated, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(model=[e.shown.get(str(m), m) for m in table.model]) if "model" in table else table


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in name)
