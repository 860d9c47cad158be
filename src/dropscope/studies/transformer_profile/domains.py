"""The two domains as their authors publish them: SQuAD's JSON (memory) and HellaSwag's JSON lines (reasoning).

Owns the official layouts and what an entry must hold; an error names the place in the file. Which entries become
items, and on which side of the split, is `items.py`'s.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dropscope.errors import BadInput

ENDINGS = 4


@dataclass(frozen=True)
class Question:
    """One question about a paragraph; `answers` are the texts that count as right, the first is the one shown."""

    id: str
    paragraph: str  # of one article and its place in it
    context: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Story:
    """A beginning and four endings, one of which is the real one; `id` is the line of the file."""

    id: str
    context: str
    endings: tuple[str, ...]
    gold: int


def read_squad(path: Path) -> tuple[list[Question], int]:
    """Every answerable question of a SQuAD file (v1.1, or v2's answerable ones), and how many have no answer.

    Layout: `data[].paragraphs[].{context, qas[].{id, question, answers[].text}}`.
    """
    layout = "pass SQuAD's official JSON (dev-v1.1.json or train-v1.1.json)"
    try:
        content = json.loads(_text(path, "--squad"))
    except json.JSONDecodeError as error:
        raise BadInput("a SQuAD file is JSON", path.name, str(error), layout) from error
    found, impossible = [], 0
    for a, article in enumerate(_list(content, "data", path.name, layout)):
        for p, paragraph in enumerate(_list(article, "paragraphs", f"{path.name}: data[{a}]", layout)):
            where = f"{path.name}: data[{a}].paragraphs[{p}]"
            context = _string(paragraph, "context", where, layout)
            for q, entry in enumerate(_list(paragraph, "qas", where, layout)):
                place = f"{where}.qas[{q}]"
                question = _string(entry, "question", place, layout)
                answers = _list(entry, "answers", place, layout)
                if not answers and entry.get("is_impossible"):
                    impossible += 1
                    continue
                texts = [_string(answer, "text", f"{place}.answers[{i}]", layout) for i, answer in enumerate(answers)]
                if not texts:
                    raise BadInput("a question has at least one answer", f"'answers' in {place}", answers, layout)
                name = _string(entry, "id", place, layout)
                found.append(Question(name, f"{a}-{p}", context, question, tuple(dict.fromkeys(texts))))
    if not found:
        raise BadInput("a SQuAD file holds questions", path.name, "none", layout)
    twice = next((name for name, count in Counter(question.id for question in found).items() if count > 1), None)
    if twice is not None:
        raise BadInput("questions have ids of their own", f"'id' of several questions in {path.name}", twice, layout)
    return found, impossible


def read_hellaswag(path: Path) -> list[Story]:
    """Every line of a HellaSwag file: `ctx` (or `ctx_a` and `ctx_b`), four `endings`, `label` 0 to 3."""
    layout = "pass HellaSwag's official JSON lines (hellaswag_val.jsonl or hellaswag_train.jsonl)"
    found = []
    for number, line in enumerate(_text(path, "--hellaswag").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadInput("a HellaSwag file holds one JSON object per line", where, str(error), layout) from error
        endings = _list(entry, "endings", where, layout)
        if len(endings) != ENDINGS or not all(isinstance(text, str) and text.strip() for text in endings):
            rule = f"a story has {ENDINGS} endings, all of them texts"
            raise BadInput(rule, f"'endings' in {where}", endings, f"give {ENDINGS} endings, or leave the line out")
        found.append(Story(str(number), _beginning(entry, where, layout), tuple(endings), _gold(entry, where)))
    if not found:
        raise BadInput("a HellaSwag file holds stories", path.name, "none", layout)
    return found


def _beginning(entry: dict[str, Any], where: str, layout: str) -> str:
    if "ctx" in entry or "ctx_a" not in entry:
        return _string(entry, "ctx", where, layout)
    return f"{_string(entry, 'ctx_a', where, layout)} {entry.get('ctx_b') or ''}".strip()


def _gold(entry: dict[str, Any], where: str) -> int:
    label = entry.get("label")
    text = str(label).strip() if isinstance(label, int | str) and not isinstance(label, bool) else ""
    if text not in map(str, range(ENDINGS)):
        remedy = "pass a file with labels (validation or training): the published test file has none"
        raise BadInput(f"a label is the number of the real ending, 0 to {ENDINGS - 1}", f"'label' in {where}", label,
                       remedy)  # fmt: skip
    return int(text)


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("a data file can be read as UTF-8 text", option, str(path), "check the path") from error


def _field(entry: Any, name: str, where: str, layout: str) -> Any:
    if not isinstance(entry, dict):
        raise BadInput(f"an entry with {name!r} is an object", where, type(entry).__name__, layout)
    if name not in entry:
        raise BadInput(f"an entry has the field {name!r}", f"fields of {where}", sorted(entry), layout)
    return entry[name]


def _list(entry: Any, name: str, where: str, layout: str) -> list[Any]:
    value = _field(entry, name, where, layout)
    if not isinstance(value, list):
        raise BadInput(f"{name!r} is a list", where, type(value).__name__, layout)
    return value


def _string(entry: Any, name: str, where: str, layout: str) -> str:
    value = _field(entry, name, where, layout)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name!r} is a text", where, value, layout)
    return " ".join(value.split())


def paragraphs(questions: list[Question]) -> Iterator[list[Question]]:
    """The questions of each paragraph, in the order of the file."""
    grouped: dict[str, list[Question]] = {}
    for question in questions:
        grouped.setdefault(question.paragraph, []).append(question)
    yield from grouped.values()
