"""Tables as people see them: plain text that fits a terminal, and HTML that fits a light or a dark notebook.

Owns the layout, never the content: what is shown of a result is decided where the result is.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

LINES = 10  # of a short representation
_HTML_ROWS = 40
_NARROWEST = 12  # columns of a name that is folded
_BREAKS = re.compile(r"(?<=[,._@ /])")  # a name may go on in the next line after one of these


@dataclass(frozen=True)
class Table:
    """Cells of text under titles; `names` counts the leading columns that hold names, the others hold numbers."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: Sequence[str] = ()
    names: int = 1

    def text(self, width: int | None = None) -> str:
        """Lines of at most `width` columns (None: those of the terminal), as far as folding names can do that.

        >>> print(Table(["site", "rate"], [["fc1", "0.5"], ["fc2,fc3,fc4,fc5", "0.2"]]).text(width=18))
        site          rate
        fc1            0.5
        fc2,fc3,fc4,   0.2
        fc5
        """
        widths = self._widths(shutil.get_terminal_size().columns if width is None else width)
        lines = [self.caption] if self.caption else []
        for row in (self.titles, *self.rows) if self.rows else ():
            folded = [fold(cell, wide) for cell, wide in zip(row, widths, strict=True)]
            for number in range(max(map(len, folded))):
                cells = [parts[number] if number < len(parts) else "" for parts in folded]
                lines.append("  ".join(self._aligned(cells, widths)).rstrip())
        return "\n".join([*lines, *self.notes])

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

    def _widths(self, room: int) -> list[int]:
        widths = [max(len(row[number]) for row in (self.titles, *self.rows)) for number in range(len(self.titles))]
        over = sum(widths) + 2 * (len(widths) - 1) - room
        for _ in range(over):
            widest = max(range(self.names), key=widths.__getitem__)
            widths[widest] -= widths[widest] > _NARROWEST
        return widths

    def _aligned(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        pairs = enumerate(zip(cells, widths, strict=True))
        return [cell.ljust(wide) if number < self.names else cell.rjust(wide) for number, (cell, wide) in pairs]

    def _cell(self, tag: str, number: int, text: str) -> str:
        side = "left" if number < self.names else "right; white-space: nowrap"
        return f'<{tag} style="text-align: {side}">{html.escape(text)}</{tag}>'


def fold(text: str, width: int) -> list[str]:
    """A name in lines of at most `width`, broken after a comma, dot or the like where that is possible.

    >>> fold("conv1=0.2,fc1=0.5", 12), fold("a" * 5, 3)
    (['conv1=0.2,', 'fc1=0.5'], ['aaa', 'aa'])
    """
    lines = [""]
    for piece in _BREAKS.split(text):
        if len(lines[-1]) + len(piece) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1]) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return lines


def cut(text: str, width: int = 60) -> str:
    """The beginning of a text that is too long.

    >>> cut("conv1=0.5", 7), cut("fc1=0.5", 7)
    ('conv1=…', 'fc1=0.5')
    """
    return text if len(text) <= width else text[: width - 1] + "…"
