"""Files of a study: tables (CSV, Markdown, LaTeX), figures (PNG, PDF) and one summary that is read first.

Owns the formats; every file is written atomically. What is in them is up to the study.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dropscope.atomic import atomic_write, read_json, same_spec
from dropscope.report.claims import Claim, Verdict, claims_table
from dropscope.report.registrations import registration_words

SPEC = "study.json"  # what a folder's study is of


def write_text(path: Path, text: str) -> Path:
    """Writes a text file atomically."""
    return atomic_write(path, lambda part: part.write_text(text, encoding="utf-8"))


def claim_folder(folder: Path, spec: Mapping[str, Any], name: str = SPEC) -> None:
    """Makes a folder that of one study: its specification is written at the first start and must agree later.

    Raises:
        BadInput: Where the folder holds a study of another specification.
    """
    record = folder / name
    if not record.exists():
        write_text(record, json.dumps(dict(spec), indent=2) + "\n")
        return
    same_spec(read_json(record), spec, record, "choose another folder, or repeat the first command exactly")


def write_table(folder: Path, name: str, table: pd.DataFrame, caption: str, digits: int = 4) -> list[Path]:
    """`tables/NAME.csv` (full precision), `.md` and `.tex` (rounded)."""
    at = folder / "tables" / name
    return [
        atomic_write(at.with_suffix(".csv"), lambda part: table.to_csv(part, index=False)),
        write_text(at.with_suffix(".md"), f"{caption}\n\n{markdown(table, digits)}\n"),
        write_text(at.with_suffix(".tex"), latex(table, caption, name, digits)),
    ]


def new_figure(width: float = 6.4, height: float = 4.2) -> Figure:
    """A figure outside pyplot's global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(folder: Path, name: str, figure: Figure, corner: str) -> list[Path]:
    """`figures/NAME.png` and `.pdf`, with the evidence in the lower right corner: see `figures.evidence`."""
    at = folder / "figures" / name
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for legend in figure.legends:  # stays where the layout put it when the page grows
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
    # Below everything else, so that nothing lies on it; the page grows with it.
    figure.text(0.995, -0.01, corner, ha="right", va="top", fontsize=7.5, color="0.35")
    page: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.06}
    return [
        atomic_write(at.with_suffix(".png"), lambda part: figure.savefig(part, dpi=150, **page)),
        atomic_write(at.with_suffix(".pdf"), lambda part: figure.savefig(part, **page)),
    ]


def write_summary(
    folder: Path, title: str, paragraphs: Sequence[str], claims: Sequence[Claim], smaller: Sequence[str]
) -> Path:
    """`summary.md`: what was done, every claim with its verdict, and what is smaller than in the paper."""
    registered = registration_words(folder, claims)
    parts = [f"# {title}", *([registered] if registered else []), *paragraphs]
    if claims:
        write_table(folder, "claims", claims_table(claims), "Published claims and what was measured here")
        parts.append("## Claims")
        counts = Counter(claim.verdict for claim in claims)
        parts.append(", ".join(f"{verdict}: {counts[verdict]}" for verdict in get_args(Verdict)) + ".")
        parts += [_claim_words(claim) for claim in claims]
    parts.append("## Smaller than in the paper")
    parts.append("\n".join(f"- {line}" for line in smaller) if smaller else "Nothing.")
    return write_text(folder / "summary.md", "\n\n".join(parts) + "\n")


def _claim_words(claim: Claim) -> str:
    marked = " (arithmetic on published numbers)" if claim.arithmetic else ""
    lines = {"quoted": claim.quotation, "published": claim.published, "estimand": claim.estimand}
    lines |= {"margin": claim.margin, "here": claim.ours, "how": claim.how}
    listed = "\n".join(f"- {name}: {text}" for name, text in lines.items() if text)
    return f"**{claim.statement}** — {claim.verdict}{marked}\n\n{listed}"


def markdown(table: pd.DataFrame, digits: int = 4) -> str:
    """A Markdown table.

    >>> print(markdown(pd.DataFrame({"a": ["x|y"], "b": [0.12345]})))
    | a | b |
    |---|---|
    | x\\|y | 0.1235 |
    """
    rows = [[_cell(value, digits).replace("|", "\\|") for value in row] for row in table.itertuples(index=False)]
    head = [str(name).replace("|", "\\|") for name in table.columns]
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def latex(table: pd.DataFrame, caption: str, label: str, digits: int = 4) -> str:
    """A LaTeX table (booktabs)."""
    rows = [" & ".join(_escaped(_cell(value, digits)) for value in row) for row in table.itertuples(index=False)]
    head = " & ".join(_escaped(str(name)) for name in table.columns)
    columns = "".join("r" if pd.api.types.is_numeric_dtype(kind) else "l" for kind in table.dtypes)
    body = " \\\\\n".join(rows)
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{_escaped(caption)}}}\n\\label{{tab:{label}}}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body} \\\\\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )


def _cell(value: object, digits: int) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.{digits}f}" if abs(value) >= 10**-digits or value == 0 else f"{value:.1e}"


def _escaped(text: str) -> str:
    signs = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "→": r"$\to$"}
    signs |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(signs.get(letter, letter) for letter in text)
