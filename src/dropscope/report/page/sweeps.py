"""Chapters about sweeps: the verdict, what deferring would do, the best rows, every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dropscope.report.page.content import (
    Cell,
    Chapter,
    Check,
    Command,
    Grid,
    Interval,
    Intervals,
    Item,
    Section,
    Tone,
)
from dropscope.report.page.placements import explorer_of, network_of
from dropscope.report.page.rankings import accuracy_chart, operating_table, risk_chart
from dropscope.runs import LEAST_ERRORS, Judgement, Run, deferral_table
from dropscope.scores import TABLE as SCORES

_PLAIN = "plain_entropy"
_SAID = 0.1  # share deferred that the verdict speaks of
_BEST = 10
_ARROWS = {"lower": "↓", "higher": "↑"}
_LABELS = {"mean": "the averaged passes", "plain": "one plain pass"}
_SPEC = {
    "data": "fingerprint of the data",
    "weights": "fingerprint of the weights",
    "code": "fingerprint of the code",
    "placements": "fingerprint of the placements",
    "passes": "passes",
    "seed": "seed",
    "masks": "masks",
    "draws": "draws",
    "label": "predictions by",
    "keyed_by": "examples keyed by",
    "outputs": "outputs",
    "precision": "precision",
    "device": "device",
    "engine": "engine",
}


def sweep_chapter(run: Run, title: str, more: Sequence[Section] = (), rows: int | None = None) -> Chapter:
    """A sweep as a chapter, with `more` sections before the statistics and at most `rows` rows to explore."""
    rankings = run.rankings(count=3)
    verdict = run.verdict if rankings else None
    pair = run.rankings()
    deferral = deferral_table(pair, (_SAID,)) if pair else None
    tone, pill, headline, sentences = _verdict(run, verdict, deferral)
    plain = run.baseline[run.baseline.measure == _PLAIN].iloc[0]
    cost = float(_best_row(run).cost)
    sections = [
        _audit_section(run),
        Section("Best placements beside one plain pass", _best_items(run)),
        *_curve_sections(rankings),
        *network_of(run),
        Section("Every placement", [explorer_of(run, rows)], "Filter, sort and hover; + is one plain pass."),
        *more,
        _statistics(run),
        _provenance(run),
    ]
    return Chapter(
        "sweep",
        title,
        tone,
        pill,
        headline,
        sentences,
        _tiles(run, verdict),
        operating_table(pair, {name: cost if number == 0 else 1.0 for number, name in enumerate(pair)})
        if pair
        else None,
        risk_chart(pair) if pair else None,
        _assumptions(run, verdict),
        [part for part in sections if part is not None],
        _numbers(run, plain, verdict),
        _checks(run),
    )


def judged(verdict: Judgement, deferral: pd.DataFrame | None, tried: str) -> tuple[Tone, str, str, list[str]]:
    """A judgement as a report says it: tone, a word, a headline and two sentences."""
    gap = f"AURC {verdict.difference:+.4f}, 95 % interval {verdict.low:+.4f} to {verdict.high:+.4f}".replace("-", "−")
    named = f"`{verdict.placement}` ranked by {verdict.measure}"
    spoken = _deferral_words(deferral, helps=verdict.word == "better")
    if verdict.errors < LEAST_ERRORS:
        few = f"Only {verdict.errors} of {verdict.examples:,} predictions are wrong, and a verdict needs {LEAST_ERRORS}"
        return "undecided", "undecided", "Too few errors to decide: use one plain pass", [f"{few} ({gap}).", spoken]
    if verdict.word == "better":
        said = f"{named} orders the errors better than one plain pass ({gap})."
        return "better", "dropout helps", "Monte Carlo Dropout helps here", [said, spoken]
    if verdict.word == "worse":
        said = f"Even the best of {tried}, {named}, orders the errors worse than one plain pass ({gap})."
        return "worse", "plain pass", "Use one plain pass: dropout ranks errors worse", [said, spoken]
    said = (
        f"No evidence that any of {tried} orders the errors better than one plain pass; the nearest is {named} ({gap})."
    )
    return "worse", "plain pass", "Use one plain pass: dropout does not help here", [said, spoken]


def _verdict(run: Run, verdict: Judgement | None, deferral: pd.DataFrame | None) -> tuple[Tone, str, str, list[str]]:
    if verdict is None:
        best = _best_row(run)
        said = f"The best row by {_score(run)} is `{best.placement}` ranked by {best.measure}."
        headline = f"{run.rows.placement.nunique():,} placements, without a verdict"
        return "told", "no verdict", headline, [said, 'A verdict needs AURC and per-example values: keep="top:50".']
    return judged(verdict, deferral, f"{len(run.rows):,} rows")


def _deferral_words(deferral: pd.DataFrame | None, *, helps: bool) -> str:
    if deferral is None or not len(deferral):
        return ""
    rows = deferral.to_dict("records")
    mc, plain = rows[0], rows[-1]
    first, other = (mc, plain) if helps else (plain, mc)
    if pd.isna(first["errors_caught"]):
        return "There are no errors to catch."
    beside = "one plain pass" if helps else "the best placement"
    return (
        f"Deferring the {100 * first['deferred']:.0f} % most uncertain examples by "
        f"{'it' if helps else 'the entropy of one pass'} catches {100 * first['errors_caught']:.0f} % of the errors "
        f"and lets {first['errors_kept']:,} through ({beside}: {100 * other['errors_caught']:.0f} %)."
    )


def _score(run: Run) -> str:
    return next(name for name in ("aurc", "augrc", *SCORES) if name in run.rows)


def _best_row(run: Run) -> Any:
    return run.best(_score(run), 1).iloc[0]


def _tiles(run: Run, verdict: Judgement | None) -> list[tuple[str, str]]:
    plain = run.baseline[run.baseline.measure == _PLAIN].iloc[0]
    examples = int(run.spec.get("examples", 0))
    wrong = round(examples * (1 - float(plain.accuracy)))
    tiles = [
        ("examples", f"{examples:,}"),
        ("errors (plain pass)", f"{wrong:,}"),
        ("accuracy (plain pass)", f"{100 * float(plain.accuracy):.1f} %"),
    ]
    if "aurc" in run.rows:
        tiles.append(("AURC↓ plain → best", f"{plain.aurc:.4f} → {run.rows.aurc.min():.4f}"))
    tiles.append(("tried", f"{run.rows.placement.nunique():,} × {run.rows.measure.nunique()} measures"))
    tiles.append(("passes each", f"{run.spec.get('passes', 0):,}"))
    return tiles


def _assumptions(run: Run, verdict: Judgement | None) -> list[str]:
    said = ["The examples are a fair sample of those the model will meet; on other data the numbers may differ."]
    predicted = _LABELS.get(str(run.spec.get("label")), str(run.spec.get("label")))
    said.append(f"Predictions are those of {predicted}. Cost is in plain passes per example.")
    if verdict is not None and verdict.picked_from > 1:
        said.append(
            f"The row is the best of {verdict.picked_from:,} on these very examples; its interval is widened for that, "
            "the table of deferral is not."
        )
    if "groups" in run.spec:
        said.append("Examples come in groups; intervals resample groups.")
    return said


def _best_items(run: Run) -> list[Item]:
    score = _score(run)
    direction = {**{row.name: row.direction for row in SCORES.values()}, **run.spec.get("own_scores", {})}[score]
    best = run.best(score, _BEST)
    plain = run.with_intervals(run.baseline, score)
    every = pd.concat([best, plain])
    columns = [
        "placement",
        "ranked by",
        f"{score}{_ARROWS[direction]}",
        "vs plain",
        "95 % interval",
        "Monte Carlo error",
        "accuracy↑",
        "cost↓",
    ]
    rows = [_best_cells(row, score) for row in every.to_dict("records")]
    gaps = [
        Interval(
            f"{row['placement']} · {row['measure']}",
            float(row["minus_single_pass"]),
            _known(row, "minus_single_pass_low"),
            _known(row, "minus_single_pass_high"),
        )
        for row in best.to_dict("records")
    ]
    notes = ["vs plain: less the score of one plain pass ranked by its entropy, on the same examples."]
    of = best.picked_from.dropna()
    if len(of):
        notes.append(f"Intervals of the difference hold for all {int(of.max()):,} rows at once.")
    label = f"{score} less that of one plain pass ({'below' if direction == 'lower' else 'above'} 0 is better)"
    return [
        Intervals.of("Differences of the best rows to one plain pass", label, gaps, lower=direction == "lower"),
        Grid(columns, rows, notes=notes, names=2, plain=range(len(best), len(every))),
    ]


def _best_cells(row: dict[str, Any], score: str) -> list[Any]:
    plain = row["placement"] == "none"
    low, high, error = (
        _known(row, name) for name in ("minus_single_pass_low", "minus_single_pass_high", "monte_carlo")
    )
    return [
        "one plain pass" if plain else f"`{row['placement']}`",
        row["measure"],
        float(row[score]),
        signed(row["minus_single_pass"]),
        None if low is None or plain else f"{signed(low)} to {signed(high)}",
        f"{error:.4f}" if error else None,
        f"{100 * row['accuracy']:.2f} %",
        f"{row['cost']:,.1f}×",
    ]


def signed(value: Any) -> str | None:
    """A difference.

    >>> signed(-0.01234), signed(0.5)
    ('−0.0123', '+0.5000')
    """
    return None if value is None or pd.isna(value) else f"{value:+.4f}".replace("-", "−")


def _known(row: dict[str, Any], name: str) -> float | None:
    value = row.get(name)
    return None if value is None or pd.isna(value) else float(value)


def _curve_sections(rankings: dict[str, pd.DataFrame]) -> list[Section]:
    if not rankings:
        return []
    lead = "Accuracy on the share of examples that are kept, the most certain first."
    return [Section("Accuracy against uncertainty", [accuracy_chart(rankings)], lead)]


def _audit_section(run: Run) -> Section | None:
    found = run.origin.get("findings", [])
    if not found:
        return None
    rows = [
        [
            f"`{each['site']}`",
            "ok" if each["problem"] is None else "failed",
            each["noise"],
            each["asked"],
            each["measured"],
            each["units"],
        ]
        for each in found
    ]
    grid = Grid(["site", "audit", "noise", "asked", "measured", "units counted"], rows, names=3)
    lead = "Before anything ran, noise was shown to take effect at every site, at its rate, there and nowhere else."
    return Section("Audit", [grid], lead)


def _checks(run: Run) -> list[Check]:
    found = run.origin.get("findings", [])
    wrong = [f"{each['site']}: {each['problem']}" for each in found if each["problem"] is not None]
    return [Check("audit", not wrong, "; ".join(wrong))]


def _statistics(run: Run) -> Section:
    best = _best_row(run)
    chosen = run.intervals[(run.intervals.placement == best.placement) & (run.intervals.measure == best.measure)]
    rows: list[list[Cell]] = []
    for row in chosen.to_dict("records"):
        low, high = _known(row, "low"), _known(row, "high")
        gaps = _known(row, "minus_single_pass_low"), _known(row, "minus_single_pass_high")
        rows.append(
            [
                row["score"],
                float(row["value"]),
                None if low is None else f"{low:.4f} to {high:.4f}",
                signed(row["minus_single_pass"]),
                None if gaps[0] is None else f"{signed(gaps[0])} to {signed(gaps[1])}",
            ]
        )
    items: list[Item] = []
    if rows:
        titles = ["score", "value", "95 % interval", "vs plain", "95 % interval of it"]
        items.append(Grid(titles, rows, f"`{best.placement}` ranked by {best.measure}"))
    if run.levels:
        levels: list[list[Cell]] = [[name, level["random"], level["monotone"]] for name, level in run.levels.items()]
        caption = "What penalties are on as many examples: a low one alone says little"
        items.append(Grid(["penalty", "random measure", "monotone measure"], levels, caption))
    return Section(
        "Statistics", items, "Intervals come from resampled examples; no number here is from one pass alone."
    )


def _provenance(run: Run) -> Section:
    rows = [[words, str(run.spec[name])] for name, words in _SPEC.items() if name in run.spec]
    rows += [[f"version of {name}", version] for name, version in run.origin.get("versions", {}).items()]
    rows += [["folder", str(run.folder)]] if run.folder is not None else []
    command = run.origin.get("command")
    items: list[Item] = [Command(command)] if command else []
    lead = "The same command with the same files gives the same rows." if command else ""
    return Section("Provenance", [*items, Grid(["what", "value"], rows, names=2)], lead)


def _numbers(run: Run, plain: Any, verdict: Judgement | None) -> dict[str, float]:
    found = {"accuracy": float(plain.accuracy), "examples": float(run.spec.get("examples", 0))}
    if "aurc" in run.rows:
        found |= {"aurc": float(plain.aurc), "best_aurc": float(run.rows.aurc.min())}
    if verdict is not None:
        found |= {"errors": float(verdict.errors), "difference": verdict.difference}
        found |= {"difference_low": verdict.low, "difference_high": verdict.high}
    return found
