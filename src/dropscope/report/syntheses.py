"""Several runs of one study as one: random-effects estimates of each claim, with a verdict and a forest plot.

Owns which numbers belong together and what they decide. See `analysis.pooling` for the statistics and `forests` for
the figures.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from dropscope.analysis import LEAST_STUDIES, Estimate, PooledEffect, holm, pool_effects
from dropscope.atomic import output_folder
from dropscope.display import Column, layout
from dropscope.errors import BadInput, Phrase
from dropscope.report.claims import Claim, Evidence, Verdict, judge
from dropscope.report.forests import forest
from dropscope.report.records import ClaimsRecord, read_claims
from dropscope.report.writing import markdown, write_figure, write_table, write_text

METHOD = (
    "Random effects: variance between studies by restricted maximum likelihood (REML), interval of Hartung and Knapp "
    "with a factor of at least 1 and the effective number of studies. I² is the share of the variation that is "
    "between studies. A pooled number decides a claim by the margin and the level of the study's own rule, with at "
    f"least {LEAST_STUDIES} studies."
)
_TO: dict[str, Callable[[float], float]] = {
    "linear": float, "log": lambda x: float(np.log(x)), "correlation": lambda x: float(np.arctanh(x))
}  # fmt: skip
_BACK: dict[str, Callable[[float], float]] = {
    "linear": float, "log": lambda x: float(np.exp(x)), "correlation": lambda x: float(np.tanh(x))
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Part:
    """One number of a claim over all studies: the evidence of each that has it, and what they say together."""

    name: str
    evidence: dict[str, Evidence]  # by study
    pooled: PooledEffect | None  # on the evidence's scale
    estimate: Estimate  # on the scale that people read

    @property
    def predicted(self) -> tuple[float, float]:
        """Where the number lies in a further study."""
        if self.pooled is None or math.isnan(self.pooled.predicted[0]):
            return math.nan, math.nan
        back = _BACK[next(iter(self.evidence.values())).scale]
        return back(self.pooled.predicted[0]), back(self.pooled.predicted[1])


@dataclass(frozen=True, eq=False)
class PooledClaim:
    """A claim over several studies.

    Attributes:
        claim: The claim as the first study states it.
        parts: Its numbers.
        verdict: What they decide together.
        verdicts: What each study decided, by study.
        left_out: Why a study that judged the claim is not in it, by study.
    """

    claim: Claim
    parts: tuple[Part, ...]
    verdict: Verdict
    verdicts: dict[str, Verdict]
    left_out: dict[str, str]


@dataclass(frozen=True, eq=False)
class Synthesis:
    """Several runs of one study, claim by claim. Printed, it is a table.

    Attributes:
        study: Name of the study.
        studies: Name of each run.
        claims: The claims that at least two runs have a number for.
        table: A row per number: pooled value with interval, prediction interval, p-value, τ², I², Q, verdict.
        estimates: A row per number and run: its estimate, interval and weight.
        not_pooled: Claim → why it is not pooled.
        remarks: What to know before believing it.
        folder: Where tables, forest plots and the summary are; None where nothing was written.
    """

    study: str
    studies: tuple[str, ...]
    claims: tuple[PooledClaim, ...]
    table: pd.DataFrame
    estimates: pd.DataFrame
    not_pooled: dict[str, str]
    remarks: tuple[str, ...]
    folder: Path | None = None

    def __str__(self) -> str:
        """The table, as wide as the terminal."""
        return "\n".join(_lines(self))


def meta(folders: Sequence[str | Path], out: str | Path | None = None) -> Synthesis:
    """Pools several runs of one study: a random-effects estimate, a verdict and a forest plot for every claim.

    Claims are matched by name. Each run counts as one study of its own data: runs on the same data are not independent,
    and it is said where there are such. A claim is decided by its study's own rule and margin on the pooled number, and
    needs three runs.

    Args:
        folders: Of two or more finished studies of one kind (`dropscope study NAME`).
        out: Folder for tables, forest plots and `summary.md`; nothing is written without it.

    Returns:
        The pooled claims; `print` shows them.

    Raises:
        BadInput: For folders of different studies, the same run twice, or a folder without a finished study.

    Examples:
        >>> import dropscope as ds
        >>> pooled = ds.meta(["hippocampus", "heart", "prostate"], out="meta")  # doctest: +SKIP
        >>> print(pooled)  # doctest: +SKIP
    """
    folder = None if out is None else output_folder(out)
    records = _read(folders)
    names = _short_names([record.folder for record in records])
    by_name = dict(zip(names, records, strict=True))
    claims, not_pooled = _pool(by_name)
    remarks = _remarks(by_name, claims)
    made = Synthesis(
        records[0].study, tuple(names), tuple(claims), _table(claims), _estimates(claims), not_pooled,
        tuple(remarks), folder,
    )  # fmt: skip
    if folder is not None:
        _write(made, folder)
    return made


def _read(folders: Sequence[str | Path]) -> list[ClaimsRecord]:
    if isinstance(folders, str | Path) or len(folders) < 2:
        received = [str(folders)] if isinstance(folders, str | Path) else [str(each) for each in folders]
        raise BadInput("folders must be two or more", "folders", received, "name the folder of each study")
    paths = [Path(each) for each in folders]
    twice = [str(path) for path, count in Counter(path.resolve() for path in paths).items() if count > 1]
    if twice:
        raise BadInput("folders must be named once each", "folders", twice[0], "leave the second one out")
    records = [read_claims(path) for path in paths]
    kinds = {record.study: record.folder for record in records}
    if len(kinds) > 1:
        got = Phrase(", ".join(f"{study} in {path}" for study, path in kinds.items()))
        raise BadInput("folders must be of one study", "folders", got, "pool the folders of each study by themselves")
    for first, second in combinations(records, 2):
        if first.data == second.data and [c.evidence for c in first.claims] == [c.evidence for c in second.claims]:
            got = Phrase(f"the same numbers in {first.folder} and {second.folder}")
            raise BadInput("folders must hold different runs", "folders", got, "leave the copy out")
    return records


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many before it as make them different."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(part[-depth:]) for part in parts]
        if len({*names}) == len(names):
            return names
    return [str(path) for path in paths]


def _pool(records: dict[str, ClaimsRecord]) -> tuple[list[PooledClaim], dict[str, str]]:
    """The pooled claims, and why the others are not."""
    found: dict[str, dict[str, Claim]] = {}
    for name, record in records.items():
        for claim in record.claims:
            found.setdefault(claim.name, {})[name] = claim
    made, not_pooled = [], {}
    for name, claims in found.items():
        parts, left_out = _parts(claims)
        if parts:
            made.append((claims, parts, left_out))
        else:
            not_pooled[name] = _why_not(claims, left_out, len(records))
    adjusted = _adjust([part for _, parts, _ in made for part in parts])
    pooled, place = [], 0
    for claims, parts, left_out in made:
        own = tuple(adjusted[place : place + len(parts)])
        place += len(parts)
        first = next(iter(claims.values()))
        verdicts = {study: claim.verdict for study, claim in claims.items()}
        pooled.append(PooledClaim(first, own, _decide(first, own), verdicts, left_out))
    return pooled, not_pooled


def _parts(claims: dict[str, Claim]) -> tuple[list[Part], dict[str, str]]:
    """The numbers that two studies or more have, and why a study has none."""
    kept: dict[str, dict[str, Evidence]] = {}
    left_out: dict[str, str] = {}
    for study, claim in claims.items():
        if not claim.evidence and not claim.arithmetic:
            left_out[study] = claim.how
        for one in claim.evidence:
            if math.isnan(_error(one)):
                left_out[study] = one.estimate.method
            else:
                kept.setdefault(one.name, {})[study] = one
    parts = []
    for name, evidence in kept.items():
        rules = {(e.direction, e.bound, e.margin, e.scale) for e in evidence.values()}
        if len(rules) > 1:
            left_out |= dict.fromkeys(evidence, "its rule or margin is not that of the others")
        elif len(evidence) > 1:
            parts.append(_part(name, evidence))
    return parts, left_out


def _error(one: Evidence) -> float:
    """Standard error on the scale of the evidence, from its interval; NaN where there is none."""
    e, to = one.estimate, _TO[one.scale]
    with np.errstate(all="ignore"):
        known = all(math.isfinite(to(number)) for number in (e.value, e.low, e.high))  # on its scale, too
    if not known or not e.high > e.low:
        return math.nan
    normal = one.scale == "correlation" or e.n < 2
    quantile = stats.norm.ppf(0.975) if normal else stats.t.ppf(0.975, e.n - 1)
    error = float((to(e.high) - to(e.low)) / 2 / quantile)
    return error if math.isfinite(error) and error > 0 else math.nan


def _part(name: str, evidence: dict[str, Evidence]) -> Part:
    first = next(iter(evidence.values()))
    to, back = _TO[first.scale], _BACK[first.scale]
    null = first.bound if first.scale != "log" or first.bound > 0 else 1.0
    values = [float(to(e.estimate.value)) for e in evidence.values()]
    pooled = pool_effects(values, [_error(e) for e in evidence.values()], null=float(to(null)))
    ends = back(pooled.low), back(pooled.high)
    method = f"random effects over {len(values)} studies"
    return Part(name, evidence, pooled, Estimate(back(pooled.value), *ends, pooled.p, len(values), method))


def _adjust(parts: list[Part]) -> list[Part]:
    """The parts with Holm's p-values within each family."""
    made = list(parts)
    families = {next(iter(part.evidence.values())).family for part in parts} - {""}
    for family in families:
        members = [i for i, part in enumerate(parts) if next(iter(part.evidence.values())).family == family]
        for i, p in zip(members, holm([parts[i].estimate.p for i in members]), strict=True):
            made[i] = replace(parts[i], estimate=replace(parts[i].estimate, p=p))
    return made


