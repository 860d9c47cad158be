"""Catalogue of rivals: what each name stands for, what it needs of a model, and which are compared by default.

Owns how texts, arrays, networks and functions that a user gives become rivals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from dropscope.deploy.rivals import single
from dropscope.deploy.rivals.dropout import MeasuredPlacement
from dropscope.deploy.rivals.fitted import Laplace, Mahalanobis, MaxLogitPNorm, Temperature
from dropscope.deploy.rivals.forwards import PlainPass
from dropscope.deploy.rivals.repeated import Augmentation, Ensemble, MonteCarloBatchNorm, norms
from dropscope.deploy.rivals.stored import SUFFIXES, StoredProbabilities
from dropscope.engine import Session
from dropscope.errors import BadInput, Phrase, nearest
from dropscope.injection import resolve
from dropscope.placement import Placement

Kind = Literal["one pass", "last layer", "several forwards", "dropout", "stored", "own"]
GROUPS = ("rivals", "placements")  # words for those that are compared by default
_PLACEMENTS = ("own", "last=0.1", "last=0.3", "last=0.5", "all=0.05", "all=0.1")


@dataclass(frozen=True)
class Known:
    """A rival with a name.

    Attributes:
        rival: A function of the plain pass, or a record with `fit`.
        kind: How it comes to its answer.
        reference: Where it is from.
        lacks: From a plain pass to what the model or its data lack for it; empty where they lack nothing.
    """

    rival: Any
    kind: Kind
    reference: str
    lacks: Callable[[PlainPass], str] = lambda seen: ""


def _no_logits(seen: PlainPass) -> str:
    return "" if seen.logits is not None else "a model that returns logits"


def _no_features(seen: PlainPass) -> str:
    return "" if seen.features is not None else "a model whose final layer is a Linear with one row per example"


def _no_head(seen: PlainPass) -> str:
    return "" if seen.weight is not None else "a model whose logits come from a final Linear layer"


def _no_images(seen: PlainPass) -> str:
    images = any(t.dim() == 4 and t.is_floating_point() for t in seen.session.data.batches[0].call.tensors)
    return "" if images else "images [n, C, H, W]"


def _no_norms(seen: PlainPass) -> str:
    return "" if norms(seen.session.running) else "a model with batch normalisation"


TABLE: dict[str, Known] = {
    "max_probability": Known(single.max_probability, "one pass", "Hendrycks and Gimpel 2017"),
    "entropy": Known(single.entropy, "one pass", "Shannon 1948"),
    "margin": Known(single.margin, "one pass", "Scheffer et al. 2001"),
    "max_logit": Known(single.max_logit, "one pass", "Hendrycks et al. 2022", _no_logits),
    "energy": Known(single.energy, "one pass", "Liu et al. 2020", _no_logits),
    "generalised_entropy": Known(single.generalised_entropy, "one pass", "Liu et al. 2023"),
    "max_logit_pnorm": Known(MaxLogitPNorm(), "one pass", "Cattelan and Silva 2024"),
    "temperature": Known(Temperature(), "one pass", "Guo et al. 2017"),
    "laplace": Known(Laplace(), "last layer", "Daxberger et al. 2021", _no_head),
    "mahalanobis": Known(Mahalanobis(), "last layer", "Lee et al. 2018", _no_features),
    "mc_batchnorm": Known(MonteCarloBatchNorm(), "several forwards", "Teye et al. 2018", _no_norms),
    "tta_flips": Known(Augmentation(("flips",)), "several forwards", "Ashukha et al. 2020", _no_images),
    "tta_crops": Known(Augmentation(("flips", "crops")), "several forwards", "Ashukha et al. 2020", _no_images),
}


@dataclass(frozen=True, eq=False)
class Entry:
    """A row to be: its name, what answers (a placement's is made later), how it comes to its answer."""

    name: str
    rival: Any
    kind: Kind

    @property
    def placement(self) -> Placement | None:
        """Of dropout; None for any other rival."""
        return self.rival if isinstance(self.rival, Placement) else None

    def forwards(self, passes: int) -> int:
        """Forwards of an example at most, beside the plain pass that all rivals share."""
        return passes if self.placement is not None else getattr(self.rival, "forwards", 0)


def usual_rivals(glance: PlainPass) -> tuple[list[Entry], list[str]]:
    """Every rival of the table that the model allows; with a remark for each that it does not."""
    found, remarks = [], []
    for name, known in TABLE.items():
        if reason := known.lacks(glance):
            remarks.append(f"{name} is left out: it needs {reason}")
        else:
            found.append(Entry(name, known.rival, known.kind))
    return found, remarks


def usual_placements(session: Session) -> tuple[list[Entry], list[str]]:
    """A handful of placements that every model allows, or nearly every one."""
    found = [Entry(text, Placement.parse(text), "dropout") for text in _PLACEMENTS if _resolves(text, session)]
    return found, [] if found else ["no placement of dropout is compared: the model has no site for one of the usual"]


def _resolves(text: str, session: Session) -> bool:
    if text == "own" and not session.site_map.has_own:
        return False
    try:
        return bool(resolve(Placement.parse(text), session.site_map))
    except BadInput:
        return False


def entries_of(given: Mapping[str, Any] | Sequence[Any], glance: PlainPass) -> tuple[list[Entry], list[str]]:
    """An entry for each rival that a user gives, under its key or, in a sequence, under its own name; and remarks.

    Raises:
        BadInput: For an empty one, a name twice, or anything that is no rival or that the model does not allow.
    """
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        remedy = "write rivals=['entropy', 'last=0.5'], or a dict with a name for each"
        raise BadInput("rivals must be a dict or a list", "rivals", given, remedy)
    pairs = list(given.items()) if isinstance(given, Mapping) else [(_own_name(one), one) for one in given]
    entries: list[Entry] = []
    remarks: list[str] = []
    for name, value in pairs:
        usual: tuple[list[Entry], list[str]] = [], []
        if isinstance(value, str) and value in GROUPS:
            usual = usual_rivals(glance) if value == "rivals" else usual_placements(glance.session)
        else:
            entries.append(_entry(str(name), value))
            _check_allowed(entries[-1], glance)
        entries += usual[0]
        remarks += usual[1]
    names = [entry.name for entry in entries]
    if not names or len(set(names)) < len(names):
        remedy = "write rivals={'mine': ..., 'theirs': ...}, each name once"
        raise BadInput("rivals must be one or more, each with its own name", "rivals", names, remedy)
    return entries, remarks


def _check_allowed(entry: Entry, glance: PlainPass) -> None:
    known = next((row for row in TABLE.values() if row.rival is entry.rival), None)
    if known is not None and (reason := known.lacks(glance)):
        what, received = f"rival {entry.name!r} must have {reason}", Phrase("none here")
        raise BadInput(what, "rivals", received, f"leave {entry.name} out")


def _own_name(value: Any) -> str:
    if isinstance(value, str | Path | Placement):
        return str(value)
    return getattr(value, "name", None) or getattr(value, "__name__", None) or type(value).__name__.lower()


def _entry(name: str, value: Any) -> Entry:
    if isinstance(value, str):
        return _named(name, value)
    if isinstance(value, Placement | MeasuredPlacement):
        return Entry(name, value, "dropout")
    if isinstance(value, nn.Module):
        return Entry(name, Ensemble([value]), "several forwards")
    if isinstance(value, Path | Tensor | np.ndarray | Mapping | StoredProbabilities):
        stored = value if isinstance(value, StoredProbabilities) else StoredProbabilities.of(value, name)
        return Entry(name, stored, "stored")
    if isinstance(value, list | tuple) and value and all(isinstance(one, nn.Module | str | Path) for one in value):
        return Entry(name, Ensemble(list(value)), "several forwards")
    if hasattr(value, "fit") or callable(value):
        listed = next((known.kind for known in TABLE.values() if known.rival is value), None)
        many = isinstance(value, Ensemble | Augmentation | MonteCarloBatchNorm)
        return Entry(name, value, listed or ("several forwards" if many else "own"))
    remedy = "give a placement, the name of a rival, an array [M, N, C], networks, or a function of the plain pass"
    raise BadInput(f"rival {name!r} must be one", "rivals", Phrase(type(value).__name__), remedy)


def _named(name: str, text: str) -> Entry:
    if text in TABLE:
        return Entry(name, TABLE[text].rival, TABLE[text].kind)
    if Path(text).suffix in SUFFIXES and (os.sep in text or "=" not in text):
        return Entry(name, StoredProbabilities.of(text), "stored")
    try:
        return Entry(name, Placement.parse(text), "dropout")
    except BadInput as error:
        if error.name == "noise" or "=" in text:
            raise
        what = "rivals must be names in the table, placements, or files of probabilities"
        raise BadInput(what, "rivals", text, nearest(text, [*TABLE, *GROUPS])) from error
