"""The two domains as their authors publish them: SQuAD's JSON (memory) and HellaSwag's JSON lines (reasoning).

Owns the official layouts and what an entry must hold; an error names the place in the file. See `items` for which
entries become items, and on which side of the split.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dropscope.errors import BadInput, Phrase, first_line
from dropscope.loading import read_json_lines, read_text

ENDINGS = 4
_SQUAD = "pass SQuAD's official JSON (dev-v1.1.json or train-v1.1.json)"
_HELLASWAG = "pass HellaSwag's official JSON lines (hellaswag_val.jsonl or hellaswag_train.jsonl)"


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
    text = read_text(path, "squad")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of thousands of digits
        raise BadInput(f"{path.name} must be JSON", "squad", Phrase(first_line(error)), _SQUAD) from error
    questions, impossible = [], 0
    for a, article in enumerate(_list(content, "data", path.name, _SQUAD)):
        for p, paragraph in enumerate(_list(article, "paragraphs", f"{path.name}: data[{a}]", _SQUAD)):
            where = f"{path.name}: data[{a}].paragraphs[{p}]"
            context = _string(paragraph, "context", where, _SQUAD)
            for q, entry in enumerate(_list(paragraph, "qas", where, _SQUAD)):
                place = f"{where}.qas[{q}]"
                question = _string(entry, "question", place, _SQUAD)
                answers = _list(entry, "answers", place, _SQUAD)
                if not answers and entry.get("is_impossible"):
                    impossible += 1
                    continue
                texts = [_string(answer, "text", f"{place}.answers[{i}]", _SQUAD) for i, answer in enumerate(answers)]
                if not texts:
                    raise BadInput(f"'answers' of {place} must hold at least one answer", place, answers, _SQUAD)
                name = _string(entry, "id", place, _SQUAD)
                questions.append(Question(name, f"{a}-{p}", context, question, tuple(dict.fromkeys(texts))))
    if not questions:
        raise BadInput(f"{path.name} must hold questions", "squad", Phrase("none"), _SQUAD)
    twice = next((name for name, count in Counter(question.id for question in questions).items() if count > 1), None)
    if twice is not None:
        raise BadInput(f"'id' of every question in {path.name} must be its own", "squad", twice, _SQUAD)
    return questions, impossible


def read_hellaswag(path: Path) -> list[Story]:
    """Every line of a HellaSwag file: `ctx` (or `ctx_a` and `ctx_b`), four `endings`, `label` 0 to 3."""
    stories = []
    for number, entry in read_json_lines(path, "hellaswag"):
        where = f"{path.name}, line {number}"
        endings = _list(entry, "endings", where, _HELLASWAG)
        if len(endings) != ENDINGS or not all(isinstance(text, str) and text.strip() for text in endings):
            what = f"'endings' of {where} must be {ENDINGS} texts"
            raise BadInput(what, where, endings, f"write {ENDINGS} endings, or leave the line out")
        stories.append(Story(str(number), _beginning(entry, where), tuple(endings), _gold(entry, where)))
    if not stories:
        raise BadInput(f"{path.name} must hold stories", "hellaswag", Phrase("none"), _HELLASWAG)
    return stories


def _beginning(entry: dict[str, Any], where: str) -> str:
    if "ctx" in entry or "ctx_a" not in entry:
        return _string(entry, "ctx", where, _HELLASWAG)
    return f"{_string(entry, 'ctx_a', where, _HELLASWAG)} {entry.get('ctx_b') or ''}".strip()


def _gold(entry: dict[str, Any], where: str) -> int:
    label = entry.get("label")
    text = str(label).strip() if isinstance(label, int | str) and not isinstance(label, bool) else ""
    if text not in map(str, range(ENDINGS)):
        what = f"'label' of {where} must be the number of the real ending, 0 to {ENDINGS - 1}"
        remedy = "pass a file with labels (validation or training): the published test file has none"
        raise BadInput(what, where, label, remedy)
    return int(text)


def _field(entry: Any, name: str, where: str, layout: str) -> Any:
    if not isinstance(entry, dict):
        raise BadInput(f"{where} must be an object with {name!r}", where, Phrase(type(entry).__name__), layout)
    if name not in entry:
        raise BadInput(f"{where} must have the field {name!r}", where, sorted(entry), layout)
    return entry[name]


def _list(entry: Any, name: str, where: str, layout: str) -> list[Any]:
    value = _field(entry, name, where, layout)
    if not isinstance(value, list):
        raise BadInput(f"{name!r} of {where} must be a list", where, Phrase(type(value).__name__), layout)
    return value


def _string(entry: Any, name: str, where: str, layout: str) -> str:
    value = _field(entry, name, where, layout)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name!r} of {where} must be a text", where, value, layout)
    return " ".join(value.split())


def by_paragraph(questions: list[Question]) -> Iterator[list[Question]]:
    """The questions of each paragraph, in the order of the file."""
    grouped: dict[str, list[Question]] = {}
    for question in questions:
        grouped.setdefault(question.paragraph, []).append(question)
    yield from grouped.values()
