"""The verdict of a comparison: one sentence from intervals that hold for all rivals at once.

Owns the rule. A rival is better where its whole interval of the AURC difference lies below 0; with too few errors
nothing is decided. Its size and power are simulated in the test suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from dropscope.runs import LEAST_ERRORS

Word = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Verdict:
    """What a comparison says about the ranking of errors, by AURC.

    Attributes:
        word: "better" where a rival beats the reference, "undecided" where none is seen to.
        best: The rival of least AURC among those that beat the reference; the reference itself where none does.
        against: The reference.
        dropout: The placement of least AURC; None where none was compared.
        dropout_word: How that one does against the reference.
        examples: Examples that judged.
        errors: The fewest errors that a rival ranks.
        text: The sentence.
    """

    word: Word
    best: str
    against: str
    dropout: str | None
    dropout_word: Word | None
    examples: int
    errors: int
    text: str

    def __str__(self) -> str:
        return self.text


def decide(table: pd.DataFrame, differences: pd.DataFrame, against: str, examples: int, errors: int) -> Verdict:
    """The verdict on rows and their differences to `against`.

    Args:
        table: A row per name, with `kind`, `accuracy`, `aurc` and `cost`.
        differences: Those of the score "aurc", with simultaneous intervals.
        against: The reference.
        examples: Examples that judged.
        errors: The fewest errors that a rival ranks.
    """
    area = differences[differences.score == "aurc"].set_index("name")
    rows = table.set_index("name").join(area[["difference", "difference_low", "difference_high"]])
    words = {name: _word(row, errors) for name, row in rows.iterrows()}
    reference = f"{against} (AURC {rows.aurc[against]:.4f})"
    others = rows.drop(against)
    placements = others[others.kind == "dropout"].sort_values("aurc", kind="stable")
    dropout = str(placements.index[0]) if len(placements) else None
    said = words[dropout] if dropout is not None else None
    better = [name for name in others.index if words[name] == "better"]
    gains = others.loc[better].sort_values("aurc", kind="stable")
    common = (dropout, said, examples, errors)
    if errors < LEAST_ERRORS:
        outcome = "wrong" if rows.accuracy[against] > 0.5 else "right"
        few = f"only {errors} of {examples} predictions are {outcome}, and a verdict needs {LEAST_ERRORS}"
        return Verdict("undecided", against, against, *common, f"Undecided: {few}; use {against} until there are more.")
    if not len(gains):
        nearest = others.sort_values("aurc", kind="stable")
        near = f": the nearest, {_numbers(nearest.iloc[0])}, does not differ clearly" if len(nearest) else ""
        clause = _dropout_clause(rows, dropout, said, said_already=str(nearest.index[0]) if len(nearest) else None)
        text = f"Nothing here ranks errors better than {reference}{near}{clause}; use {against}."
        return Verdict("undecided", against, against, *common, text)
    best = gains.iloc[0]
    text = f"{best.name} ranks errors better than {against} (AURC {best.aurc:.4f} against {rows.aurc[against]:.4f}, "
    text += f"difference {_ends(best)} at 95 % for all rows at once) at {best.cost:.3g} plain passes per example"
    cheap = gains[gains.cost < best.cost].sort_values("cost", kind="stable")
    if len(cheap):
        text += f"; for {cheap.iloc[0].cost:.3g}, {_numbers(cheap.iloc[0])} does too"
    named = {str(best.name), *(str(name) for name in cheap.index[:1])}
    clause = "" if dropout in named else _dropout_clause(rows, dropout, said, said_already=None)
    return Verdict("better", str(best.name), against, *common, f"{text}{clause}.")


def _word(row: pd.Series, errors: int) -> Word:
    if errors < LEAST_ERRORS or not row.difference_low * row.difference_high > 0:
        return "undecided"
    return "better" if row.difference_high < 0 else "worse"


def _dropout_clause(rows: pd.DataFrame, dropout: str | None, word: Word | None, *, said_already: str | None) -> str:
    if dropout is None or dropout == said_already:
        return ""
    verb = {"better": "is better too", "worse": "is worse", "undecided": "is not clearly better", None: ""}[word]
    return f"; of the placements of dropout the best, {_numbers(rows.loc[dropout])}, {verb}"


def _numbers(row: pd.Series) -> str:
    return f"{row.name} ({row.difference:+.4f}, {_ends(row)})"


def _ends(row: pd.Series) -> str:
    return f"{row.difference_low:+.4f} to {row.difference_high:+.4f}"
