"""Sources of a report: which chapter a run, a result or a folder gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dropscope.errors import BadInput, Phrase
from dropscope.report.page.content import Chapter
from dropscope.report.page.sweeps import sweep_chapter
from dropscope.runs import Run, open_run

_REMEDY = "pass a Run, or the folder of a sweep, a comparison, a trial, a predictor or a study"


def chapter_of(run: Any, data: Any = None) -> Chapter:
    """The chapter about a run.

    Raises:
        BadInput: For what is none.
    """
    if isinstance(run, Run):
        return sweep_chapter(run, "sweep" if run.folder is None else Path(run.folder).name)
    if isinstance(run, str | Path):
        return _of_folder(Path(run), data)
    raise BadInput("runs must be runs or their folders", "runs", Phrase(type(run).__name__), _REMEDY)


def _of_folder(folder: Path, data: Any) -> Chapter:
    if not folder.exists():
        raise BadInput("runs must be folders that exist", "runs", str(folder), _REMEDY)
    if (folder / "run.json").exists():
        return sweep_chapter(open_run(folder), folder.resolve().name)
    raise BadInput("runs must be folders that Dropscope wrote", "runs", str(folder), _REMEDY)
