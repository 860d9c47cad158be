"""Gates of continuous integration: what a run must reach, and JUnit that says whether it does."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

from dropscope.errors import BadInput, Phrase, nearest
from dropscope.report.page.content import Chapter, Check

_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*")


def required(chapter: Chapter, requirements: Sequence[str]) -> list[Check]:
    """What a chapter must reach, such as "accuracy>=0.9".

    Raises:
        BadInput: For a requirement that cannot be read, or a number that the chapter does not have.
    """
    found = []
    for text in requirements:
        name, sign, bound = read_requirement(text)
        if name not in chapter.numbers:
            what = f"require must name a number of {chapter.title}: {', '.join(chapter.numbers)}"
            raise BadInput(what, "require", name, nearest(name, chapter.numbers))
        value = chapter.numbers[name]
        found.append(Check(f"{name} {sign} {bound:g}", _COMPARED[sign](value, bound), f"{name} is {value:.6g}"))
    return found


def read_requirement(text: str) -> tuple[str, str, float]:
    """A name, a sign and a number.

    >>> read_requirement("accuracy >= .9")
    ('accuracy', '>=', 0.9)
    """
    parts = _FORM.fullmatch(text)
    try:
        if parts:
            return parts[1], parts[2], float(parts[3])
    except ValueError:
        pass
    raise BadInput("require must be a name, a sign and a number", "require", Phrase(repr(text)), "write accuracy>=0.9")


def junit(checks: dict[str, Sequence[Check]]) -> str:
    """A suite per chapter, a case per check.

    >>> print(junit({"run": [Check("audit", True)]}))
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="dropscope"><testsuite name="run" tests="1" failures="0"><testcase classname="run" name="audit" />\
</testsuite></testsuites>
    """
    root = ElementTree.Element("testsuites", name="dropscope")
    for name, listed in checks.items():
        failed = sum(not check.ok for check in listed)
        suite = ElementTree.SubElement(
            root, "testsuite", name=_printable(name), tests=str(len(listed)), failures=str(failed)
        )
        for check in listed:
            case = ElementTree.SubElement(suite, "testcase", classname=_printable(name), name=_printable(check.name))
            if not check.ok:
                ElementTree.SubElement(case, "failure", message=_printable(check.message))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}'


def _printable(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c if c.isprintable() else " " for c in text)
