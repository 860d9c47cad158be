"""What a comparison checks before any work: arguments, data, who is compared, and on which examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.checks import check_choice, check_passes
from dropscope.deploy.rivals.catalogue import GROUPS, TABLE, Entry, entries_of
from dropscope.deploy.rivals.forwards import plain_pass
from dropscope.deploy.rivals.repeated import SEVERAL
from dropscope.deploy.rivals.stored import StoredProbabilities
from dropscope.engine import Session, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.progress import stage
from dropscope.runs import check_labelled, halves

LABELS = ("mean", "plain")
REFERENCE = "max_probability"
_LEAST = 20  # examples of each part
_GLANCE = 32  # examples that show what a model allows, and how long it takes


@dataclass(frozen=True)
class Asked:
    """Arguments that need neither model nor data to be checked."""

    passes: int
    measure: str
    label: str
    against: str
    engine: str

    @classmethod
    def checked(cls, passes: int, measure: str, label: str, against: str, engine: str) -> Asked:
        """Raises `BadInput` for a value that cannot be used."""
        check_passes(passes)
        check_choice(measure, "measure", ("best", *SEVERAL))
        check_choice(label, "label", LABELS)
        return cls(passes, measure, label, against, engine)


@dataclass(frozen=True, eq=False)
class Field:
    """A comparison that is checked: who is compared, and on which examples."""

    entries: list[Entry]
    fitting: Session
    judging: Session
    shifted: Session | None
    places: tuple[Tensor, Tensor]  # of the fitting and the judging examples in their data
    separate: bool  # whether the fitting examples are a data set of their own
    seconds: float  # of one plain pass of an example, roughly
    remarks: tuple[str, ...]


def prepare(
    model: nn.Module, data: Any, rivals: Any, fit: Any, shifted: Any, asked: Asked, options: Any, *, show: bool | None
) -> Field:
    with stage("reading model and data", show=show):
        session = open_session(model, data, **options)
        _check_labelled(session, "data")
        whole = session.data
        if fit is None:
            first, second = halves(session)
            fitting, judging = (session.with_data(whole.part(part.tolist())) for part in (first, second))
        else:
            fitting, judging = _other(model, fit, options, session, "fit"), session
            first, second = torch.arange(fitting.data.n), torch.arange(whole.n)
        moved = None if shifted is None else _other(model, shifted, options, session, "shifted")
        glance = plain_pass(session.with_data(whole.part(range(min(_GLANCE, whole.n)))))
    entries, remarks = entries_of(GROUPS if rivals is None else rivals, glance)
    if asked.against == REFERENCE and all(entry.name != REFERENCE for entry in entries):
        entries.insert(0, Entry(REFERENCE, TABLE[REFERENCE].rival, TABLE[REFERENCE].kind))
    check_choice(asked.against, "against", [entry.name for entry in entries])
    session.resolve([entry.placement for entry in entries if entry.placement is not None])
    for entry in entries:
        if isinstance(entry.rival, StoredProbabilities):
            entry.rival.check("data", whole.n, session.classes)
            if fit is not None:
                entry.rival.check("fit", fitting.data.n, session.classes)
            if moved is not None:
                entry.rival.check("shifted", moved.data.n, session.classes)
    return Field(
        entries, fitting, judging, moved, (first, second), fit is not None, glance.seconds / glance.n, tuple(remarks)
    )


def _other(model: nn.Module, data: Any, options: Any, session: Session, name: str) -> Session:
    """A session on further data, which have ids and groups of their own."""
    shared = {key: value for key, value in options.items() if key not in ("ids", "groups") or isinstance(value, str)}
    opened = open_session(model, data, **shared)
    _check_labelled(opened, name)
    return session.with_data(opened.data)


def _check_labelled(session: Session, name: str) -> None:
    labels = check_labelled(session, name)
    if len(labels.unique()) < 2:
        received = Phrase(f"{len(labels)} examples of class {int(labels[0])}")
        raise BadInput(f"{name} must hold examples of two classes or more", name, received, "shuffle before you cut")
    if len(labels) < _LEAST:
        received, remedy = Phrase(f"{len(labels)} examples"), "pass more examples"
        raise BadInput(f"{name} must hold at least {_LEAST} labelled examples", name, received, remedy)
