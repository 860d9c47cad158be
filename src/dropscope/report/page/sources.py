"""Sources of a report: which chapter a run, a result or a folder gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import read_json
from dropscope.errors import BadInput, Phrase
from dropscope.report.page.cases import cases_chapter
from dropscope.report.page.comparisons import (
    choice_chapter,
    choice_from_folder,
    comparison_chapter,
    evaluation_chapter,
)
from dropscope.report.page.content import Chapter
from dropscope.report.page.pictures import picture_sections
from dropscope.report.page.studies import is_study, study_chapter
from dropscope.report.page.sweeps import sweep_chapter
from dropscope.runs import Choice, Run, open_run

_REMEDY = "pass a Run, or the folder of a sweep, a comparison, a trial, a predictor, volumes or a study"


def chapter_of(run: Any, data: Any = None, rows: int | None = None) -> Chapter:
    """The chapter about a run, with at most `rows` rows to explore.

    Raises:
        BadInput: For what is none.
    """
    if isinstance(run, Run):
        return _of_run(run, "sweep" if run.folder is None else Path(run.folder).name, data, rows)
    if isinstance(run, Choice):
        title = "trial" if run.folder is None else Path(run.folder).name
        return choice_chapter(run.facts(), run.examples, run.evidence, title, data)
    if isinstance(run, str | Path):
        return _of_folder(Path(run), data) if "://" not in str(run) else _of_run(open_run(run), str(run), data, rows)
    facts = run.facts() if hasattr(run, "facts") else {}
    if {"verdict", "differences"} <= {*facts}:  # what `compare` returns stands on a floor above
        return comparison_chapter(facts, run.examples, "comparison", data)
    if {"classes", "refuted"} <= {*facts}:
        return evaluation_chapter(json.loads(json.dumps(facts, default=float)), "evaluation")
    raise BadInput("runs must be runs or their folders", "runs", Phrase(type(run).__name__), _REMEDY)


def _of_run(run: Run, title: str, data: Any, rows: int | None) -> Chapter:
    rankings = list(run.rankings().values())
    helps = rankings and run.verdict is not None and run.verdict.word == "better"
    shown = rankings[0 if helps else -1] if rankings else None
    return sweep_chapter(run, title, [] if shown is None else picture_sections(shown, data), rows)


def _of_folder(folder: Path, data: Any) -> Chapter:
    name = folder.resolve().name
    if folder.suffix == ".json" and folder.is_file():
        return _of_file(folder)
    if not folder.is_dir():
        raise BadInput("runs must be folders that exist", "runs", str(folder), _REMEDY)
    if (folder / "run.json").exists():
        return _of_run(open_run(folder), name, data, None)
    if (folder / "comparison.json").exists():
        examples = pd.read_parquet(folder / "examples.parquet")
        return comparison_chapter(read_json(folder / "comparison.json"), examples, name, data)
    for evidence in ("candidates", "evidence"):  # of a trial, of a tuning
        if (folder / "choice.json").exists() and (folder / evidence).is_dir():
            return choice_from_folder(folder, open_run(folder / evidence), data)
    if (folder / "evaluation.json").exists():
        return _of_file(folder / "evaluation.json", name)
    if (folder / "cases.csv").exists():
        return cases_chapter(folder, data)
    if is_study(folder):
        return study_chapter(folder)
    raise BadInput("runs must be folders that Dropscope wrote", "runs", str(folder), _REMEDY)


def _of_file(file: Path, title: str | None = None) -> Chapter:
    """An evaluation, alone or as `dropscope calibrate --json` prints it."""
    facts = read_json(file)
    facts = facts.get("evaluation", facts) if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or not {"table", "classes", "refuted"} <= {*facts}:
        what = "runs must be folders, or the evaluation of a predictor in JSON"
        raise BadInput(what, "runs", str(file), "write dropscope calibrate … --test DATA --json > evaluation.json")
    return evaluation_chapter(facts, title or file.stem)
