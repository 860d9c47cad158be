"""Folders of tunings: what was asked and found, so that one goes on where it was killed and is read again.

`tuning.json` is what was asked, `race.json` what the race came to, `evidence/` and `judged/` are runs, `choice.json`
and the tables what was found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import atomic_write, read_json, same_spec
from dropscope.deploy.tuning.choices import TunedChoice
from dropscope.deploy.tuning.plans import TuningPlan
from dropscope.errors import BadInput, Phrase
from dropscope.placement import Placement
from dropscope.runs import Judgement, Searched, open_run

_ASKED, _RACE, _FOUND = "tuning.json", "race.json", "choice.json"
_TABLES = ("table", "differences", "deferral", "examples")


@dataclass(frozen=True, eq=False)
class Record:
    """The folder of a tuning; None keeps nothing."""

    folder: Path | None

    @classmethod
    def of(cls, folder: Path | None, spec: Mapping[str, Any]) -> Record:
        """The record of a tuning that begins or goes on.

        Raises:
            BadInput: Where the folder holds another one.
        """
        if folder is not None:
            file = folder / _ASKED
            if file.exists():
                same_spec(_dict(read_json(file), file).get("asked", {}), spec, file, "choose another folder for out")
            else:
                _write_json(file, {"asked": dict(spec)})
        return cls(folder)

    def at(self, name: str) -> Path | None:
        """A folder in this one."""
        return None if self.folder is None else self.folder / name

    def settled(self, plan: TuningPlan) -> TuningPlan:
        """The plan that the tuning began with, however fast the machine is now."""
        if self.folder is None:
            return plan
        file = self.folder / _ASKED
        record = _dict(read_json(file), file)
        if "plan" not in record:
            _write_json(file, {**record, "plan": plan.facts()})
            return plan
        known = _dict(record["plan"], file)
        opening = tuple(Placement.parse(text) for text in known["opening"])
        return replace(plan, whole=known["whole"], opening=opening, remarks=tuple(known["remarks"]))

    @property
    def searched(self) -> Searched | None:
        """What the race came to, where it is over."""
        if self.folder is None or not (self.folder / _RACE).exists():
            return None
        known = _dict(read_json(self.folder / _RACE), self.folder / _RACE)
        finalists = [Placement.parse(text) for text in known["finalists"]]
        return Searched(finalists, pd.read_csv(self.folder / "search.csv"), int(known["predictions"]))

    def keep(self, searched: Searched) -> None:
        """Keeps what a race came to."""
        if self.folder is None:
            return
        _write_table(self.folder / "search.csv", searched.rows)
        texts = [str(placement) for placement in searched.finalists]
        _write_json(self.folder / _RACE, {"finalists": texts, "predictions": searched.predictions})

    def write(self, choice: TunedChoice) -> None:
        """Writes what was found; the record last, so that a folder with one is whole."""
        if self.folder is None:
            return
        for name in _TABLES:
            _write_table(self.folder / f"{name}.csv", getattr(choice, name))
        if choice.comparison is not None:
            choice.comparison.save(self.folder / "comparison")
        _write_json(self.folder / _FOUND, choice.facts())


def open_choice(folder: str | Path) -> TunedChoice:
    """Reads a tuning from its folder.

    Args:
        folder: What `tune` was given as `out`.

    Returns:
        The `TunedChoice`, without model and data: give both to its `predictor`.

    Raises:
        BadInput: For a folder that holds no finished tuning.

    Examples:
        >>> import tempfile, torch
        >>> from dropscope import tune
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        >>> data = torch.randn(200, 4), torch.randint(0, 3, (200,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = tune(net, data, passes=8, rivals=["entropy"], out=folder, progress=False)
        ...     str(open_choice(folder)) == str(first)
        True
    """
    at = Path(folder)
    if not (at / _FOUND).is_file() or not (at / _ASKED).is_file():
        got = Phrase(f"{str(folder)!r}, without {_FOUND} or {_ASKED}")
        raise BadInput("folder must hold a finished tuning", "folder", got, "pass what tune was given as out")
    facts = _dict(read_json(at / _FOUND), at / _FOUND)
    try:
        tables = {name: pd.read_csv(at / f"{name}.csv", dtype={"id": str}) for name in _TABLES}
        search = pd.read_csv(at / "search.csv") if (at / "search.csv").exists() else None
        placement = facts["placement"]
        return TunedChoice(
            placement=None if placement is None else Placement.parse(placement), measure=facts["measure"],
            passes=facts["passes"], judgement=Judgement(**facts["judgement"]), evidence=open_run(at / "evidence"),
            judged=open_run(at / "judged"), search=search, objective=facts["objective"], sizes=facts["sizes"],
            predictions=facts["predictions"], share=facts["share"], remarks=tuple(facts["remarks"]),
            seconds=facts["seconds"], folder=at, **tables,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OSError) as error:
        got = Phrase(f"{str(folder)!r}, which is damaged")
        raise BadInput("folder must hold a finished tuning", "folder", got, "run tune again") from error


def _write_table(file: Path, table: pd.DataFrame) -> None:
    atomic_write(file, lambda part: table.to_csv(part, index=False))


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2)
    atomic_write(file, lambda part: part.write_text(text + "\n", encoding="utf-8"))


def _dict(content: Any, file: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        got = Phrase(f"{file}, which is damaged")
        raise BadInput("out must hold a tuning", "out", got, "delete the file, or choose another folder")
    return content
