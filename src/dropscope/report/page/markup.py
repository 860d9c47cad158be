"""HTML in which every text is escaped: elements, tables, and the Markdown that summaries are written in."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from dropscope.report.page.content import Cell, Grid

_VERDICTS = ("supported", "contradicted", "equivalent", "undecided", "ok", "failed")
_INLINE = re.compile(r"\*\*(.+?)\*\*|`([^`]+)`|(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])")
_DIFFERENCE = re.compile(r"[+−-]\d+\.\d+")
_LONG = 40  # characters from which on a text may break its line


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | bool | None) -> Markup:
    """An element; children and attributes that are no `Markup` are escaped.

    >>> element("p", "1 < 2", element("b", "x"), class_="a", data_item="3", hidden=False)
    '<p class="a" data-item="3">1 &lt; 2<b>x</b></p>'
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    said = "".join(f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
                   for name, value in named.items() if value is not None and value is not False)  # fmt: skip
    return Markup(f"<{tag}{said}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Texts and elements one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(str(child)) for child in children))


def rich(text: str) -> Markup:
    """Bold, code and emphasis of Markdown; everything else is text.

    >>> rich("**a** <b> `c*d`")
    '<strong>a</strong> &lt;b&gt; <code>c*d</code>'
    """
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        tag = ("strong", "code", "em")[next(n for n in range(3) if found[n + 1] is not None)]
        parts += [join(text[end : found.start()]), element(tag, found[1] or found[2] or found[3])]
        end = found.end()
    return join(*parts, join(text[end:]))


def table(grid: Grid, label: str = "") -> Markup:
    """A table that scrolls by itself where it is wide."""
    head = [element("tr", *(_head(title, number < grid.names) for number, title in enumerate(grid.columns)))]
    if grid.groups:
        over = (element("th", rich(title), colspan=str(span), scope="colgroup", class_="group" if title else None)
                if title else element("td", colspan=str(span)) for title, span in grid.groups)  # fmt: skip
        head.insert(0, element("tr", *over))
    rows = [_row(row, grid, plain=number in grid.plain) for number, row in enumerate(grid.rows)]
    caption = element("caption", rich(grid.caption)) if grid.caption else join()
    made = element("table", caption, element("thead", *head), element("tbody", *rows))
    name = label or grid.caption or ", ".join(grid.columns)
    box = element("div", made, class_="scroll", tabindex="0", role="region", aria_label=name[:90])
    return join(box, *(element("p", rich(note), class_="note") for note in grid.notes))


def _head(title: str, text: bool) -> Markup:  # noqa: FBT001
    return element("th", title, scope="col", class_="text" if text else None)


def _row(row: Sequence[Cell], grid: Grid, *, plain: bool) -> Markup:
    cells = []
    for number, value in enumerate(row):
        said = written(value)
        if number < grid.names:
            kind = "text long" if len(said) > _LONG else "text"
            shown = element("span", said, class_=f"verdict {said}") if said in _VERDICTS else rich(said)
            cells.append(element("th", shown, scope="row", class_="text") if number == 0 else
                         element("td", shown, class_=kind))  # fmt: skip
        else:
            cells.append(element("td", said))
    return element("tr", *cells, class_="plain" if plain else None)


def written(value: Cell) -> str:
    """A cell as people read it.

    >>> written(0.25), written(1200), written(None)
    ('0.2500', '1,200', '–')
    """
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}".replace("-", "−")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def prose(text: str) -> Markup:
    """Paragraphs, headings, lists and tables of Markdown.

    >>> prose("One.\\n\\n- a\\n- b")
    '<p>One.</p><ul><li>a</li><li>b</li></ul>'
    """
    return join(*(_block(block) for block in _blocks(text)))


def _blocks(text: str) -> Iterator[list[str]]:
    for block in re.split(r"\n\s*\n", text.strip()):
        if lines := [line.rstrip() for line in block.splitlines() if line.strip()]:
            yield lines


def _block(lines: list[str]) -> Markup:
    first = lines[0]
    if heading := re.match(r"(#+) (.*)", first):
        level = f"h{min(len(heading[1]) + 1, 4)}" if len(heading[1]) > 1 else "h3"
        return join(element(level, rich(heading[2])), *([_block(lines[1:])] if lines[1:] else []))
    if first.startswith("|") and len(lines) > 1:
        return table(read_table(lines))
    for mark, tag in ((r"\d+\. ", "ol"), (r"[-*] ", "ul")):
        if re.match(mark, first):
            items = re.split(rf"\n(?={mark})", "\n".join(lines))
            return element(tag, *(element("li", rich(re.sub(rf"^{mark}", "", item))) for item in items))
    return element("p", rich(" ".join(lines)))


def read_table(lines: Sequence[str]) -> Grid:
    """A table in Markdown; columns of numbers stand to the right.

    >>> read_table(["| a | b |", "|---|---|", "| x | 0.5 |"]).rows
    [['x', '0.5']]
    """
    rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]] for line in lines]
    head, body = rows[0], rows[2:]
    last = max((n + 1 for row in body for n, cell in enumerate(row) if re.search(r"[^\W\d_]", cell)), default=1)
    return Grid(head, body, names=max(1, last))
