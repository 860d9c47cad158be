"""Pages of the site that live elsewhere in the repository, and links that lead to them.

A link in a page works on GitHub as it stands; here it is turned into the site's own. Files that are no pages (tests,
licence) are named in code marks, not linked.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples/index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
EXAMPLE = re.compile(r"examples/\w+\.py")  # a page of the gallery
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Any, config: Any) -> Any:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    home = {there: source for source, there in PAGES.items()}.get(here, f"docs/{here}")
    return LINK.sub(lambda link: link[1] + _within_site(link[2], posixpath.dirname(home), here) + link[3], markdown)


def _within_site(target: str, folder: str, page: str) -> str:
    """How the site's page names what `target` means in a file of that folder of the repository."""
    path = posixpath.normpath(posixpath.join(folder, target))
    if EXAMPLE.fullmatch(path):
        path = path.replace(".py", ".md")
    return posixpath.relpath(PAGES.get(path, path.removeprefix("docs/")), posixpath.dirname(page) or ".")
