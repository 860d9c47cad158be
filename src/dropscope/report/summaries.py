"""The summary of a study: the answer in a few lines, a table of verdicts, then everything else.

Owns that order, and how claims that differ in one word share a line. What the answer says is up to the studies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pandas as pd

from dropscope.report.claims import Claim, Verdict, claims_table
from dropscope.report.registrations import registration_words
from dropscope.report.writing import COMMAND, markdown, write_table, write_text
from dropscope.runs import started_by

Topic = Callable[[Claim], tuple[str, str]]
"""What a claim is about, and which case of it: ("Masking fc1 alone has a lower AURC", "bald"); "" where it has none."""


@dataclass(frozen=True, eq=False)
class Summary:
    """What `summary.md` says first.

    Attributes:
        answer: A few sentences.
        claims: Judged claims.
        verdicts: A line per topic and verdict: columns verdict, claim, here.
    """

    answer: tuple[str, ...]
    claims: tuple[Claim, ...]
    verdicts: pd.DataFrame


_BRIEF = 110  # characters of a result in the table of verdicts
_INTERVAL = re.compile(r" \([^()]* to [^()]*\)")
_WORDS = (
    "*Supported*: the numbers here bear the claim out. *Contradicted*: they show the opposite. *Equivalent*: the "
    "effect, if any, is smaller than the margin set beforehand. *Undecided*: they allow either. The last column has "
    "the number that decided, with its 95 % interval (a wider one where the best of several is picked); cases of one "
    "claim share a line, without intervals."
)


def by_statement(claim: Claim) -> tuple[str, str]:
    """Every claim is a topic of its own."""
    return claim.statement, ""


def by_variant(*variants: str) -> Topic:
    """Claims whose statements end in one of these words in parentheses are cases of one topic.

    >>> by_variant("bald")(Claim("a", "It falls (bald)", "", "", "undecided", ""))
    ('It falls', 'bald')
    """

    def topic(claim: Claim) -> tuple[str, str]:
        for variant in variants:
            if claim.statement.endswith(f" ({variant})"):
                return claim.statement.removesuffix(f" ({variant})"), variant
        return claim.statement, ""

    return topic


def write_summary(
    folder: Path,
    title: str,
    answer: Sequence[str],
    claims: Sequence[Claim],
    details: Sequence[str],
    smaller: Sequence[str] | None,
    topic: Topic = by_statement,
    terms: Mapping[str, str] | None = None,
) -> Summary:
    """Writes `summary.md`, and `tables/claims`.

    Args:
        folder: Of the study.
        title: First line.
        answer: What a reader takes away, at most three sentences or so.
        claims: Judged claims; of each topic all cases stand together.
        details: Paragraphs and headings about how the answer came about.
        smaller: Where the run is smaller than the paper's; None where there is none to compare with.
        topic: Which claims are cases of one topic.
        terms: What words mean that the summary uses, by word.

    Returns:
        What it says first.
    """
    verdicts = verdict_table(claims, topic)
    parts = [f"# {title}", "\n".join(f"{number}. {line}" for number, line in enumerate(answer, 1))]
    if registered := registration_words(folder, claims):
        parts.append(registered)
    if claims:
        write_table(folder, "claims", claims_table(claims), "Published claims and what was measured here")
        parts += ["## Verdicts", f"{count_verdicts(claims)}.", _WORDS, markdown(verdicts)]
    if terms:
        parts += ["## Terms", "\n".join(f"- *{word}*: {meaning}" for word, meaning in terms.items())]
    parts += ["## The run", *details]
    if claims:
        parts += [
            "## Claims in detail",
            *(_topic_words(name, of_one) for name, of_one in _grouped(claims, topic).items()),
        ]
    if smaller is not None:
        parts += ["## Smaller than in the paper", "\n".join(f"- {line}" for line in smaller) or "Nothing."]
    write_text(folder / "summary.md", "\n\n".join(parts) + "\n")
    if (command := started_by()) is not None:
        write_text(folder / COMMAND, f"{command}\n")
    return Summary(tuple(answer), tuple(claims), verdicts)


def count_verdicts(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict, in words.

    >>> count_verdicts([Claim("a", "", "", "", "undecided", "")])
    '1 claim: 0 supported, 0 contradicted, 0 equivalent, 1 undecided'
    """
    counts = Counter(claim.verdict for claim in claims)
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
    return f"{len(claims)} claim{'s' * (len(claims) != 1)}: {listed}"


