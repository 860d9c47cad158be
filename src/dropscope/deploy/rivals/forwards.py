"""Forwards that rivals start from: one plain pass over a data set with its logits and features, and several forwards.

Owns what a rival sees of a model. See `answers` for what it gives back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.data import Batch
from dropscope.deploy.rivals.answers import Answer
from dropscope.engine import Session
from dropscope.measures import Measure
from dropscope.measures.statistics import PassStatistics
from dropscope.model import output_tensor, probabilities

_EQUAL = 1e-4  # between a model's logits and those of its last layer, of the largest


@dataclass(frozen=True, eq=False)
class PlainPass:
    """One plain pass over some examples: all that a rival of one pass needs.

    Attributes:
        session: The model and its data: `session.data.batches` hold the inputs, `session.forward(call)` runs the model.
        probabilities: `[n, C]`, float32 on the CPU, as all tensors here.
        logits: `[n, C]`; None where the model returns probabilities.
        features: `[n, D]`, what the last layer gets; None for a model without a final linear layer.
        weight: `[C, D]` of the last layer, where the logits are its output; None elsewhere.
        bias: `[C]` of that layer, where it has one.
        labels: `[n]`; None without labels.
        seconds: What the forwards took.
        source: Which data they are of: "data", "fit" or "shifted".
        positions: Their places in that data, `[n]`.
    """

    session: Session
    probabilities: Tensor
    logits: Tensor | None
    features: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    labels: Tensor | None
    seconds: float
    source: str
    positions: Tensor

    @property
    def n(self) -> int:
        """How many examples there are."""
        return len(self.probabilities)

    @property
    def predictions(self) -> Tensor:
        """The most probable class of each, `[n]`."""
        return self.probabilities.argmax(1)


def plain_pass(session: Session, source: str = "data", positions: Tensor | None = None) -> PlainPass:
    """Runs the model once over the data of a session."""
    head = _head(session)
    seconds, outputs, found = 0.0, [], []
    with torch.no_grad(), session.sealed(), _inputs_of(head) as inputs:
        _raw(session, session.data.batches[0].first_two())  # what is set up by a first forward is not timed
        inputs.clear()
        for batch in session.data.batches:
            started = time.perf_counter()
            raw = _raw(session, batch)
            found.append(probabilities(raw, session.outputs).float().cpu())
            seconds += time.perf_counter() - started
            outputs.append(_logits(raw, session))
    features = _joined_features(inputs, [len(part) for part in found])
    logits = (
        None if any(part is None for part in outputs) else torch.cat([part for part in outputs if part is not None])
    )
    weight = bias = None
    if head is not None and features is not None and logits is not None:
        weight, bias = _parameters(head, features, logits)
    places = torch.arange(session.data.n) if positions is None else positions
    p, labels = torch.cat(found), session.data.labels
    return PlainPass(session, p, logits, features, weight, bias, labels, seconds, source, places)


def several_forwards(
    seen: PlainPass, forwards: Sequence[Callable[[Batch], Tensor]], rows: Sequence[Measure], passes: float | None = None
) -> Answer:
    """The mean over several forwards of every example, and each measure of them; statistics are kept, not the forwards.

    Args:
        seen: The plain pass on the same examples.
        forwards: Each from a batch to probabilities `[n, C]`, on any device.
        rows: Measures of statistics.
        passes: What they cost, in plain passes; None counts the forwards.
    """
    needs = {"sum_p"}.union(*(row.needs for row in rows))
    means, values, start = [], {row.name: [] for row in rows}, 0  # type: ignore[var-annotated]
    with torch.no_grad(), seen.session.sealed():
        for batch in seen.session.data.batches:
            kept = PassStatistics(needs, seen.probabilities[start : start + batch.n])
            for forward in forwards:
                kept.update(forward(batch).float().cpu())
            means.append(kept.mean.float())
            for row in rows:
                values[row.name].append(row(kept).float())
            start += batch.n
    measured = {name: torch.cat(parts) for name, parts in values.items()}
    return Answer(torch.cat(means), measured, float(len(forwards)) if passes is None else passes)


def _raw(session: Session, batch: Batch) -> Any:
    with session.disturbed({}):
        return session.fed(batch.call).run(session.running)


def _logits(raw: Any, session: Session) -> Tensor | None:
    """`[n, C]` in float32; a logit of two classes is half of it against half of it."""
    if session.outputs not in ("logits", "binary_logit"):
        return None
    values = output_tensor(raw, "logits").float().cpu()
    if session.outputs == "logits":
        return values
    half = values.reshape(len(values), 1) / 2
    return torch.cat([-half, half], 1)


def _head(session: Session) -> nn.Linear | None:
    """The final classifier layer of the model that runs."""
    site = session.site_map.head()
    if site is None:
        return None
    module = dict(session.running.named_modules()).get(site.module)
    return module if isinstance(module, nn.Linear) else None


@contextmanager
def _inputs_of(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Fills a list with what the module is called on."""
    seen: list[Tensor] = []
    if module is None:
        yield seen
        return
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().float().cpu()))
    try:
        yield seen
    finally:
        hook.remove()


def _joined_features(inputs: Sequence[Tensor], sizes: Sequence[int]) -> Tensor | None:
    """`[n, D]`, where the layer is called once for each batch with a row per example."""
    if [part.shape[0] for part in inputs] != list(sizes) or any(part.dim() != 2 for part in inputs):
        return None
    return torch.cat(list(inputs))


def _parameters(head: nn.Linear, features: Tensor, logits: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The weight `[C, D]` and the bias `[C]`, where the layer's outputs are the logits."""
    weight = head.weight.detach().float().cpu()
    bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.detach().float().cpu()
    if len(weight) == 1 and logits.shape[1] == 2:
        weight, bias = (torch.cat([-part / 2, part / 2]) for part in (weight, bias))
    if len(weight) != logits.shape[1]:
        return None, None
    few = slice(0, 64)
    apart = float((features[few] @ weight.T + bias - logits[few]).abs().max())
    if apart > _EQUAL * (1 + float(logits[few].abs().max())):
        return None, None
    return weight, None if head.bias is None else bias
