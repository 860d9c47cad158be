"""Chapters about studies: the answer, verdicts on claims, figures, effects in the network, volumes to look through."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from dropscope.atomic import read_json
from dropscope.display import natural
from dropscope.errors import BadInput
from dropscope.report.page.content import (
    Cell,
    Chapter,
    Command,
    Figure,
    Grid,
    Item,
    Network,
    Node,
    Prose,
    Section,
    Tone,
)
from dropscope.report.page.markup import read_table
from dropscope.report.page.placements import explorer_of, network_of
from dropscope.report.page.volumes import volume_sections
from dropscope.report.records import RECORD
from dropscope.report.writing import COMMAND, SPEC
from dropscope.runs import open_run

_FIGURES = 850_000  # characters that figures may take
_WIDE = 900  # pixels of a figure
_EXPLORED = 25_000  # rows of a study's sweep
_VERDICTS = ("supported", "contradicted", "equivalent", "undecided")


def is_study(folder: Path) -> bool:
    """Whether a folder holds a finished study."""
    return (folder / "summary.md").exists() and (folder / SPEC).exists()


def study_chapter(folder: Path) -> Chapter:
    """A study, from its summary and the files beside it."""
    parts = _parts((folder / "summary.md").read_text(encoding="utf-8"))
    title, answer = parts.pop("")
    first = re.match(r"\*\*(.+?)\*\*", answer[0]) if answer else None
    headline = first[1] if first else title
    tone: Tone = "worse" if headline.startswith("Keep one") else "told"
    verdicts = _verdicts(parts.get("Verdicts", ""))
    counts = _counts(folder, verdicts)
    tiles = [(f"claims {name}", str(counts[name])) for name in _VERDICTS if counts] if sum(counts.values()) else []
    shown: list[Item] = [] if verdicts is None else [verdicts]
    sections = [
        *([Section("Verdicts", shown, "What the numbers here say about each claim of the paper.")] if shown else []),
        *_sensitivity(folder),
        *volume_sections(folder / "exhibits.safetensors"),
        *_sweeps(folder),
        *_figures(folder),
        *(Section(name, [Prose(text)], closed=len(text) > 3000)
          for name, text in parts.items() if name != "Verdicts" and text.strip()),
        _provenance(folder),
    ]  # fmt: skip
    numbers = {name: float(count) for name, count in counts.items()}
    pill = "plain pass" if tone == "worse" else "answer"
    sentences, rest = answer[:2], answer[2:]
    if first and answer[0][first.end() :].startswith(": "):
        said = answer[0][first.end() + 2 :]
        sentences[0] = said[:1].upper() + said[1:]
    return Chapter(_kind(folder), title, tone, pill, headline, sentences, tiles, None, None, rest, sections, numbers)


def _kind(folder: Path) -> str:
    return str(read_json(folder / SPEC).get("study", "study")).replace("-", " ")


def _parts(text: str) -> dict[str, Any]:
    """Heading → text below it; "" has the title and the numbered answers."""
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    title = re.search(r"^# (.*)$", head, re.MULTILINE)
    answer = re.findall(r"^\d+\. (.*)$", head, re.MULTILINE)
    if not answer:
        answer = [line for line in head.split("\n\n")[1:2] if line.strip()]
    found: dict[str, Any] = {"": (title[1] if title else "Study", answer)}
    for section in sections:
        name, _, body = section.partition("\n")
        found[name.strip()] = body
    return found


def _verdicts(text: str) -> Grid | None:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    if len(lines) < 3:
        return None
    found = read_table(lines)
    order = ["claim", "verdict", "here"]
    if list(found.columns) != ["verdict", "claim", "here"]:
        return found
    return Grid(order, [[row[1], row[0], row[2]] for row in found.rows], names=3)


def _counts(folder: Path, verdicts: Grid | None) -> dict[str, int]:
    said: list[Any] = []
    if (folder / RECORD).exists():
        said = [claim["verdict"] for claim in read_json(folder / RECORD)["claims"]]
    elif verdicts is not None:
        said = [row[1] for row in verdicts.rows]
    return {name: said.count(name) for name in _VERDICTS}


def _sensitivity(folder: Path) -> list[Section]:
    """Accuracy with noise in one place of a transformer, less that without any."""
    file = folder / "sensitivity.parquet"
    if not file.exists():
        return []
    table = pd.read_parquet(file)
    charts: list[Item] = []
    for model, rows in table.groupby("model", sort=False):
        places = rows[["layer", "component"]].drop_duplicates().sort_values(["layer", "component"]).to_numpy().tolist()
        groups = [str(name) for name in rows.group.unique()]
        found = (
            rows.assign(lost=rows.accuracy - rows.deterministic_accuracy)
            .set_index(["layer", "component", "group"])
            .lost
        )
        values = [[_cell(found.get((layer, part, group))) for group in groups] for layer, part in places]
        nodes = [Node(f"layer {layer} {part}", str(part)) for layer, part in places]
        name = Path(str(model)).name
        charts.append(Network(name, name, nodes, groups, {"accuracy": values}, "accuracy", lower=False))
    rate = float(table.rate.iloc[0])
    lead = f"Accuracy with noise at rate {rate:g} in one place alone, less that without any."
    return [Section("Where in the network", charts[:6], lead)]


def _cell(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _sweeps(folder: Path) -> list[Section]:
    """The rows of the first network's grid, where the study kept them."""
    for at in sorted((folder / "sweeps").glob("*/grid")):
        try:
            run = open_run(at)
        except BadInput:  # of an earlier version
            return []
        lead = f"{at.parent.name}: filter, sort and hover; + is one plain pass."
        return [*network_of(run), Section("Every placement", [explorer_of(run, _EXPLORED)], lead)]
    return []


def _figures(folder: Path) -> list[Section]:
    found: list[Item] = []
    left, spent = [], 0
    for file in sorted((folder / "figures").glob("*.png"), key=lambda file: natural(file.stem)):
        image = _as_uri(file)
        if spent + len(image) > _FIGURES:
            left.append(file.stem)
            continue
        spent += len(image)
        found.append(Figure(re.sub(r"[-_]+", " ", file.stem), image))
    lead = f"Left out for their size: {', '.join(left)}." if left else ""
    return [Section("Figures", found, lead)] if found else []


def _as_uri(file: Path) -> str:
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    if image.width > _WIDE:
        image = image.resize((_WIDE, round(image.height * _WIDE / image.width)), Image.Resampling.LANCZOS)
    into = io.BytesIO()
    image.quantize(48, dither=Image.Dither.NONE).save(into, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(into.getvalue()).decode('ascii')}"


def _provenance(folder: Path) -> Section:
    rows: list[list[Cell]] = [
        [name, value if isinstance(value, str) else json.dumps(value)]
        for name, value in read_json(folder / SPEC).items()
    ]
    items: list[Item] = []
    if (folder / COMMAND).exists():
        items.append(Command((folder / COMMAND).read_text(encoding="utf-8").strip()))
    return Section("Provenance", [*items, Grid(["what", "value"], [*rows, ["folder", str(folder)]], names=2)])
