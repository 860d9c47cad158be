"""The content of a report: chapters, their sections, and what stands in those.

Owns the shapes and the JSON twin; texts are plain and escaped where they are rendered. See `sweeps`, `comparisons` and
`studies` for what fills them, `assembly` for the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal

Cell = str | float | int | None
Tone = Literal["better", "worse", "undecided", "failed", "told"]
FORMAT = 1


@dataclass(frozen=True)
class Grid:
    """A table of texts and numbers.

    Attributes:
        columns: Titles.
        rows: A cell per column each.
        caption: What it shows.
        notes: Lines below it.
        names: How many leading columns hold texts.
        groups: Titles over several columns, each with how many.
        plain: Rows of one plain pass, by number.
    """

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    notes: Sequence[str] = ()
    names: int = 1
    groups: Sequence[tuple[str, int]] = ()
    plain: Sequence[int] = ()


@dataclass(frozen=True)
class Line:
    """A line of a chart, in percent both ways."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    plain: bool = False


@dataclass(frozen=True)
class Curves:
    """Lines over one axis."""

    kind: ClassVar[str] = "curves"
    title: str
    x_label: str
    y_label: str
    x_word: str
    lines: Sequence[Line]
    x0: float = 0.0
    x1: float = 100.0
    y0: float = 0.0
    y1: float = 100.0


@dataclass(frozen=True)
class Interval:
    """A number with its interval; None where it has none."""

    name: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Intervals:
    """Numbers beside each other, with the value that they are compared with."""

    kind: ClassVar[str] = "intervals"
    title: str
    x_label: str
    rows: Sequence[Interval]
    x0: float
    x1: float
    zero: float = 0.0
    lower: bool = True

    @classmethod
    def of(cls, title: str, x_label: str, rows: Sequence[Interval], *, lower: bool = True) -> Intervals:
        """An axis that holds every interval, except where some reach five times as far as most."""
        ends = [abs(end) for row in rows for end in (row.value, row.low, row.high) if end is not None]
        usual = sorted(ends)[max(0, int(0.8 * len(ends)) - 1)] if ends else 1.0
        reach = [[min(max(end, -5 * usual), 5 * usual) for end in (row.value, row.low, row.high) if end is not None]
                 for row in rows]  # fmt: skip
        least, most = (pick([0.0, *(pick(ends) for ends in reach)]) for pick in (min, max))
        room = 0.06 * ((most - least) or 1.0)
        return cls(title, x_label, rows, least - room, most + room, lower=lower)


@dataclass(frozen=True)
class Node:
    """A place in a network."""

    name: str
    kind: str = ""
    shape: str = ""


@dataclass(frozen=True)
class Network:
    """A drawing of a network with numbers beside every place."""

    kind: ClassVar[str] = "network"
    title: str
    caption: str
    sites: Sequence[Node]
    columns: Sequence[str]
    values: Mapping[str, Sequence[Sequence[float | None]]]
    chosen: str
    choice: str = "Measure"
    row_title: str = "layer"
    lower: bool = True
    signed: bool = True
    digits: int = 3


@dataclass(frozen=True)
class Packed:
    """Bytes, deflated, in base64; the twin says how many there are."""

    data: str
    bytes: int


@dataclass(frozen=True)
class PackedColumn:
    """A column of numbers: two bytes each, from `low` to `high`."""

    name: str
    title: str
    direction: str
    form: str
    per: Literal["row", "placement"]
    low: float
    high: float
    packed: Packed


@dataclass(frozen=True)
class Explorer:
    """Every row of a sweep."""

    kind: ClassVar[str] = "explorer"
    title: str
    measures: Sequence[str]
    sites: Sequence[Node]
    levels: Sequence[str]
    placements: Packed
    rates: Packed
    columns: Sequence[PackedColumn]
    plain: Mapping[str, float]
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class Example:
    """An error: what it looks like, and the share of examples that are more uncertain."""

    name: str
    said: str
    detail: str
    rank: float
    image: str | None = None
    text: str | None = None
    small: bool = False


@dataclass(frozen=True)
class Pictures:
    """Errors as pictures or texts."""

    kind: ClassVar[str] = "pictures"
    title: str
    examples: Sequence[Example]
    ranks: Sequence[float]
    share: int = 10
    texts: bool = False


@dataclass(frozen=True)
class Layer:
    """A volume of bytes."""

    name: str
    packed: Packed


@dataclass(frozen=True)
class Volume:
    """A volume to look through, slice by slice."""

    kind: ClassVar[str] = "volume"
    title: str
    shape: Sequence[int]
    start: int
    layers: Sequence[Layer]
    overlays: Sequence[str]
    labelled: bool = True


@dataclass(frozen=True)
class Prose:
    """Paragraphs, lists and tables in the Markdown that summaries are written in."""

    kind: ClassVar[str] = "prose"
    text: str


@dataclass(frozen=True)
class Figure:
    """A picture that was drawn before."""

    kind: ClassVar[str] = "figure"
    title: str
    image: str


@dataclass(frozen=True)
class Command:
    """What repeats it."""

    kind: ClassVar[str] = "command"
    text: str


Item = Grid | Curves | Intervals | Network | Explorer | Pictures | Volume | Prose | Figure | Command


@dataclass(frozen=True)
class Section:
    """A part of a chapter."""

    title: str
    items: Sequence[Item]
    lead: str = ""
    closed: bool = False


@dataclass(frozen=True)
class Check:
    """What a gate of continuous integration may look at."""

    name: str
    ok: bool
    message: str = ""


@dataclass(frozen=True)
class Chapter:
    """A run, as a report tells it.

    Attributes:
        kind: What was run.
        title: Its name.
        tone: How the verdict is meant.
        pill: The verdict in two or three words.
        headline: The verdict in a few words.
        sentences: The verdict in two sentences.
        tiles: Numbers that everybody asks for.
        operating: What deferring would do.
        curves: Risk against coverage.
        assumptions: What the numbers rest on.
        sections: Everything else.
        numbers: What requirements may name.
        checks: What passed or failed.
    """

    kind: str
    title: str
    tone: Tone
    pill: str
    headline: str
    sentences: Sequence[str]
    tiles: Sequence[tuple[str, str]] = ()
    operating: Grid | None = None
    curves: Curves | None = None
    assumptions: Sequence[str] = ()
    sections: Sequence[Section] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    checks: Sequence[Check] = ()


def as_facts(value: Any, *, packed: bool = False) -> Any:
    """Values that JSON has; bytes and pictures only where they are `packed` in a page."""
    if isinstance(value, Packed) and not packed:
        return {"bytes": value.bytes}
    if is_dataclass(value) and not isinstance(value, type):
        said = {"kind": value.kind} if hasattr(value, "kind") else {}
        for each in fields(value):
            if each.name != "image" or packed:
                said[each.name] = as_facts(getattr(value, each.name), packed=packed)
        return said
    if isinstance(value, Mapping):
        return {str(name): as_facts(each, packed=packed) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_facts(each, packed=packed) for each in value]
    if isinstance(value, float):
        return round(value, 9) if math.isfinite(value) else None
    return value
