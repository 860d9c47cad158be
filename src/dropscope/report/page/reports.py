"""Reports: `write_report` turns runs into one HTML file, with a JSON twin and JUnit."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dropscope import __version__
from dropscope.atomic import atomic_write
from dropscope.checks import check_new_file
from dropscope.errors import BadInput, Phrase
from dropscope.report.page.assembly import page_of
from dropscope.report.page.content import FORMAT, Chapter, as_facts
from dropscope.report.page.gates import junit, read_requirement, required
from dropscope.report.page.sources import chapter_of

_HEIGHT = 720  # pixels in a notebook


@dataclass(frozen=True, eq=False)
class Report:
    """A report: displayed in a notebook, it is the page in a frame of its own.

    Attributes:
        title: Of the page.
        chapters: What it tells, run by run.
        path: Where it was written; None where it was not.

    Examples:
        >>> import torch
        >>> from dropscope import sweep, write_report
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        >>> run = sweep(net, ["last=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> made = write_report(run, out=None)
        >>> made.facts()["chapters"][0]["kind"], made.ok, len(made.html()) < 2_000_000
        ('sweep', True, True)
    """

    title: str
    chapters: tuple[Chapter, ...]
    path: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for chapter in self.chapters for check in chapter.checks)

    def html(self) -> str:
        """The page.

        Returns:
            HTML without any reference to other files.
        """
        return page_of(self.chapters, self.title)

    def facts(self) -> dict[str, Any]:
        """The JSON twin: everything that the page says in words and tables. `report.schema.json` describes it.

        Returns:
            Values that JSON can hold; rows to explore and pictures are left to the page.
        """
        chapters = as_facts(self.chapters)
        return {"format": FORMAT, "dropscope": __version__, "title": self.title, "ok": self.ok, "chapters": chapters}

    def junit(self) -> str:
        """Every check as JUnit, which systems for continuous integration read.

        Returns:
            XML.
        """
        return junit({chapter.title: chapter.checks for chapter in self.chapters})

    def __repr__(self) -> str:
        return f"Report({self.title!r}, {len(self.chapters)} chapters, path={str(self.path) if self.path else None!r})"

    def _repr_html_(self) -> str:
        return framed(self.html())


def framed(page: str, height: int = _HEIGHT) -> str:
    """A page in a frame: neither its styles nor its scripts meet those of the notebook."""
    style = f"width:100%;height:{height}px;border:1px solid #8884;border-radius:8px"
    kept = 'sandbox="allow-scripts" title="Dropscope report"'
    return f'<iframe {kept} style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def write_report(
    *runs: Any,
    out: str | Path | None = "report.html",
    data: Any = None,
    title: str | None = None,
    require: Sequence[str] = (),
    rows: int | None = None,
) -> Report:
    """Writes one HTML file about one or several runs; it needs no network and is at most 2 MB.

    Args:
        runs: A `Run`, a `Choice`, a `Comparison` or an `Evaluation`, or the folder of a sweep, a comparison, a trial, a
            tuning, a predictor, predicted volumes or a study.
        out: The file; one that is there is replaced. None writes nothing.
        data: Where the examples come from, to show pictures of errors: an image folder, a folder of scans, or inputs
            in the order of the data. Texts are shown without it.
        title: Of the page; None takes the names of the folders.
        require: What must hold, such as "accuracy>=0.9" or "difference_high<0": a check of every run.
        rows: How many rows of a `Run` can be explored, those of the best placements; None takes all.

    Returns:
        A `Report`, which displays itself in a notebook.

    Raises:
        BadInput: For what is no run, or a requirement that cannot be read.

    Examples:
        >>> import tempfile, torch
        >>> from dropscope import sweep
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        >>> run = sweep(net, ["last=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = write_report(run, out=f"{folder}/report.html", require=["examples>=40"])
        ...     made.path.name, made.ok
        ('report.html', True)
    """
    if not runs:
        raise BadInput("runs must name at least one run", "runs", Phrase("none"), "pass a Run or the folder of one")
    for text in require:
        read_requirement(text)
    target = None if out is None else check_new_file(str(out), "out", (".html",), overwrite=True)
    chapters = []
    for run in runs:
        chapter = chapter_of(run, data, rows)
        chapters.append(replace(chapter, checks=[*chapter.checks, *required(chapter, require)]))
    named = title or " and ".join(dict.fromkeys(chapter.title for chapter in chapters))
    report = Report(named, tuple(chapters), target)
    if target is not None:
        page = report.html()
        atomic_write(target, lambda part: part.write_text(page, encoding="utf-8"))
    return report
