"""The run of a comparison: every rival fitted, asked about the same examples, scored, and judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from dropscope.deploy.rivals.answers import Answer, checked_answer, scorer_of
from dropscope.deploy.rivals.catalogue import Entry
from dropscope.deploy.rivals.dropout import MeasuredPlacement, PlacementRuns
from dropscope.deploy.rivals.forwards import PlainPass, plain_pass
from dropscope.deploy.rivals.preparation import Asked, Field
from dropscope.deploy.rivals.result import Comparison
from dropscope.deploy.rivals.rows import Judged, Settings, difference_table
from dropscope.deploy.rivals.verdicts import decide
from dropscope.errors import BadInput, Phrase
from dropscope.progress import stage, track


def run(field: Field, asked: Asked, started: float, *, show: bool | None) -> Comparison:
    sources = "fit" if field.separate else "data", "data"
    sessions = (field.fitting, field.judging)
    fitting, judging = (
        plain_pass(session, source, places)
        for session, source, places in zip(sessions, sources, field.places, strict=True)
    )
    moved = None if field.shifted is None else plain_pass(field.shifted, "shifted")
    for seen, name in ((fitting, sources[0]), (judging, "data"), *([] if moved is None else [(moved, "shifted")])):
        _check_errors(seen, name)
    parts = [fitting, judging, *([] if moved is None else [moved])]
    placements = [entry.placement for entry in field.entries if entry.placement is not None]
    runs = PlacementRuns(placements, asked.passes, asked.engine)
    if placements:
        with stage("preparing the passes", show=show):
            for number, seen in enumerate(parts):
                runs.open(seen.session, audited=number == 0)
    examples = sum(seen.n for seen in parts)
    work = examples * sum(max(1, entry.forwards(asked.passes)) for entry in field.entries)
    facts: list[dict[str, Any]] = []
    rows: dict[str, Judged] = {}
    shifted_rows: dict[str, Judged] = {}
    with track("comparing", work, show=show) as tick:
        runs.tick = tick
        for entry in field.entries:
            with _explained(entry):
                found = _run(entry, runs, placements, parts)
            settings = Settings.of(found.answers[0], fitting, asked.measure, asked.label)
            rows[entry.name] = Judged.of(found.answers[1], judging, settings, asked.label)
            fact: dict[str, Any] = {"name": entry.name, "kind": entry.kind, "measure": settings.measure}
            fact |= {"temperature": settings.temperature, "cost": found.cost, "milliseconds": found.milliseconds}
            if moved is not None:
                shifted_rows[entry.name] = Judged.of(found.answers[2], moved, settings, asked.label)
            facts.append(fact)
            if entry.placement is None:
                tick(examples * max(1, entry.forwards(asked.passes)))
    with stage("resampling the examples", show=show):
        groups = judging.session.data.groups
        differences = difference_table(rows, asked.against, groups).assign(data="data")
        if moved is not None:
            other = difference_table(shifted_rows, asked.against, moved.session.data.groups).assign(data="shifted")
            differences = pd.concat([differences, other], ignore_index=True)
    table = _table(facts, rows, shifted_rows, differences)
    errors = min(row.errors for row in rows.values())
    verdict = decide(table, differences[differences.data == "data"], asked.against, judging.n, errors)
    said = {"passes": asked.passes, "measure": asked.measure, "label": asked.label, "engine": asked.engine}
    said |= {"seed": judging.session.seed, "draws": judging.session.draws, "split": not field.separate}
    sizes = fitting.n, judging.n, 0 if moved is None else moved.n
    return Comparison(
        table, differences, verdict, _examples(rows, judging), rows, asked.against, said, *sizes, field.remarks,
        time.monotonic() - started, groups,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Found:
    """The answers of one rival on every part, and what they cost per example."""

    answers: list[Answer]
    cost: float
    milliseconds: float


def _run(entry: Entry, runs: PlacementRuns, placements: Sequence[Any], parts: Sequence[PlainPass]) -> _Found:
    placement = entry.placement
    scorer: Callable[[PlainPass], Any]
    if placement is None:
        scorer = scorer_of(entry.rival, parts[0])
    else:
        scorer = runs.rival(next(n for n, one in enumerate(placements) if one is placement))
    answers, times = [], []
    for seen in parts:
        started = time.perf_counter()
        given = scorer(seen)
        taken = time.perf_counter() - started
        answers.append(checked_answer(given, entry.name, seen))
        times.append((taken + (seen.seconds if answers[-1].passes is None else 0.0)) / seen.n)
    cost = answers[1].passes
    elsewhere = entry.kind == "stored" or isinstance(entry.rival, MeasuredPlacement)
    each = float("nan") if elsewhere else 1000 * min(times)  # the part that other work disturbed least
    return _Found(answers, 1.0 if cost is None else cost, each)


@contextmanager
def _explained(entry: Entry) -> Iterator[None]:
    """What fails in a user's own rival, as one clear error with its name."""
    try:
        yield
    except (BadInput, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        if entry.kind != "own":
            raise
        received = Phrase(f"{type(error).__name__}: {error}")
        remedy = "call it on a plain pass yourself first"
        raise BadInput(f"rival {entry.name!r} must run", "rivals", received, remedy) from error


def _check_errors(seen: PlainPass, name: str) -> None:
    assert seen.labels is not None
    right = int((seen.predictions == seen.labels).sum())
    if right in (0, seen.n):
        received = Phrase(f"{right} right predictions of {seen.n}")
        remedy = "pass more or harder examples" if right else "check that labels are in the order of the outputs"
        raise BadInput(f"{name} must hold right and wrong predictions to rank", name, received, remedy)


def _table(
    facts: Sequence[dict[str, Any]], rows: Mapping[str, Judged], shifted: Mapping[str, Judged], gaps: pd.DataFrame
) -> pd.DataFrame:
    area = gaps[(gaps.data == "data") & (gaps.score == "aurc")].set_index("name")
    found = []
    for fact in facts:
        name = fact["name"]
        values = rows[name].values()
        row = {"name": name, "kind": fact["kind"], "measure": fact["measure"]}
        row |= {"accuracy": values.pop("accuracy"), "aurc": values.pop("aurc")}
        row |= {"aurc_low": area.low[name], "aurc_high": area.high[name], **values}
        row |= {key: fact[key] for key in ("temperature", "cost", "milliseconds")}
        if name in shifted:
            row |= {f"shifted_{key}": value for key, value in shifted[name].values().items()}
        found.append(row)
    return pd.DataFrame(found).sort_values("aurc", kind="stable", ignore_index=True)


def _examples(rows: Mapping[str, Judged], seen: PlainPass) -> pd.DataFrame:
    ids = np.asarray([str(value) for value in seen.session.data.ids], dtype=object)
    frames = [
        pd.DataFrame(
            {
                "name": name,
                "id": ids,
                "label": seen.labels,
                "prediction": row.prediction,
                "correct": row.correct,
                "uncertainty": row.uncertainty,
            }
        )
        for name, row in rows.items()
    ]
    return pd.concat(frames, ignore_index=True)
