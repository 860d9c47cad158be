"""Chapters about comparisons, trials and evaluations of predictors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import read_json
from dropscope.report.page.content import Cell, Chapter, Check, Command, Grid, Interval, Intervals, Item, Section, Tone
from dropscope.report.page.pictures import picture_sections
from dropscope.report.page.rankings import accuracy_chart, operating_table, risk_chart
from dropscope.report.page.sweeps import judged, signed, sweep_chapter
from dropscope.runs import Judgement, Run, deferral_table

_SCORES = {"aurc": "AURC↓", "augrc": "AUGRC↓", "error_auroc": "AUROC↑", "nll": "NLL↓", "brier": "Brier↓", "ece": "ECE↓"}
_DRAWN = 4
_SAMPLE = "The examples are a fair sample of those the model will meet; on other data the numbers may differ."


def comparison_chapter(facts: Mapping[str, Any], examples: pd.DataFrame, title: str, data: Any) -> Chapter:
    """A comparison, from what its folder holds."""
    table, gaps = pd.DataFrame(facts["table"]), pd.DataFrame(facts["differences"])
    verdict, against = facts["verdict"], facts["against"]
    kept = dict(iter(examples.groupby("name", sort=False)))
    best = [name for name in dict.fromkeys([verdict["best"], verdict.get("dropout"), *table.name]) if name in kept]
    costs = table.set_index("name").cost
    pair = {name: kept[name] for name in dict.fromkeys([best[0], against])}
    tone: Tone = "better" if verdict["word"] == "better" else "worse"
    headline = f"Ranks errors best: {best[0]}" if tone == "better" else f"Keep {against}: nothing is clearly better"
    said = [part[0].upper() + part[1:] for part in str(verdict["text"]).split("; ", 1)]
    wrong = int(verdict["errors"])
    row = table.set_index("name").loc[against]
    drawn = {name: kept[name] for name in dict.fromkeys([*_best_of_kinds(table, best), against])}
    sections = [
        Section("Differences to the reference", [_differences(gaps, against)], f"Paired by example; {against} is 0."),
        Section("Every rival", [_rivals(table, gaps, against)]),
        *_shifted(table, facts),
        Section("Accuracy against uncertainty", [accuracy_chart(drawn, against)]),
        *picture_sections(kept[best[0]], data),
        _provenance(facts),
    ]
    tiles = [("examples that judged", f"{facts['judged_on']:,}"), ("errors", f"{wrong:,}"), ("rivals", str(len(table))),
             ("examples that fitted", f"{facts['fitted_on']:,}"),
             (f"accuracy ({against})", f"{100 * row.accuracy:.1f} %")]  # fmt: skip
    assumptions = [
        f"Measures, temperatures and fits come from {facts['fitted_on']:,} examples, the numbers from "
        f"{facts['judged_on']:,} others.",
        "Intervals of differences hold for all rivals at once.",
        _SAMPLE,
    ]
    numbers = {"aurc": float(row.aurc), "accuracy": float(row.accuracy), "best_aurc": float(table.aurc.min()),
               "examples": float(facts["judged_on"]), "errors": float(wrong)}  # fmt: skip
    return Chapter(
        "comparison", title, tone, f"{best[0]}" if tone == "better" else "no clear winner", headline, said, tiles,
        operating_table(pair, {name: float(costs[name]) for name in pair}), risk_chart(drawn, against), assumptions,
        sections, numbers,
    )  # fmt: skip


def _best_of_kinds(table: pd.DataFrame, first: Sequence[str]) -> list[str]:
    ordered = table.sort_values("aurc", kind="stable").drop_duplicates("kind").name
    return list(dict.fromkeys([*first[:2], *ordered]))[:_DRAWN]


def _differences(gaps: pd.DataFrame, against: str) -> Intervals:
    chosen = _of_aurc(gaps)
    chosen = chosen[chosen.name != against].sort_values("difference")
    rows = [
        Interval(
            str(row["name"]), float(row["difference"]), *(_known(row[f"difference_{end}"]) for end in ("low", "high"))
        )
        for row in chosen.to_dict("records")
    ]
    return Intervals.of(
        "AURC of every rival less that of the reference", "AURC less the reference's (below 0 is better)", rows
    )


def _of_aurc(gaps: pd.DataFrame) -> pd.DataFrame:
    chosen = gaps[gaps.score == "aurc"]
    return chosen[chosen.data == "data"] if "data" in chosen else chosen


def _rivals(table: pd.DataFrame, gaps: pd.DataFrame, against: str) -> Grid:
    gap = _of_aurc(gaps).set_index("name")
    scores = [name for name in _SCORES if name in table]
    rows: list[list[Cell]] = []
    for row in table.to_dict("records"):
        low, high = (_known(gap[f"difference_{end}"].get(row["name"])) for end in ("low", "high"))
        ends = None if low is None else f"{signed(low)} to {signed(high)}"
        measure = "–" if row["measure"] == "own" else row["measure"]
        cost, time = f"{row['cost']:,.1f}×", _time(row.get("milliseconds"))
        rows.append([row["name"], measure, _known(row["aurc"]), ends, f"{100 * row['accuracy']:.1f} %", cost, time,
                     *(_known(row[name]) for name in scores[1:])])  # fmt: skip
    columns = ["name", "ranked by", "AURC↓", "95 % interval of the difference", "accuracy↑", "cost↓", "ms↓",
               *(_SCORES[name] for name in scores[1:])]  # fmt: skip
    plain = [number for number, name in enumerate(table.name) if name == against]
    return Grid(
        columns, rows, names=2, plain=plain, notes=["NLL, Brier score and ECE at the temperature fitted for each row."]
    )


def _shifted(table: pd.DataFrame, facts: Mapping[str, Any]) -> list[Section]:
    if not facts.get("shifted_on"):
        return []
    names = [name for name in ("accuracy", *_SCORES) if f"shifted_{name}" in table]
    rows = [[row["name"], *(_known(row[f"shifted_{name}"]) for name in names)] for row in table.to_dict("records")]
    grid = Grid(["name", *(_SCORES.get(name, "accuracy↑") for name in names)], rows)
    return [Section("On shifted data", [grid], f"The same rivals on {facts['shifted_on']:,} examples of another kind.")]


def _provenance(facts: Mapping[str, Any]) -> Section:
    rows = [[str(name), json.dumps(value) if not isinstance(value, str) else value]
            for name, value in facts["settings"].items()]  # fmt: skip
    rows += [["remark", str(remark)] for remark in facts.get("remarks", ())]
    command = [Command(facts["command"])] if facts.get("command") else []
    return Section("Provenance", [*command, Grid(["what", "value"], rows, names=2)])


def _time(value: Any) -> str | None:
    return None if value is None or pd.isna(value) else f"{value:.2f}"


def _known(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def choice_chapter(facts: Mapping[str, Any], examples: pd.DataFrame, evidence: Run, title: str, data: Any) -> Chapter:
    """A trial or a tuning: chosen on one part of the examples, judged on the other."""
    judgement, remarks = Judgement(**facts["judgement"]), facts.get("remarks", ())
    names = {f"{judgement.placement}, {judgement.measure}": judgement.measure,
             f"one plain pass, {judgement.rival.removeprefix('plain_')}": judgement.rival}  # fmt: skip
    pair = {name: examples.assign(uncertainty=examples[column]) for name, column in names.items()}
    found = evidence.rows[
        (evidence.rows.placement == judgement.placement) & (evidence.rows.measure == judgement.measure)
    ]
    costs = dict(zip(pair, (float(found.cost.iloc[0]) if len(found) else 1.0, 1.0), strict=True))
    tried = f"{len(evidence.rows):,} rows"
    tone, pill, headline, sentences = judged(judgement, deferral_table(pair, (0.1,)), tried)
    shown = list(pair.values())[0 if judgement.word == "better" else 1]
    base = sweep_chapter(evidence, title, picture_sections(shown, data))
    beside = []
    if "table" in facts:  # what `tune` judged beside the placement
        table, gaps = pd.DataFrame(facts["table"]), pd.DataFrame(facts["differences"])
        against = judgement.rival.removeprefix("plain_")
        lead = f"Finalists, rules and rivals, paired by example; one plain pass by {against} is 0."
        items: list[Item] = [_differences(gaps, against), _rivals(table, gaps, against)]
        beside = [Section("Everything on the examples that judged", items, lead)]
    assumptions = [
        f"Chosen on {evidence.spec.get('examples', 0):,} examples, judged on {judgement.examples:,} others.",
        *remarks,
        _SAMPLE,
    ]
    lead = "These rows are of the examples that chose; the verdict above is not."
    sections = [replace(part, lead=lead) if part.title.startswith("Best") else part for part in base.sections]
    sections[:0] = beside
    right = float(examples.correct.mean())
    tiles = [("examples that judged", f"{judgement.examples:,}"), ("errors", f"{judgement.errors:,}"),
             ("accuracy", f"{100 * right:.1f} %"), *base.tiles[-2:]]  # fmt: skip
    numbers = {"accuracy": right, "errors": float(judgement.errors), "difference": judgement.difference,
               "difference_low": judgement.low, "difference_high": judgement.high,
               "examples": float(judgement.examples)}  # fmt: skip
    kind = "tuning" if beside else "trial"
    return Chapter(kind, title, tone, pill, headline, sentences, tiles, operating_table(pair, costs),
                   risk_chart(pair), assumptions, sections, numbers, base.checks)  # fmt: skip


def choice_from_folder(folder: Path, evidence: Run, data: Any) -> Chapter:
    """A trial or a tuning that was written."""
    facts, examples = read_json(folder / "choice.json"), pd.read_csv(folder / "examples.csv")
    for name in ("table", "differences"):
        if (folder / f"{name}.csv").exists():
            facts[name] = pd.read_csv(folder / f"{name}.csv").to_dict("records")
    return choice_chapter(facts, examples, evidence, folder.resolve().name, data)


def evaluation_chapter(facts: Mapping[str, Any], title: str) -> Chapter:
    """How a predictor does on labelled examples."""
    first = facts["table"][0]
    promised, refuted = facts["max_error"], bool(facts["refuted"])
    kept, error = 100 * first["coverage"], _percent(first, "error_kept")
    said = f"It keeps {kept:.1f} % of {first['n']:,} examples, and {error} of those are wrong."
    if promised is None:
        tone: Tone = "told"
        pill, headline, more = "no promise", "A predictor without a promise", "No rule defers: every answer is kept."
    elif refuted:
        tone, pill, headline = "failed", "refuted", "The promise does not hold on these examples"
        more = f"Promised are at most {100 * promised:g} %, which the whole interval is above."
    else:
        tone, pill, headline = (
            "better",
            "promise stands",
            f"At most {100 * promised:g} % of the kept are wrong: not refuted",
        )
        more = f"Of what it defers, {_percent(first, 'error_deferred')} are wrong."
    columns = ["subset", "examples", "kept", "error of all", "error of the kept", "error of the deferred"]
    names = ("coverage", "error", "error_kept", "error_deferred")
    rows = [[row["subset"], int(row["n"]), *(_percent(row, name) for name in names)] for row in facts["table"]]
    classes = [
        [
            str(row["class"]),
            row["part"],
            int(row["n"]),
            *(_percent(row, name) for name in ("sensitivity", "specificity")),
        ]
        for row in facts["classes"]
    ]
    sections = [
        Section("Kept and deferred", [Grid(columns, rows, "In percent, with exact 95 % intervals")]),
        Section(
            "Class by class", [Grid(["class", "part", "examples", "sensitivity", "specificity"], classes, names=2)]
        ),
    ]
    tiles = [("examples", f"{first['n']:,}"), ("kept", f"{kept:.1f} %"), ("error of the kept", error.split(" (")[0])]
    promise = [] if promised is None else [Check("promise", not refuted, more)]
    numbers = {"coverage": first["coverage"], "error": first["error"], "examples": float(first["n"])}
    numbers |= {} if first["error_kept"] is None else {"error_kept": first["error_kept"]}
    return Chapter("evaluation", title, tone, pill, headline, [said, more], tiles, None, None, [_SAMPLE], sections,
                   numbers, promise)  # fmt: skip


def _percent(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (_known(row.get(key)) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return "none"
    ends = "" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * value:.1f} %{ends}"