def _decide(claim: Claim, parts: Sequence[Part]) -> Verdict:
    wanted = {one.name for one in claim.evidence}
    if any(part.estimate.n < LEAST_STUDIES for part in parts) or wanted - {part.name for part in parts}:
        return "undecided"
    evidence = [replace(next(iter(part.evidence.values())), estimate=part.estimate) for part in parts]
    return judge(evidence, one_is_enough=claim.one_is_enough)


def _why_not(claims: dict[str, Claim], left_out: dict[str, str], studies: int) -> str:
    if all(claim.arithmetic for claim in claims.values()):
        return "arithmetic on published numbers, the same in every study"
    counted = f"judged in {len(claims)} of {studies} studies"
    if len(claims) < 2:
        return counted
    return f"{counted}; {'; '.join(dict.fromkeys(left_out.values())) or 'no number in common'}"


def _remarks(records: dict[str, ClaimsRecord], claims: Sequence[PooledClaim]) -> list[str]:
    by_data: dict[str, list[str]] = {}
    for name, record in records.items():
        by_data.setdefault(record.data, []).append(name)
    remarks = [
        f"{' and '.join(names)} ran on the same data: they are not independent, and the pooled intervals are too narrow"
        for names in by_data.values()
        if len(names) > 1
    ]
    if len(records) < LEAST_STUDIES:
        remarks.append(f"{len(records)} studies decide nothing: a verdict needs {LEAST_STUDIES}")
    apart = sum(part.pooled is not None and part.pooled.i2 > 0.75 for claim in claims for part in claim.parts)
    if apart:
        remarks.append(
            f"{apart} of {sum(len(claim.parts) for claim in claims)} numbers differ strongly between studies (I² above "
            "75 %): their mean says little about a further study; look at the prediction interval"
        )
    return remarks


