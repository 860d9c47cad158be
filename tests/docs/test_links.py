"""Links between documents: every file and every heading that a page points to is there. Nothing is fetched."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *(page for folder in ("benchmarks", "examples", ".github") for page in ROOT.glob(f"{folder}/*.md")),
    }
)
FENCE = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1`*\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)


def links(text: str) -> list[str]:
    """What a page points to, code left out."""
    return LINK.findall(CODE.sub("", FENCE.sub("", text)))


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as GitHub and MkDocs both make them from plain English."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        repeated = sum(1 for known in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", known))
        found.add(f"{slug}-{repeated}" if repeated else slug)
    return found


def missing(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    broken = []
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(f"{link}: no such heading")
    return broken


def test_a_page_with_known_links(tmp_path):
    (tmp_path / "b.md").write_text(
        "# Two words\n\n## `code`, and more\n\n```\n# not a heading\n```\n", encoding="utf-8"
    )
    page = tmp_path / "a.md"
    page.write_text(
        "[good](b.md#two-words) [also](b.md#code-and-more) [web](https://example.org/x) `[code](no.md)`\n\n"
        "```\n[fenced](no.md)\n```\n\n[lost](c.md) [gone](b.md#not-a-heading) [here](#nowhere)\n",
        encoding="utf-8",
    )
    assert missing(page) == ["c.md: no such file", "b.md#not-a-heading: no such heading", "#nowhere: no such heading"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert not missing(page)
