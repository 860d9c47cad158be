"""The items of the study: true or false statements of two domains, or any labelled file with groups of its own.

Owns pairing, balance and the split: both items made from one context lie on one side of it. What the official files
look like is `domains.py`'s; tokens come later. The same files and seed give the same table, everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dropscope.atomic import atomic_write
from dropscope.errors import BadInput, nearest
from dropscope.loading import read_table
from dropscope.studies.transformer_profile.domains import Question, Story, paragraphs, read_hellaswag, read_squad

COLUMNS = ("item", "context", "group", "label", "split", "text")
SPLITS = ("train", "test")
_LETTERS = 200  # of a question at most, and what is shown of its context
_STEP = 20  # items: two domains × two labels × five contexts, of which one is for the test
_TRUE_FALSE = ("false", "true")


@dataclass(frozen=True, eq=False)
class Items:
    """`table` has the columns `COLUMNS`; `classes` names the labels 0, 1, …; `remarks` say what was left out."""

    table: pd.DataFrame
    classes: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of everything in the table."""
        digest = hashlib.sha256("\n".join(map(repr, self.table[list(COLUMNS)].itertuples(index=False, name=None)))
                                .encode())  # fmt: skip
        return digest.hexdigest()[:16]

    def side(self, split: str) -> pd.DataFrame:
        return self.table[self.table.split == split].reset_index(drop=True)

    def save(self, path: Path) -> Path:
        return atomic_write(path, lambda part: self.table.to_parquet(part, index=False))


def two_domains(squad: Path, hellaswag: Path, items: int = 1000, seed: int = 42, with_context: bool = True) -> Items:
    """`items` in all: half memory, half reasoning, half true; four fifths to train on, one fifth to test on.

    Memory: a SQuAD question, the first 200 characters of its paragraph and an answer. On each side of the split every
    answer is shown once as the right one and once as a wrong one, so that an answer alone tells nothing. Reasoning: a
    HellaSwag beginning with the real ending, and with one of the others. A context gives two items, and is used once.
    """
    if not isinstance(items, int) or items < _STEP or items % _STEP:
        rule = f"items are a multiple of {_STEP}: two domains, two labels, and an exact fifth to test on"
        raise BadInput(rule, "--items", items, f"write --items {max(_STEP, round(int(items) / _STEP) * _STEP)}")
    questions, impossible = read_squad(squad)
    stories = read_hellaswag(hellaswag)
    chosen, said = _one_per_paragraph(questions, seed)
    told, repeated = _distinct_stories(stories)
    pairs = items // 4
    for option, path, there in (("--squad", squad, len(chosen)), ("--hellaswag", hellaswag, len(told))):
        if there < pairs:
            most = 4 * min(len(chosen), len(told)) // _STEP * _STEP
            got = f"{there} usable contexts in {Path(path).name} for {pairs} pairs"
            raise BadInput("every pair of items has a context of its own", option, got, f"write --items {most} or less")
    drawn_questions = [chosen[i] for i in _rng(seed, "memory").permutation(len(chosen))[:pairs]]
    drawn_stories = [told[i] for i in _rng(seed, "reasoning").permutation(len(told))[:pairs]]
    rows: list[dict[str, Any]] = []
    for split, some in _fifth(pairs):
        rows += _memory(drawn_questions[some], split, seed, with_context)
        rows += _reasoning(drawn_stories[some], split, seed)
    inside = sum(q.answers[0].casefold() in q.context[:_LETTERS].casefold() for q in drawn_questions)
    remarks = [
        *([f"{impossible} SQuAD questions have no answer and were left out"] if impossible else []),
        *said,
        *(
            [f"{repeated} HellaSwag stories repeat a beginning or hold no wrong ending, and were left out"]
            * bool(repeated)
        ),
        (
            f"the right answer stands in the {_LETTERS} characters shown of its paragraph in {inside} of {pairs} cases"
            if with_context
            else "memory items show no paragraph"
        ),
    ]
    return Items(pd.DataFrame(rows, columns=list(COLUMNS)), _TRUE_FALSE, tuple(remarks))


