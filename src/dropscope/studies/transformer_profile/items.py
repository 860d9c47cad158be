"""The items of the study: true or false statements of two domains, or any labelled file with groups of its own.

Owns pairing, balance and the split: both items made from one context lie on one side of it. See `domains` for the
official files and `tokens` for tokens. The same files and seed give the same table, everywhere.
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
from dropscope.errors import BadInput, Phrase
from dropscope.loading import column_texts, empty_cell, find_column, read_table
from dropscope.studies.transformer_profile.domains import Question, Story, by_paragraph, read_hellaswag, read_squad

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


def two_domains(squad: Path, hellaswag: Path, items: int = 1000, seed: int = 42, *, with_context: bool = True) -> Items:
    """`items` in all: half memory, half reasoning, half true; four fifths to train on, one fifth to test on.

    Memory: a SQuAD question, the first 200 characters of its paragraph and an answer. On each side of the split every
    answer is shown once as the right one and once as a wrong one, so that an answer alone tells nothing. Reasoning: a
    HellaSwag beginning with the real ending, and with one of the others. A context gives two items, and is used once.
    """
    if not isinstance(items, int) or items < _STEP or items % _STEP:
        what = f"items must be a multiple of {_STEP} (two domains, two labels, and an exact fifth to test on)"
        raise BadInput(what, "items", items, f"write items={max(_STEP, round(int(items) / _STEP) * _STEP)}")
    questions, impossible = read_squad(squad)
    stories = read_hellaswag(hellaswag)
    usable, remarks_on_length = _one_per_paragraph(questions, seed)
    distinct, repeated = _distinct_stories(stories)
    pairs = items // 4
    for name, path, contexts in (("squad", squad, len(usable)), ("hellaswag", hellaswag, len(distinct))):
        if contexts < pairs:
            most = 4 * min(len(usable), len(distinct)) // _STEP * _STEP
            what = f"{name} must hold a context of its own for every pair of items"
            got = Phrase(f"{contexts} usable contexts in {Path(path).name} for {pairs} pairs")
            raise BadInput(what, name, got, f"write items={most} or less")
    drawn_questions = [usable[i] for i in _rng(seed, "memory").permutation(len(usable))[:pairs]]
    drawn_stories = [distinct[i] for i in _rng(seed, "reasoning").permutation(len(distinct))[:pairs]]
    rows: list[dict[str, Any]] = []
    for split, chosen in _fifth(pairs):
        rows += _memory(drawn_questions[chosen], split, seed, with_context=with_context)
        rows += _reasoning(drawn_stories[chosen], split, seed)
    inside = sum(q.answers[0].casefold() in q.context[:_LETTERS].casefold() for q in drawn_questions)
    remarks = [
        *([f"{impossible} SQuAD questions have no answer and were left out"] if impossible else []),
        *remarks_on_length,
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


def read_items(
    path: Path,
    text_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    seed: int = 42,
    *,
    train: bool = True,
) -> Items:
    """The items of a `.csv`, `.jsonl` or `.parquet` with a text and a label per row.

    An optional `group` column takes the place of memory and reasoning. Rows with one value in a `context` column (or,
    without one, the same text) stay on one side of the split; a `split` column with "train" and "test" is taken as it
    is. Without `train`, every row is for the test.
    """
    table = read_table(path)
    texts = column_texts(table, find_column(table, path, text_column, ("text",), "text_column"), path)
    values = column_texts(table, find_column(table, path, label_column, ("label",), "label_column"), path)
    group = "group" if group_column is None and "group" in table.columns else group_column
    groups = ["all"] * len(table)
    if group is not None:
        groups = column_texts(table, find_column(table, path, group, (), "group_column"), path)
    first = {text: str(i) for i, text in reversed(list(enumerate(texts)))}
    contexts = column_texts(table, "context", path) if "context" in table.columns else [first[text] for text in texts]
    if "overall" in groups:
        what = "group must not be 'overall', which stands for all groups together"
        raise BadInput(what, "group", "overall", "give that group another name")
    labels, classes = _classes(values, path)
    items = pd.DataFrame({"item": [f"{path.stem}-{i + 1}" for i in range(len(table))], "context": contexts,
                          "group": groups, "label": labels, "split": "test", "text": texts})  # fmt: skip
    if train and "split" in table.columns:
        items["split"] = column_texts(table, "split", path)
        wrong = sorted(set(items.split) - set(SPLITS))
        if wrong:
            what = f"column 'split' of {path.name} must hold train and test alone"
            raise BadInput(what, "split", wrong[0], "write train or test")
    elif train:
        items["split"] = _stratified(items, seed)
    for name in dict.fromkeys(groups):
        for side in SPLITS if train else ("test",):
            if not ((items.group == name) & (items.split == side)).any():
                what, got = "every group must have items on each side of the split", f"none to {side} on in {name!r}"
                raise BadInput(what, "group", Phrase(got), "give that group at least two contexts, or leave it out")
    return Items(items[list(COLUMNS)], classes, tuple(_remarks(items, classes) if train else ()))


# --- the two domains --------------------------------------------------------------------------------------------------


def _rng(seed: int, what: str) -> np.random.Generator:
    word = int.from_bytes(hashlib.sha256(what.encode()).digest()[:4], "little")
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, word])


def _fifth(pairs: int) -> tuple[tuple[str, slice], tuple[str, slice]]:
    border = pairs * 4 // 5
    return ("train", slice(0, border)), ("test", slice(border, pairs))


def _one_per_paragraph(questions: list[Question], seed: int) -> tuple[list[Question], list[str]]:
    """A question of each paragraph that has one short enough; paragraphs that would look alike count once."""
    rng, chosen, seen, long = _rng(seed, "questions"), [], set(), 0
    for paragraph in by_paragraph(questions):
        short = [question for question in paragraph if len(question.question) <= _LETTERS]
        long += len(paragraph) - len(short)
        shown = paragraph[0].context[:_LETTERS].casefold()
        if short and shown not in seen:
            seen.add(shown)
            chosen.append(short[int(rng.integers(len(short)))])
    remark = f"{long} SQuAD questions are longer than {_LETTERS} characters and were left out"
    return chosen, [remark] if long else []


def _distinct_stories(stories: list[Story]) -> tuple[list[Story], int]:
    kept: dict[str, Story] = {}
    for story in stories:
        if any(text != story.endings[story.gold] for text in story.endings):
            kept.setdefault(story.context.casefold(), story)
    return list(kept.values()), len(stories) - len(kept)


def _memory(questions: Sequence[Question], split: str, seed: int, *, with_context: bool) -> list[dict[str, Any]]:
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
        # A swap that fixes this one and breaks no other.
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
        what = "squad must hold a wrong answer for every question among those of the others"
        raise BadInput(what, "squad", questions[bad[0]].answers[0], "pass more questions: too many share this answer")
    return [questions[i].answers[0] for i in giver]


# --- a file of one's own ----------------------------------------------------------------------------------------------


def _remarks(items: pd.DataFrame, classes: Sequence[str]) -> list[str]:
    """What is odd about a split: something on both sides, or a class on one alone."""
    train, test = (items[items.split == side] for side in SPLITS)
    shared = {what: len(set(train[what]) & set(test[what])) for what in ("context", "text")}
    remarks = [f"{count} {what}s lie on both sides of the split: a leak" for what, count in shared.items() if count]
    for side, rows in zip(SPLITS, (train, test), strict=True):
        lacking = [name for number, name in enumerate(classes) if number not in set(rows.label)]
        if lacking:
            remarks.append(f"no item to {side} on is of class {', '.join(lacking)}")
    return remarks


def _classes(values: Sequence[str], path: Path) -> tuple[list[int], tuple[str, ...]]:
    """Labels as numbers from 0, and what they are called in the file: in order, numbers by their size."""
    unknown = [row for row, value in enumerate(values, 1) if value.casefold() in ("nan", "<na>")]
    if unknown:  # as pandas writes a value that is missing
        raise empty_cell(unknown[0], "label", path, values[unknown[0] - 1])
    distinct = sorted(set(values), key=lambda value: (0, int(value), "") if value.isdecimal() else (1, 0, value))
    if len(distinct) < 2:
        what = f"labels in {path.name} must be of at least two classes"
        raise BadInput(what, "label_column", distinct, "pass rows of more classes")
    if len(distinct) > max(2, len(values) // 2):
        what, got = f"labels in {path.name} must be classes", f"{len(distinct)} different ones in {len(values)} rows"
        raise BadInput(what, "label_column", Phrase(got), "name the column of the classes with label_column")
    number = {value: i for i, value in enumerate(distinct)}
    return [number[value] for value in values], tuple(distinct)


def _stratified(table: pd.DataFrame, seed: int) -> list[str]:
    """A fifth of the contexts of each kind (group and labels) to the test, whole contexts only.

    Contexts that are the only one of their kind make up a kind by group.
    """
    kinds: dict[Any, list[str]] = {}
    for context, rows in table.groupby("context", sort=False):
        kinds.setdefault((rows.group.iloc[0], tuple(sorted(rows.label))), []).append(str(context))
    rng, test = _rng(seed, "split"), set()
    alone: dict[str, list[str]] = {}
    for kind in [kind for kind, contexts in kinds.items() if len(contexts) == 1]:
        alone.setdefault(kind[0], []).extend(kinds.pop(kind))
    for contexts in (*kinds.values(), *alone.values()):
        count = max(1, round(len(contexts) / 5)) if len(contexts) > 1 else 0
        test |= {contexts[i] for i in rng.permutation(len(contexts))[:count]}
    return ["test" if context in test else "train" for context in table.context]