# --- tables and files -------------------------------------------------------------------------------------------------


def _table(claims: Sequence[PooledClaim]) -> pd.DataFrame:
    lines = []
    for claim in claims:
        for part in claim.parts:
            assert part.pooled is not None
            e, pooled = part.estimate, part.pooled
            line = {"claim": claim.claim.name, "number": part.name, "studies": pooled.studies, "value": e.value}
            line |= {"low": e.low, "high": e.high, "p": e.p}
            line |= {"predicted_low": part.predicted[0], "predicted_high": part.predicted[1], "tau2": pooled.tau2}
            lines.append(line | {"i2": pooled.i2, "q": pooled.q, "p_q": pooled.p_q, "verdict": claim.verdict})
    return pd.DataFrame(lines)


def _estimates(claims: Sequence[PooledClaim]) -> pd.DataFrame:
    lines = []
    for claim in claims:
        for part in claim.parts:
            assert part.pooled is not None
            for (study, one), weight in zip(part.evidence.items(), part.pooled.weights, strict=True):
                e = one.estimate
                line = {"claim": claim.claim.name, "number": part.name, "study": study, "value": e.value}
                line |= {"low": e.low, "high": e.high, "replicates": e.n, "weight": weight}
                lines.append(line | {"verdict": claim.verdicts[study]})
    return pd.DataFrame(lines)