def verdict_table(claims: Sequence[Claim], topic: Topic = by_statement) -> pd.DataFrame:
    """A line per topic and verdict: what decided, of several cases each with its number; decided ones first."""
    lines = []
    for name, cases in _grouped(claims, topic).items():
        for verdict in dict.fromkeys(claim.verdict for claim in cases.values()):
            here = _brief(next(iter(cases.values())))
            if len(cases) > 1:
                here = _brief_cases({case: claim for case, claim in cases.items() if claim.verdict == verdict})
            lines.append({"verdict": verdict, "claim": name, "here": here})
    order = {verdict: place for place, verdict in enumerate(get_args(Verdict))}
    return pd.DataFrame(sorted(lines, key=lambda line: order[line["verdict"]]), columns=["verdict", "claim", "here"])


def _grouped(claims: Sequence[Claim], topic: Topic) -> dict[str, dict[str, Claim]]:
    """Topic → case → claim, in the order of the claims."""
    grouped: dict[str, dict[str, Claim]] = {}
    for claim in claims:
        name, case = topic(claim)
        cases = grouped.setdefault(name, {})
        cases[case if case not in cases else claim.name] = claim
    return grouped


def _brief(claim: Claim) -> str:
    """What decided, or the first result of several, cut where a table has no room for it."""
    if claim.arithmetic:
        return f"by arithmetic on the published numbers: {claim.published}"
    if claim.brief:
        return claim.brief
    first = claim.ours.partition("; ")[0]
    return first if len(first) <= _BRIEF else f"{first[: _BRIEF - 2].rsplit(' ', 1)[0]} …"


def _brief_cases(cases: Mapping[str, Claim]) -> str:
    """Each case with its number, where it has one."""
    texts = [f"{case} {_INTERVAL.sub('', claim.brief)}".strip() for case, claim in cases.items()]
    return ("; " if any("," in text for text in texts) else ", ").join(texts)


def _topic_words(name: str, cases: dict[str, Claim]) -> str:
    """What all cases share once; then each with its verdict."""
    first = next(iter(cases.values()))
    if len(cases) == 1:
        heading, fields = f"{name} — {_verdict_words(first)}", _fields(first)
        return f"**{heading}**\n\n" + "\n".join(f"- {key}: {text}" for key, text in fields.items())
    every = [_fields(claim) for claim in cases.values()]
    shared = {key: text for key, text in every[0].items() if all(fields.get(key) == text for fields in every)}
    lines = [f"- {key}: {text}" for key, text in shared.items()]
    for (case, claim), fields in zip(cases.items(), every, strict=True):
        own = "; ".join(
            text if key == "here" else f"{key}: {text}" for key, text in fields.items() if key not in shared
        )
        lines.append(f"- *{case}*: {_verdict_words(claim)}" + (f" — {own}" if own else ""))
    return f"**{name}**\n\n" + "\n".join(lines)


def _verdict_words(claim: Claim) -> str:
    return f"{claim.verdict} (arithmetic on published numbers)" if claim.arithmetic else claim.verdict


def _fields(claim: Claim) -> dict[str, str]:
    named = {"quoted": claim.quotation, "published": claim.published, "measured": claim.estimand}
    named |= {"margin": claim.margin, "here": claim.ours, "how": claim.how}
    return {name: text for name, text in named.items() if text}
