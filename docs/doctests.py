"""Doctests of the reference as code: a `>>>` block outside an Examples section is fenced before it is rendered."""

from __future__ import annotations

from typing import Any

import griffe


class FencedDoctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and not obj.is_alias:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with every paragraph that starts with `>>>` in a fence; indented ones belong to a section."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in paragraphs)