def labelled(
    path: Path,
    text_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    seed: int = 42,
    train: bool = True,
) -> Items:
    """The items of a `.csv`, `.jsonl` or `.parquet` with a text and a label per row.

    An optional `group` column takes the place of memory and reasoning. Rows with one value in a `context` column (or,
    without one, the same text) stay on one side of the split; a `split` column with "train" and "test" is taken as it
    is. Without `train`, every row is for the test.
    """
    table = read_table(path)
    texts = _filled(table, _column(table, text_column, "text", "--text-column", path), path)
    values = _filled(table, _column(table, label_column, "label", "--label-column", path), path)
    group = "group" if group_column is None and "group" in table.columns else group_column
    groups = (
        ["all"] * len(table)
        if group is None
        else _filled(table, _column(table, group, group, "--group-column", path), path)
    )
    first = {text: str(i) for i, text in reversed(list(enumerate(texts)))}
    contexts = _filled(table, "context", path) if "context" in table.columns else [first[text] for text in texts]
    if "overall" in groups:
        raise BadInput("'overall' stands for all groups together", "a group", "overall", "give that group another name")
    labels, classes = _classes(values, path)
    found = pd.DataFrame({"item": [f"{path.stem}-{i + 1}" for i in range(len(table))], "context": contexts,
                          "group": groups, "label": labels, "split": "test", "text": texts})  # fmt: skip
    if train and "split" in table.columns:
        found["split"] = _filled(table, "split", path)
        wrong = sorted(set(found.split) - set(SPLITS))
        if wrong:
            raise BadInput(
                "a split is train or test", f"column 'split' of {path.name}", wrong[0], "write train or test"
            )
    elif train:
        found["split"] = _stratified(found, seed)
    for name in dict.fromkeys(groups):
        for side in SPLITS if train else ("test",):
            if not ((found.group == name) & (found.split == side)).any():
                remedy = "give that group at least two contexts, or leave it out"
                got = f"none in group {name!r}"
                raise BadInput("every group has items on each side of the split", f"items to {side} on", got, remedy)
    return Items(found[list(COLUMNS)], classes, tuple(_remarks(found, classes) if train else ()))


# --- the two domains --------------------------------------------------------------------------------------------------


def _rng(seed: int, what: str) -> np.random.Generator:
    word = int.from_bytes(hashlib.sha256(what.encode()).digest()[:4], "little")
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, word])


def _fifth(pairs: int) -> tuple[tuple[str, slice], tuple[str, slice]]:
    border = pairs * 4 // 5
    return ("train", slice(0, border)), ("test", slice(border, pairs))


def _one_per_paragraph(questions: list[Question], seed: int) -> tuple[list[Question], list[str]]:
    """A question of each paragraph that has one short enough; paragraphs that would look alike count once."""
    rng, found, seen, long = _rng(seed, "questions"), [], set(), 0
    for some in paragraphs(questions):
        short = [question for question in some if len(question.question) <= _LETTERS]
        long += len(some) - len(short)
        shown = some[0].context[:_LETTERS].casefold()
        if short and shown not in seen:
            seen.add(shown)
            found.append(short[int(rng.integers(len(short)))])
    remark = f"{long} SQuAD questions are longer than {_LETTERS} characters and were left out"
    return found, [remark] if long else []


def _distinct_stories(stories: list[Story]) -> tuple[list[Story], int]:
    kept: dict[str, Story] = {}
    for story in stories:
        if any(text != story.endings[story.gold] for text in story.endings):
            kept.setdefault(story.context.casefold(), story)
    return list(kept.values()), len(stories) - len(kept)


def _memory(questions: Sequence[Question], split: str, seed: int, with_context: bool) -> list[dict[str, Any]]:
    rows = []
    for question, wrong in zip(questions, _wrong_answers(questions, _rng(seed, f"answers {split}")), strict=True):
        shown = f" Context: {question.context[:_LETTERS].rstrip()}" if with_context else ""
        for label, answer in ((1, question.answers[0]), (0, wrong)):
            text = f"Question: {question.question}{shown} Answer: {answer}"
            rows.append(_row(f"squad-{question.id}", f"squad-{question.paragraph}", "memory", label, split, text))
    return rows


def _reasoning(stories: Sequence[Story], split: str, seed: int) -> list[dict[str, Any]]:
    rng, rows = _rng(seed, f"endings {split}"), []
    for story in stories:
        gold = story.endings[story.gold]
        others = [text for text in story.endings if text != gold]
        for label, ending in ((1, gold), (0, others[int(rng.integers(len(others)))])):
            name = f"hellaswag-{story.id}"
            rows.append(_row(name, name, "reasoning", label, split, f"{story.context} {ending}"))
    return rows


def _row(name: str, context: str, group: str, label: int, split: str, text: str) -> dict[str, Any]:
    item = f"{name}-{_TRUE_FALSE[label]}"
    return {"item": item, "context": context, "group": group, "label": label, "split": split, "text": text}


