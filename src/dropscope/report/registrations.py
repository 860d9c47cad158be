"""Preregistration: claims, margins, seeds and options of a run, with their hash, in a file that is older than the run.

Owns the file, what differs between it and a run, and the sentence about it. Which claims a study has, and what a run's
setting is, the studies say.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from dropscope import __version__
from dropscope.atomic import atomic_write, read_json
from dropscope.errors import BadInput, Phrase
from dropscope.report.claims import ALPHA, Claim

STATEMENT = "preregistration.json"  # in the folder of a run: what its registration said
_NOT_OF_THE_RESULT = ("out", "device", "progress", "workers", "preregister", "beside")
_LISTED = 12  # differences in a summary
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ClaimRule:
    """A claim as it is registered: before there is a number.

    Attributes:
        name: Of the claim; `*` stands for layers, measures and the like.
        statement: What is claimed.
        rule: What decides it.
        margin: The margin in words, as the judged claim has it; empty where it has none.
    """

    name: str
    statement: str
    rule: str
    margin: str = ""


@dataclass(frozen=True)
class Registration:
    """What a run of a study commits itself to, in values that JSON has."""

    record: Mapping[str, Any]

    @classmethod
    def of(
        cls, study: str, options: Any, setting: Mapping[str, Any], seeds: Sequence[int], rules: Sequence[ClaimRule],
        sources: Iterable[ModuleType], files: Sequence[str] = (),
    ) -> Registration:  # fmt: skip
        """Of a run that is planned.

        Args:
            study: Name of the study.
            options: Its options, a dataclass; what does not touch results (folder, device) is left out.
            setting: The specification of the run, with the fingerprints of data and weights.
            seeds: Of its networks.
            rules: Its claims.
            sources: Modules that hold the rules: their code is registered by its hash.
            files: Options that are paths, for which the fingerprints in `setting` stand.
        """
        chosen = {name: value for name, value in asdict(options).items() if name not in (*_NOT_OF_THE_RESULT, *files)}
        code = hashlib.sha256("".join(inspect.getsource(source) for source in sources).encode()).hexdigest()
        record = {
            "study": study, "dropscope": __version__, "seeds": list(seeds), "options": chosen, "setting": dict(setting),
            "level": ALPHA, "claims": {rule.name: asdict(rule) for rule in rules}, "rules": code[:16],
        }  # fmt: skip
        return cls(json.loads(json.dumps(record, default=str)))

    def write(self, path: str | Path, folder: Path) -> str:
        """Writes the registration of a run that has not begun; returns its hash.

        Raises:
            BadInput: Where the file is there already, or the run has begun.
        """
        target = Path(path)
        if target.exists():
            raise BadInput("preregister must name a new file", "preregister", str(path), "choose another name")
        if (folder / "study.json").exists():
            what = f"preregister must come before a run, and {folder} holds one"
            raise BadInput(what, "preregister", str(path), "choose another folder with out")
        content = {**self.record, "registered": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        content["hash"] = _hash(content)
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        atomic_write(target, lambda part: part.write_text(text, encoding="utf-8"))
        return str(content["hash"])

    def check(self, path: str | Path | None, folder: Path) -> None:
        """Compares a run with its registration and keeps what differs in the run's folder, for its summary.

        Without a registration it forgets an earlier one.

        Raises:
            BadInput: Where the file is not there, or is no registration of this study.
        """
        if path is None:
            (folder / STATEMENT).unlink(missing_ok=True)
            return
        known = _read(path, str(self.record["study"]))
        differences = list(_differences(known, self.record))
        if _hash(known) != known["hash"]:
            differences.insert(0, f"the file itself, whose content has the hash {_hash(known)}")
        begun = folder / "study.json"
        if begun.exists():
            at = datetime.fromtimestamp(begun.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
            if at < known["registered"]:
                differences.append(f"the run began at {at}, before it was registered")
        kept = {name: known[name] for name in ("hash", "registered", "claims")}
        text = json.dumps({"file": str(path), **kept, "differences": differences}, indent=2, ensure_ascii=False) + "\n"
        atomic_write(folder / STATEMENT, lambda part: part.write_text(text, encoding="utf-8"))


def _read(path: str | Path, study: str) -> dict[str, Any]:
    """The content of a registration of this study."""
    if not Path(path).is_file():
        remedy = "write the registration first, with the study's preregister"
        raise BadInput("preregister must be a file that was written before", "preregister", str(path), remedy)
    known = read_json(Path(path))
    if not _holds(known, {"study": str, "hash": str, "registered": str, "options": dict, "setting": dict}):
        remedy = "name a file that preregister wrote, or a new one"
        raise BadInput("preregister must be a registration", "preregister", str(path), remedy)
    if known["study"] != study:
        got = Phrase(f"one of {known['study']} in {path}")
        raise BadInput(f"preregister must be a registration of {study}", "preregister", got, "choose another file")
    return known


def _holds(content: Any, wanted: Mapping[str, type]) -> bool:
    """Whether a record has these fields, and rules of claims."""
    rules = content.get("claims") if isinstance(content, dict) else None
    sound = isinstance(rules, dict) and all(isinstance(rule, dict) and "margin" in rule for rule in rules.values())
    if not sound or not all(isinstance(content.get(name), kind) for name, kind in wanted.items()):
        return False
    return not _SURROGATES.search(json.dumps(content, ensure_ascii=False))  # which no file can hold


def registration_words(folder: Path, claims: Sequence[Claim]) -> str | None:
    """The sentence about a run's registration; None where it has none."""
    if not (folder / STATEMENT).exists():
        return None
    kept = read_json(folder / STATEMENT)
    if not _holds(kept, {"file": str, "hash": str, "registered": str, "differences": list}):
        what, remedy = f"{STATEMENT} must be as it was written", "remove it and run the study's command again"
        raise BadInput(what, str(folder / STATEMENT), Phrase("something else"), remedy)
    differences = [*kept["differences"], *_unregistered(kept["claims"], claims)]
    head = f"preregistered, hash {kept['hash']} ({kept['registered']}, {Path(kept['file']).name})"
    if not differences:
        return f"{head[0].upper()}{head[1:]}: data, options, seeds, claims and margins are as registered."
    shown = [str(one) for one in differences[:_LISTED]]
    shown += [f"{len(differences) - _LISTED} more"] * (len(differences) > _LISTED)
    return f"{head[0].upper()}{head[1:]}, **but not as registered**: " + "; ".join(shown) + "."


def _unregistered(rules: Mapping[str, Any], claims: Sequence[Claim]) -> list[str]:
    lines = []
    for claim in claims:
        if claim.arithmetic:
            continue
        rule = next((rule for name, rule in rules.items() if fnmatchcase(claim.name, name)), None)
        if rule is None:
            lines.append(f"the claim {claim.name} was not registered")
        elif rule["margin"] and claim.margin and rule["margin"] != claim.margin:
            lines.append(f"the margin of {claim.name} is {claim.margin!r}, registered {rule['margin']!r}")
    return lines


def _differences(known: Mapping[str, Any], record: Mapping[str, Any], place: str = "") -> Iterable[str]:
    """Every value of a run that is not the registered one, by its path."""
    for name in sorted({*known, *record} - {"hash", "registered"}):
        before, now = known.get(name), record.get(name)
        where = f"{place}{name}".removeprefix("options.")
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{where}." if name != "options" else "options.")
        elif before != now and name == "rules" and not place:
            yield "the code of the rules"
        elif before != now:
            yield f"{where} {_short(now)}, registered {_short(before)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _hash(content: Mapping[str, Any]) -> str:
    """Of everything but the hash itself."""
    kept = {name: value for name, value in content.items() if name != "hash"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
