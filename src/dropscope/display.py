"""Tables as people see them: plain text that fits a terminal, and HTML that fits a light or a dark notebook.

Owns the layout, never the content: what is shown of a result is decided where the result is.
"""

from __future__ import annotations

import html
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

LINES = 10  # of a short representation
GAP = 2  # blanks between two columns
_HTML_ROWS = 40
_NARROWEST = 12  # columns of a name that is folded
_BREAKS = re.compile(r"(?<=[, /])|(?=[.@])")  # where a name may go on in the next line


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its head.
        cells: A text per row.
        right: Whether the texts are numbers, set to the right.
        breaks: How wide it stays where long texts may go on in the next line; 0 where they may not.
        rank: How soon the column is left out where a terminal is narrow: the highest first, 0 never.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    breaks: int = 0
    rank: int = 0

    @property
    def width(self) -> int:
        return max(map(len, [self.title, *self.cells]))


def layout(columns: Sequence[Column], width: int) -> tuple[list[str], list[str]]:
    """Columns side by side: at one line a row where they fit, else fewer columns and folded names.

    Returns:
        The lines, and the titles of the columns that were left out.
    """
    shown = _fitting(columns, width)
    widths = [column.width for column in shown]
    folding = [number for number, column in enumerate(shown) if column.breaks]
    for _ in range(sum(widths) + GAP * (len(shown) - 1) - width if folding else 0):
        widest = max(folding, key=widths.__getitem__)
        widths[widest] -= widths[widest] > _NARROWEST
    lines = []
    for row in [[column.title for column in shown], *zip(*(column.cells for column in shown), strict=True)]:
        cells = [
            fold(cell, wide, "  ") if c.breaks else [cell] for cell, c, wide in zip(row, shown, widths, strict=True)
        ]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            set_out = [
                part.rjust(wide) if column.right else part.ljust(wide)
                for part, column, wide in zip(parts, shown, widths, strict=True)
            ]
            lines.append((" " * GAP).join(set_out).rstrip())
    return lines, [column.title for column in columns if column not in shown]


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit, the most important ones first; a column that may be folded needs less than it has."""
    shown = list(columns)
    for column in sorted((c for c in columns if c.rank), key=lambda c: -c.rank):
        needed = sum(min(c.width, c.breaks) if c.breaks else c.width for c in shown) + GAP * (len(shown) - 1)
        if needed <= width:
            break
        shown.remove(column)
    return shown


@dataclass(frozen=True)
class Table:
    """Cells of text under titles, with a caption above and notes below.

    Attributes:
        titles: A head per column.
        rows: A cell per column each.
        caption: The line above.
        notes: The lines below.
        names: How many leading columns hold names; the others hold numbers.
        least: How wide names stay before columns are left out.
        ranks: How soon each column is left out in a terminal, as `Column` has it; none ever is where empty.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: Sequence[str] = ()
    names: int = 1
    least: int = _NARROWEST
    ranks: Sequence[int] = ()

    def text(self, width: int | None = None) -> str:
        """Lines of at most `width` columns (None: those of the terminal), as far as that can be.

        >>> print(Table(["site", "rate"], [["fc1", "0.5"], ["fc2,fc3,fc4,fc5", "0.2"]]).text(width=18))
        site          rate
        fc1            0.5
        fc2,fc3,fc4,   0.2
          fc5
        """
        room = shutil.get_terminal_size().columns if width is None else width
        lines, left_out = layout(self._columns(), room) if self.rows else ([], [])
        hidden = [f"not shown in {room} columns: {', '.join(left_out)}"] if left_out else []
        return "\n".join([*([self.caption] if self.caption else []), *lines, *hidden, *self.notes])

    def html(self) -> str:
        """A fragment without styles of its own for the page: colours are the notebook's, and every text is escaped.

        >>> print(Table(["site"], [["<b>"]]).html())
        <div><table style="border-collapse: collapse"><thead><tr><th style="text-align: left">site</th></tr></thead>\
<tbody><tr><td style="text-align: left">&lt;b&gt;</td></tr></tbody></table></div>
        """
        head = "".join(self._cell("th", number, title) for number, title in enumerate(self.titles))
        body = [
            "".join(self._cell("td", number, cell) for number, cell in enumerate(row)) for row in self.rows[:_HTML_ROWS]
        ]
        notes = list(self.notes)
        if len(self.rows) > _HTML_ROWS:
            notes.insert(0, f"… and {len(self.rows) - _HTML_ROWS} more")
        parts = [f"<div><strong>{html.escape(self.caption)}</strong></div>"] if self.caption else []
        if self.rows:
            rows = "".join(f"<tr>{row}</tr>" for row in body)
            table = f"<thead><tr>{head}</tr></thead>" * any(self.titles) + f"<tbody>{rows}</tbody>"
            parts.append(f'<table style="border-collapse: collapse">{table}</table>')
        parts += [f'<div style="opacity: 0.75">{html.escape(note)}</div>' for note in notes]
        return f"<div>{''.join(parts)}</div>"

    def short(self, whole: str) -> Table:
        """At most `LINES` lines of it; the last one says that `whole` has the rest."""
        room = LINES - 2 - bool(self.caption) - len(self.notes)
        if len(self.rows) <= room + 1:
            return self
        more = f"… and {len(self.rows) - room} more: {whole}"
        return replace(self, rows=self.rows[:room], notes=[more, *self.notes])

    def _columns(self) -> list[Column]:
        cells = zip(*self.rows, strict=True)
        ranks = self.ranks or [0] * len(self.titles)
        return [
            Column(title, column, number >= self.names, self.least if number < self.names else 0, rank)
            for number, (title, column, rank) in enumerate(zip(self.titles, cells, ranks, strict=True))
        ]

    def _cell(self, tag: str, number: int, text: str) -> str:
        side = "left" if number < self.names else "right; white-space: nowrap"
        return f'<{tag} style="text-align: {side}">{html.escape(text)}</{tag}>'


def fold(text: str, width: int, indent: str = "") -> list[str]:
    """A name in lines of at most `width`, broken after a comma or before a dot where that is enough.

    >>> fold("conv1=0.2,fc1=0.5", 12), fold("a" * 5, 3), fold("encoder.layer.0.dense", 10, "  ")
    (['conv1=0.2,', 'fc1=0.5'], ['aaa', 'aa'], ['encoder', '  .layer.0', '  .dense'])
    """
    lines, line = [], ""
    for piece in _BREAKS.split(text):
        if line.strip() and len(line) + len(piece) > width:
            lines.append(line)
            line = indent
        line += piece
        while len(line) > width:
            lines.append(line[:width])
            line = indent + line[width:]
    return [*lines, line] if line.strip() or not lines else lines


def cut(text: str, width: int = 60) -> str:
    """The beginning of a text that is too long.

    >>> cut("conv1=0.5", 7), cut("fc1=0.5", 7)
    ('conv1=…', 'fc1=0.5')
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts layer 3 before layer 11.

    >>> sorted(["layer11", "layer3"], key=natural)
    ['layer3', 'layer11']
    """
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def headed(head: str, text: str) -> list[str]:
    """A text beside its head, in lines of less than 80 columns.

    >>> headed("tries", "one two")
    ['tries    one two']
    """
    return textwrap.wrap(f"{head:<8} {text}", 79, subsequent_indent=" " * 9, break_on_hyphens=False)
