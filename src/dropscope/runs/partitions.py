"""Partitions of labelled data: a part to choose or fit on, another to judge on, and one that nothing has used."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

import numpy as np
import torch
from torch import Tensor

from dropscope.analysis import group_numbers
from dropscope.data import Data
from dropscope.engine import Session
from dropscope.errors import BadInput, Phrase

_LEAST = 40  # examples, to choose on one half and judge on the other


def split(session: Session) -> tuple[Data, Data]:
    """Two halves of the examples, or of the groups; always the same for the same data."""
    first, second = halves(session)
    return session.data.part(first.tolist()), session.data.part(second.tolist())


def halves(session: Session) -> tuple[Tensor, Tensor]:
    """The places of the examples of each half of the data, rising.

    Raises:
        BadInput: For a model with dense outputs, data without labels, or too few examples.
    """
    first, second = portions(session, (0.5, 0.5))
    return first, second


def portions(session: Session, shares: Sequence[float]) -> list[Tensor]:
    """The places of the examples of each part of the data, rising; whole groups, where there are any.

    Args:
        session: The model and its data.
        shares: Of the examples, or of the groups, that each part gets: one to choose on, one to judge on, and others.

    Raises:
        BadInput: For a model with dense outputs, data without labels, or too few examples.
    """
    check_labelled(session)
    data = session.data
    units = np.arange(data.n) if data.groups is None else group_numbers(data.groups)
    count = int(units.max()) + 1
    if data.n < _LEAST or count < len(shares):
        received = Phrase(f"{data.n} examples" + ("" if data.groups is None else f" in {count} groups"))
        what = f"data must hold at least {_LEAST} labelled examples, some to choose on and others to judge on"
        raise BadInput(what, "data", received, "pass more examples, or score one placement with uncertainty")
    ends = [ceil(round(count * share, 6)) for share in accumulate(shares)]
    part = np.empty(count, dtype=np.int64)
    part[np.random.default_rng(0).permutation(count)] = np.searchsorted(ends, np.arange(count), side="right")
    return [torch.from_numpy(np.flatnonzero(part[units] == number)) for number in range(len(shares))]


def check_labelled(session: Session, name: str = "data") -> Tensor:
    """The labels of a session's data, one for each example.

    Raises:
        BadInput: For a model with dense outputs, or data without labels; `name` is the argument that they come from.
    """
    if session.dense:
        received = Phrase("one prediction per voxel, pixel or label")
        raise BadInput("model must predict whole examples", "model", received, "use maps, or uncertainty")
    labels = session.data.labels
    if labels is None:
        remedy = "pass (inputs, labels), or use uncertainty"
        raise BadInput(f"{name} must have labels to judge by", name, Phrase("inputs without labels"), remedy)
    return labels
