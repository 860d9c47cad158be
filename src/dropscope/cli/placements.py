"""Placements of a command: a grid over sites, texts, or a file with a placement a line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from dropscope.errors import BadInput, Phrase, first_line
from dropscope.placement import RATES, Placement, PlacementGrid

_COMMENT = re.compile(r"(^|\s)#.*")  # a # inside a name is the number of a call: fc1#2=0.5
_RATE = re.compile(r"=[\d.]*\d")
_REMEDY = "write placements='own;own*2;fc1=0.5', or name a file with a placement a line"


@dataclass(frozen=True)
class PlacementOptions:
    """The placements of a sweep.

    Attributes:
        sites: Sites, comma-separated. Every subset of them is tried, at every rate.
        placements: Placements to try beside or instead of the subsets: texts divided by ';', such as 'own;own*2', or a
            file with a placement a line and # before comments.
        rates: Rates of dropping, comma-separated.
        positions: Positions, comma-separated.
        noise: Kinds of noise, comma-separated: bernoulli, gaussian, multinomial, or registered by the model's code.
    """

    sites: Sequence[str] = ()
    placements: str | None = None
    rates: Sequence[float] = RATES
    positions: Sequence[str] = ("auto",)
    noise: Sequence[str] = ("bernoulli",)

    def chosen(self) -> Sequence[Placement]:
        """The placements: those that were named first, then the grid.

        Raises:
            BadInput: Where there are none, or one cannot be read.
        """
        if not self.sites and self.placements is None:
            remedy = "name sites that dropscope sites lists, or let dropscope try choose"
            raise BadInput("--sites or --placements must be given", "sites", Phrase("neither"), remedy)
        named = [] if self.placements is None else read_placements(self.placements)
        if not self.sites:
            self._refuse_grid()
            return named
        grid = PlacementGrid(self.sites, self.rates, self.positions, self.noise)
        return [*named, *grid] if named else grid

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What a model refuses about a placement, in the words of the option that named it."""
        try:
            yield
        except BadInput as error:
            if error.name != "placement":
                raise
            received, remedy, name = error.received, error.remedy, "placements"
            if re.split("[#@=]", str(received))[0] in {re.split("[#@]", site)[0] for site in self.sites}:
                received, remedy, name = _RATE.sub("", str(received)), _RATE.sub("", remedy), "sites"
            raise BadInput(error.what.replace("placement", name, 1), name, received, remedy) from error

    def _refuse_grid(self) -> None:
        """Refuses what says how a grid is made where there is none."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("rates", "positions", "noise") and value != field.default:
                what = f"{field.name} must go with sites, whose subsets are tried"
                raise BadInput(what, field.name, list(value), f"write sites=fc1, or leave {field.name} out")


def read_placements(text: str) -> list[Placement]:
    """Placements from texts divided by ';', or from the file of that name.

    >>> [str(placement) for placement in read_placements("own; fc1=.5")]
    ['own', 'fc1=0.5']

    Raises:
        BadInput: For a placement that cannot be read, with its line; for a file that is missing or empty.
    """
    if os.path.isfile(text):  # many placements are no name of a file, however long
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            received = Phrase(f"{text}: {first_line(error)}")
            raise BadInput("placements must be a readable file of text", "placements", received, _REMEDY) from error
        numbered = [(f"line {number} of {text}", line) for number, line in enumerate(lines, 1)]
    else:
        if not re.search(r"[=;*]|^own\b", text):
            raise BadInput("placements must be a file that exists, or placements", "placements", text, _REMEDY)
        parts = text.split(";")
        numbered = [(f"number {number} of {len(parts)}", part) for number, part in enumerate(parts, 1)]
    found = []
    for where, line in numbered:
        written = _COMMENT.sub("", line).strip()
        if not written:
            continue
        try:
            found.append(Placement.parse(written))
        except BadInput as error:
            received = Phrase(f"{written!r} ({where}): {error.what}")
            name = "noise" if error.name == "noise" else "placements"  # the model's code may register that noise
            raise BadInput("placements must hold placements", name, received, error.remedy) from error
    if not found:
        received = Phrase(f"none in {text!r}")
        raise BadInput("placements must hold at least one placement", "placements", received, _REMEDY)
    return found