def _wrong_answers(questions: Sequence[Question], rng: np.random.Generator) -> list[str]:
    """Each question's right answer handed to another question, for which it is not right: a permutation."""
    right = [{answer.casefold() for answer in question.answers} for question in questions]
    giver = rng.permutation(len(questions))

    def wrong(receiver: int, source: int) -> bool:
        return receiver != source and questions[source].answers[0].casefold() not in right[receiver]

    for i in range(len(questions)):
        if wrong(i, giver[i]):
            continue
        # A swap that mends this one and breaks no other that was whole.
        j = next(
            (
                int(j)
                for j in rng.permutation(len(questions))
                if wrong(i, giver[j]) and (wrong(int(j), giver[i]) or not wrong(int(j), giver[j]))
            ),
            None,
        )
        if j is not None:
            giver[i], giver[j] = giver[j], giver[i]
    bad = [i for i in range(len(questions)) if not wrong(i, giver[i])]
    if bad:
        rule, got = "every question has a wrong answer among the others'", questions[bad[0]].answers[0]
        raise BadInput(rule, "an answer that too many questions share", got, "pass more questions")
    return [questions[i].answers[0] for i in giver]


# --- a file of one's own ----------------------------------------------------------------------------------------------


def _column(table: pd.DataFrame, asked: str | None, default: str, option: str, path: Path) -> str:
    name, columns = asked or default, [str(column) for column in table.columns]
    if name not in columns:
        remedy = nearest(name, columns) if asked else f"name one of {columns} with {option}"
        raise BadInput(f"a column that is named exists in {path.name}", option, name, remedy)
    return name


def _filled(table: pd.DataFrame, column: str, path: Path) -> list[str]:
    """The values of a column as texts; an empty one is an error with its row."""
    values = []
    for number, value in enumerate(table[column].tolist(), 1):
        whole = isinstance(value, float) and value.is_integer()
        text = "" if value is None or value != value else str(int(value) if whole else value).strip()
        if not text:
            where = f"row {number} of {path.name}"
            raise BadInput(
                f"every row has a value in column {column!r}", where, value, "fill it in, or leave the row out"
            )
        values.append(text)
    return values


def _remarks(found: pd.DataFrame, classes: Sequence[str]) -> list[str]:
    """What is odd about a split: something on both sides, or a class on one alone."""
    train, test = (found[found.split == side] for side in SPLITS)
    shared = {what: len(set(train[what]) & set(test[what])) for what in ("context", "text")}
    said = [f"{count} {what}s lie on both sides of the split: a leak" for what, count in shared.items() if count]
    for side, rows in zip(SPLITS, (train, test), strict=True):
        lacking = [name for number, name in enumerate(classes) if number not in set(rows.label)]
        if lacking:
            said.append(f"no item to {side} on is of class {', '.join(lacking)}")
    return said


def _classes(values: Sequence[str], path: Path) -> tuple[list[int], tuple[str, ...]]:
    """Labels as numbers from 0, and what they are called in the file: in order, numbers by their size."""
    unknown = [row for row, value in enumerate(values, 1) if value.casefold() in ("nan", "<na>")]
    if unknown:  # as pandas writes what it does not know
        where = f"row {unknown[0]} of {path.name}"
        raise BadInput("every row has a label", where, values[unknown[0] - 1], "fill it in, or leave the row out")
    distinct = sorted(set(values), key=lambda value: (0, int(value), "") if value.isdecimal() else (1, 0, value))
    if len(distinct) < 2:
        raise BadInput("a classifier has at least two classes", f"labels in {path.name}", distinct, "pass more labels")
    if len(distinct) > max(2, len(values) // 2):
        got = f"{len(distinct)} different ones in {len(values)} rows"
        raise BadInput(
            "a label is the class of its row", f"labels in {path.name}", got, "name the column of the classes"
        )
    number = {value: i for i, value in enumerate(distinct)}
    return [number[value] for value in values], tuple(distinct)


def _stratified(table: pd.DataFrame, seed: int) -> list[str]:
    """A fifth of the contexts of each kind (group and labels) to the test, whole contexts only. Contexts that are the
    only one of their kind make up a kind by group."""
    kinds: dict[Any, list[str]] = {}
    for context, rows in table.groupby("context", sort=False):
        kinds.setdefault((rows.group.iloc[0], tuple(sorted(rows.label))), []).append(str(context))
    rng, test = _rng(seed, "split"), set()
    alone: dict[str, list[str]] = {}
    for kind in [kind for kind, some in kinds.items() if len(some) == 1]:
        alone.setdefault(kind[0], []).extend(kinds.pop(kind))
    for some in (*kinds.values(), *alone.values()):
        count = max(1, round(len(some) / 5)) if len(some) > 1 else 0
        test |= {some[i] for i in rng.permutation(len(some))[:count]}
    return ["test" if context in test else "train" for context in table.context]