def _lines(made: Synthesis) -> list[str]:
    rows = made.table.to_dict("records")
    columns = [
        Column("claim", [_label(row["claim"], row["number"]) for row in rows], breaks=24),
        Column("verdict", [row["verdict"] for row in rows]),
        Column("pooled (95 %)", [_interval(row["value"], row["low"], row["high"]) for row in rows], right=True),
        Column("I²", [f"{100 * row['i2']:.0f} %" for row in rows], right=True, rank=2),
        Column("studies", [str(row["studies"]) for row in rows], right=True, rank=3),
        Column("a further", [_ends(row["predicted_low"], row["predicted_high"]) for row in rows], right=True, rank=4),
    ]
    lines = layout(columns, shutil.get_terminal_size().columns)[0] if rows else ["no claim has a number in two studies"]
    head = f"{made.study}: {len(made.studies)} studies, {len(made.claims)} claims pooled, {len(made.not_pooled)} not"
    return [head, "", *lines, *(f"remark: {remark}" for remark in made.remarks)]


def _label(claim: str, number: str) -> str:
    return f"{claim}: {number}" if number else claim


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3g} ({_ends(low, high)})"


def _ends(low: float, high: float) -> str:
    return "–" if math.isnan(low) else f"{low:.3g} to {high:.3g}"


def _write(made: Synthesis, folder: Path) -> None:
    write_table(folder, "pooled", made.table, METHOD)
    write_table(folder, "estimates", made.estimates, "What each study says, and its weight in the pooled number")
    for claim in made.claims:
        corner = f"{len(claim.verdicts)} studies, random effects (REML)"
        write_figure(folder, f"forest-{file_name(claim.claim.name)}", forest(claim), corner)
    parts = [f"# {made.study}: {len(made.studies)} studies together", f"Studies: {', '.join(made.studies)}.", METHOD]
    parts += [f"Remark: {remark}." for remark in made.remarks]
    counts = Counter(claim.verdict for claim in made.claims)
    parts.append(", ".join(f"{verdict}: {count}" for verdict, count in counts.items()) + "." if counts else "")
    parts += [_words(claim) for claim in made.claims]
    if made.not_pooled:
        listed = pd.DataFrame({"claim": list(made.not_pooled), "why": list(made.not_pooled.values())})
        parts += ["## Not pooled", markdown(listed)]
    write_text(folder / "summary.md", "\n\n".join(part for part in parts if part) + "\n")


def _words(claim: PooledClaim) -> str:
    lines = []
    for part in claim.parts:
        assert part.pooled is not None
        e, pooled = part.estimate, part.pooled
        lines.append(
            f"- {part.name + ': ' if part.name else ''}{_interval(e.value, e.low, e.high)} over {pooled.studies} "
            f"studies, p = {e.p:.2g}; a further study {_ends(*part.predicted)}; τ² = {pooled.tau2:.3g}, I² = "
            f"{100 * pooled.i2:.0f} %, Q = {pooled.q:.3g} (p = {pooled.p_q:.2g})"
        )
    each = ", ".join(f"{study} {verdict}" for study, verdict in claim.verdicts.items())
    lines.append(f"- each by itself: {each}")
    if claim.claim.margin:
        lines.append(f"- margin: {claim.claim.margin}")
    lines += [f"- without {study}: {why}" for study, why in claim.left_out.items()]
    picture = f"![{claim.claim.name}](figures/forest-{file_name(claim.claim.name)}.png)"
    return "\n\n".join([f"**{claim.claim.statement}** — {claim.verdict}", "\n".join(lines), picture])


def file_name(name: str) -> str:
    """The name of a claim as that of a file."""
    return "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in name)
