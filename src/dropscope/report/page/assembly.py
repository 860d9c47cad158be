"""The page: chapters as one HTML file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from dropscope import __version__
from dropscope.report.page.content import Chapter, Command, Figure, Grid, Item, Network, Prose, Section, as_facts
from dropscope.report.page.markup import Markup, element, join, prose, rich, table

_SCRIPTS = ("charts.js", "explorer.js", "page.js")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page_of(chapters: Sequence[Chapter], title: str) -> str:
    """The file."""
    drawn: list[Any] = []
    body = [_chapter(chapter, number, drawn, first=number == 0) for number, chapter in enumerate(chapters)]
    if len(chapters) > 1:
        tabs = (_tab(chapter, number) for number, chapter in enumerate(chapters))
        body.insert(0, element("div", *tabs, role="tablist", aria_label="Runs"))
    script = "\n".join(_file(name) for name in _SCRIPTS)
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "version": __version__, "script-hash": f"sha256-{hashed}", "title": join(title), "style": _file("page.css"),
        "body": join(*body), "data": as_script(drawn), "script": script,
    }  # fmt: skip
    return re.sub(r"\{\{([\w-]+)\}\}", lambda found: parts[found[1]], _file("page.html"))


def as_script(value: Any) -> str:
    """JSON that cannot end the element it stands in.

    >>> as_script(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return re.sub("[<>&\u2028\u2029]", lambda found: _UNSAFE[found[0]], text)


@cache
def _file(name: str) -> str:
    return files("dropscope.report.page").joinpath("files", name).read_text(encoding="utf-8")


def _tab(chapter: Chapter, number: int) -> Markup:
    return element(
        "button", chapter.title, type="button", role="tab", id=f"tab-{number}", aria_controls=f"chapter-{number}",
        aria_selected="true" if number == 0 else "false", tabindex="0" if number == 0 else "-1",
    )  # fmt: skip


def _chapter(chapter: Chapter, number: int, drawn: list[Any], *, first: bool) -> Markup:
    sentences = (element("p", rich(text), class_="lead") for text in chapter.sentences if text)
    tiles = [element("div", element("dt", name), element("dd", value)) for name, value in chapter.tiles]
    kind = element("span", " · ".join(dict.fromkeys((chapter.kind, chapter.title))), class_="kind")
    hero = element(
        "div", element("span", chapter.pill, class_="pill"), kind, element("h1", chapter.headline), *sentences,
        *([element("dl", *tiles, class_="tiles")] if tiles else []), class_=f"hero {chapter.tone}",
    )  # fmt: skip
    cards = []
    if chapter.operating is not None:
        cards.append(_card("What deferring would do", [chapter.operating], drawn, chapter.assumptions))
    if chapter.curves is not None:
        cards.append(_card("Risk against coverage", [chapter.curves], drawn))
    if chapter.operating is None and chapter.assumptions:
        cards.append(_card("What this rests on", [], drawn, chapter.assumptions))
    two = element("div", *cards, class_="two") if cards else join()
    sections = (_section(section, drawn) for section in chapter.sections)
    return element(
        "article", hero, two, *sections, class_="chapter", id=f"chapter-{number}",
        role=None if first and number == 0 else "tabpanel", hidden=not first,
    )  # fmt: skip


def _card(title: str, items: Sequence[Item], drawn: list[Any], notes: Sequence[str] = ()) -> Markup:
    said = [element("ul", *(element("li", rich(note)) for note in notes), class_="note")] if notes else []
    return element("div", element("h2", title), *(_item(item, drawn) for item in items), *said, class_="card")


def _section(section: Section, drawn: list[Any]) -> Markup:
    lead = [element("p", rich(section.lead))] if section.lead else []
    several = sum(isinstance(item, Network) for item in section.items) > 1
    figures = [item for item in section.items if isinstance(item, Figure) or (several and isinstance(item, Network))]
    others = (_item(item, drawn) for item in section.items if item not in figures)
    shown = [element("div", *(_item(item, drawn) for item in figures), class_="gallery")] if figures else []
    if section.closed:
        head = element("summary", element("h2", section.title))
        return element("section", element("details", head, *lead, *others, *shown), class_="part")
    return element("section", element("h2", section.title), *lead, *others, *shown, class_="part")


def _item(item: Item, drawn: list[Any]) -> Markup:
    if isinstance(item, Grid):
        return table(item)
    if isinstance(item, Prose):
        return prose(item.text)
    if isinstance(item, Figure):
        image = element("img", src=item.image, alt=item.title)
        return element("figure", image, element("figcaption", item.title))
    if isinstance(item, Command):
        copy = element("button", "copy", type="button", class_="more", data_copy=True)
        return element("div", element("pre", element("code", item.text), tabindex="0"), copy, class_="copy")
    drawn.append(as_facts(item, packed=True))
    tag = "figure" if item.kind in ("curves", "intervals", "network") else "div"
    return element(tag, data_item=str(len(drawn) - 1), class_=item.kind)
