"""Tables as text that fits a terminal, and as HTML in which nothing of a user's is markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from dropscope.display import LINES, Table, cut, fold

NUMBERS = ("0.1234", "0.1000–0.2000")


class Cells(HTMLParser):
    """The tags and the texts of a fragment; complains where tags are not closed in order."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(fragment)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_line_fits_and_nothing_is_lost(width: int) -> None:
    names = ["conv1=0.1,conv2=0.2,conv3=0.3,fc1=0.4,fc2=0.5,fc3=0.25", "model.encoder.layer.11.attention.self"]
    text = Table(["placement", "measure", "a", "b"], [[*names, *NUMBERS]], names=2).text(width)
    assert max(map(len, text.splitlines())) <= width
    for name in names:
        assert set(name) <= set(text)
    assert all(number in text for number in NUMBERS)  # numbers are never folded


def test_folded_names_can_be_put_together_again() -> None:
    for name in ("a.b.c" * 9, "x" * 50, "conv2=0.3,layer.0.dense@weights=0.5", "fc1=0.5", "a,b", ""):
        for width in (6, 12, 40):
            assert "".join(fold(name, width)) == name
            indented = fold(name, width, "  ")
            assert "".join(line.strip() for line in indented) == name
            assert max(map(len, (*fold(name, width), *indented))) <= width


def test_a_narrow_terminal_leaves_columns_out_before_it_folds_names() -> None:
    row = ["encoder.layer.0.output.dense=0.5", "0.1234", "0.1000–0.2000", "30.0×"]
    table = Table(["placement", "score", "interval", "cost"], [row], least=32, ranks=(0, 0, 1, 2))
    assert table.text(80).splitlines()[1].split() == row
    narrow = table.text(55).splitlines()
    assert narrow[1].split() == row[:3]
    assert narrow[2].endswith(": cost")
    assert len(table.text(24).splitlines()) > 3


def test_a_short_table_has_few_lines_and_says_how_many_are_left() -> None:
    table = Table(["n"], [[str(n)] for n in range(300)], "many", ["a note"])
    lines = table.short("print it").text().splitlines()
    assert len(lines) <= LINES
    assert f"{300 - (len(lines) - 4)} more: print it" in lines[-2]
    few = Table(["n"], [["1"], ["2"]], "few")
    assert few.short("print it") == few


def test_text_of_a_user_is_never_markup() -> None:
    evil = "<script>alert(1)</script>&amp;\"'"
    fragment = Table([evil, "n"], [[evil, evil]], evil, [evil]).html()
    cells = Cells(fragment)
    assert "script" not in cells.tags
    assert "".join(cells.texts).count(evil) == 5
    assert "style>" not in fragment  # nothing for the rest of the page


def test_a_long_table_is_cut_in_html() -> None:
    cells = Cells(Table(["n"], [[str(n)] for n in range(300)]).html())
    assert cells.tags.count("tr") < 60
    assert any("more" in text for text in cells.texts)


def test_a_table_without_rows_has_its_caption_and_notes() -> None:
    table = Table(["site"], [], "no sites", ["a note"])
    assert table.text() == "no sites\na note"
    assert Cells(table.html()).texts == ["no sites", "a note"]


def test_a_cut_text_shows_that_it_is_cut() -> None:
    assert len(cut("x" * 500, 60)) == 60
    assert cut("x" * 500, 60)[-1] == "…"
