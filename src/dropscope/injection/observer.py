"""Observation of loops that Dropscope does not run: `watch(model)` shows what was stochastic and changes nothing.

Owns the record of a model's own dropout: what ran, with which flag and measured rate, whether BatchNorm moved and
outputs varied. `sites.examine` says what train mode would have run, so a dropout that stayed silent is named too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.display import Table, cut
from dropscope.errors import AuditFailed
from dropscope.injection.sites import examine
from dropscope.injection.tally import Tally, disagreement, state_mark
from dropscope.model import Call, output_tensors, unwrap
from dropscope.tracing import About, OwnDropout, Point, Visitor, dropout_rate, keeps_running_statistics, trace


@dataclass
class SeenDropout:
    """One dropout of the model in the watched loop.

    Attributes:
        name: Its module, or the module and function that it is; with `@weights` for the dropout of an attention.
        rate: Its rate in train mode.
        calls: How often it was called.
        active: How often it was called with its training flag on and a rate above 0.
        tally: What it did to values.
        never_called: Whether the model holds it and calls it in no mode.
    """

    name: str
    rate: float
    calls: int = 0
    active: int = 0
    tally: Tally = field(default_factory=Tally, repr=False)
    never_called: bool = False

    @property
    def measured(self) -> float | None:
        """The fraction that it dropped; None if it cannot be counted."""
        return self.tally.rate

    @property
    def silent(self) -> bool:
        """Whether it has a rate and never dropped anything."""
        return self.rate > 0 and self.active == 0

    @property
    def verdict(self) -> str:
        """What happened, in a few words: "on", "SILENT: …", "WRONG RATE: …"."""
        if self.rate == 0:
            return "rate 0"
        if self.never_called:
            return "SILENT: built, but nothing calls it"
        if self.silent:
            return "SILENT: called with dropout off" if self.calls else "SILENT: did not run in this loop"
        if self.active < self.calls:
            return f"on in {self.active} of {self.calls} calls"
        wrong = disagreement(self.tally, self.rate, "bernoulli", 1000) if self.tally.units else None
        return "on" if wrong is None else f"WRONG RATE: {wrong}"


class Watch:
    """What `watch` saw; complete once its context is left. Printed, a table.

    Attributes:
        dropouts: Every dropout of the model, as a `SeenDropout`.
        batchnorm_moved: The BatchNorm layers whose running statistics changed.
        outputs_varied: Whether an example that came twice got different outputs; None if none came twice.
        forwards: How many forwards there were.
        unreachable: Other randomness of the model, which cannot be observed.
    """

    def __init__(self) -> None:
        self.dropouts: list[SeenDropout] = []
        self.batchnorm_moved: list[str] = []
        self.outputs_varied: bool | None = None
        self.forwards = 0
        self.unreachable: tuple[str, ...] = ()

    @property
    def silent(self) -> list[str]:
        """The dropouts that the model calls in train mode, but that stayed off in this loop."""
        return [d.name for d in self.dropouts if d.silent and not d.never_called]

    @property
    def ok(self) -> bool:
        """Whether every dropout ran at its rate, outputs varied, and BatchNorm stayed put."""
        wrong = any(d.verdict.startswith("WRONG") for d in self.dropouts)
        return not (self.silent or wrong or self.batchnorm_moved or self.outputs_varied is False or self.forwards == 0)

    def raise_if_silent(self) -> Watch:
        """Returns itself if it is ok.

        Raises:
            AuditFailed: If a dropout stayed off or had a wrong rate, outputs did not vary, or BatchNorm moved.
        """
        if not self.ok:
            raise AuditFailed("; ".join(self._complaints()))
        return self

    def _complaints(self) -> Iterator[str]:
        if self.forwards == 0:
            yield "the model was not called in this loop"
        if self.silent:
            shown = ", ".join(self.silent[:4]) + (f" and {len(self.silent) - 4} more" if len(self.silent) > 4 else "")
            yield f"dropout stayed off in {shown}"
        yield from (f"{d.name}: {d.verdict}" for d in self.dropouts if d.verdict.startswith("WRONG"))
        if self.outputs_varied is False:
            yield "the same example always gave the same output"
        if self.batchnorm_moved:
            yield f"BatchNorm moved: {', '.join(self.batchnorm_moved[:4])}"

    def __str__(self) -> str:
        width = max([len(d.name) for d in self.dropouts] + [7])
        lines = [f"{self.forwards} forwards watched: {'ok' if self.ok else 'NOT OK'}"]
        lines.append(f"  {'dropout':<{width}}  {'rate':>5}  {'calls':>6}  {'measured':>8}  verdict")
        for d in self.dropouts:
            measured = "-" if d.measured is None else f"{d.measured:.4f}"
            lines.append(f"  {d.name:<{width}}  {d.rate:>5.3f}  {d.calls:>6}  {measured:>8}  {d.verdict}")
        varied = {True: "yes", False: "NO", None: "unknown (no example was seen twice)"}[self.outputs_varied]
        lines.append(f"  outputs of one example vary: {varied}")
        lines.append(f"  BatchNorm moved: {', '.join(self.batchnorm_moved) or 'no'}")
        lines += [f"  not seen from outside: {text}" for text in self.unreachable]
        return "\n".join(lines)

    def __repr__(self) -> str:
        silent_first = sorted(self.dropouts, key=lambda dropout: dropout.verdict in ("on", "rate 0"))
        return self._table(silent_first).short("print the watch").text()

    def _repr_html_(self) -> str:
        return self._table(self.dropouts).html()

    def _table(self, dropouts: list[SeenDropout]) -> Table:
        rows = [
            (d.name, d.verdict, f"{d.rate:.3f}", str(d.calls), "-" if d.measured is None else f"{d.measured:.4f}")
            for d in dropouts
        ]
        varied = {True: "yes", False: "NO", None: "unknown (no example was seen twice)"}[self.outputs_varied]
        notes = [f"outputs of one example vary: {varied}"]
        notes.append(f"BatchNorm moved: {cut(', '.join(self.batchnorm_moved)) or 'no'}")
        notes += [f"not seen from outside: {cut(text)}" for text in self.unreachable[:1]]
        caption = f"{self.forwards} forwards watched: {'ok' if self.ok else 'NOT OK'}"
        return Table(("dropout", "verdict", "rate", "calls", "measured"), rows, caption, notes, names=2)


@contextmanager
def watch(model: nn.Module) -> Iterator[Watch]:
    """Observes every forward of a model in a loop of your own, and changes nothing.

    Args:
        model: Any `nn.Module`.

    Yields:
        A `Watch`, complete once the context is left.

    Raises:
        BadInput: If it is no model that can be observed.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)).eval()
        >>> with watch(net) as seen:
        ...     outputs = [net(torch.ones(1, 4)) for _ in range(5)]  # forgot to switch dropout on
        >>> seen.silent, seen.outputs_varied
        (['1'], False)
    """
    model = unwrap(model)
    seen = Watch()
    observer = _Observer()
    before = state_mark(model)
    tail = model.register_forward_hook(observer.finished, with_kwargs=True)
    try:
        with trace(model, observer, alone=lambda path: True):  # `generate` calls an encoder by itself
            yield seen
    finally:
        tail.remove()
        _report(seen, observer, model, before)


class _Observer(Visitor):
    """A visitor that lets everything run and records its effect."""

    def __init__(self) -> None:
        self.dropouts: dict[str, SeenDropout] = {}
        self.examples: dict[int, Tensor] = {}
        self.example: Call | None = None
        self.repeated = self.differed = False
        self.forwards = 0
        self._keys: Tensor | None = None

    def begin(self, call: Call) -> None:
        self.forwards += 1
        self._keys = None
        cache = call.kwargs.get("past_key_values")
        if cache is not None:
            if not hasattr(cache, "get_seq_length") or cache.get_seq_length() > 0:
                return  # what the forward sees is not in its inputs alone
            call = Call(call.args, {name: part for name, part in call.kwargs.items() if part is not cache})
        try:
            with torch._C.DisableTorchFunction():
                self._keys = call.keys()
                if self.example is None:
                    self.example = call.take([0, min(1, len(self._keys) - 1)])
        except (RuntimeError, ValueError):
            pass  # inside vmap, or without a tensor: the outputs of one example cannot be followed

    def wants(self, point: Point) -> bool:
        return False

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        return value

    def own_dropout(self, dropout: OwnDropout) -> bool:
        name = _name(dropout.point)
        seen = self.dropouts.setdefault(name, SeenDropout(name, dropout.rate))
        seen.calls += 1
        seen.active += dropout.training and dropout.rate > 0
        seen.rate = max(seen.rate, dropout.rate)
        return True

    def own_ran(self, dropout: OwnDropout, before: Tensor, after: Tensor) -> None:
        if dropout.training and dropout.rate > 0 and dropout.noise == "bernoulli" and not _inside_vmap(after):
            seen = self.dropouts[_name(dropout.point)]
            if dropout.mask == "element":
                seen.tally.add(before, after, "element", None)

    def finished(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        values = [value for value in output_tensors(output) if value.is_floating_point()]
        if self._keys is None or not values or values[0].dim() == 0 or values[0].shape[0] != len(self._keys):
            return
        if _inside_vmap(values[0]):
            return
        for key, row in zip(self._keys.tolist(), values[0].detach(), strict=True):
            if key in self.examples:
                self.repeated = True
                self.differed |= not torch.allclose(self.examples[key], row.cpu(), rtol=1e-4, atol=1e-6)
            else:
                self.examples[key] = row.cpu().clone()


def _inside_vmap(value: Tensor) -> bool:
    return torch._C._functorch.is_batchedtensor(value)


def _name(point: Point) -> str:
    return point.name if point.position == "output" else f"{point.name}@{point.position}"


def _report(seen: Watch, observer: _Observer, model: nn.Module, before: dict[str, Any]) -> None:
    seen.forwards = observer.forwards
    seen.outputs_varied = observer.differed if observer.repeated else None
    running = {name for name, module in model.named_modules() if keeps_running_statistics(module)}
    moved = [name for name, mark in state_mark(model).items() if before.get(name) != mark]
    seen.batchnorm_moved = sorted({name.rpartition(".")[0] for name in moved} & running)
    dropouts = dict(observer.dropouts)
    if observer.example is not None:
        site_map = examine(model, observer.example)
        for point, own in site_map.own.items():
            entry = dropouts.setdefault(_name(point), SeenDropout(_name(point), own.rate))
            entry.rate = max(entry.rate, own.rate)
            if own.mask != "element":
                entry.tally = Tally()  # units that drop together cannot be counted one by one
        known = {_name(point) for point in site_map.own}
        for entry in (entry for name, entry in dropouts.items() if name not in known):
            entry.tally = Tally()  # a dropout of unknown kind: there is no rate to compare with
        for name in site_map.dead:
            rate = dropout_rate(model.get_submodule(name)) or 0.0
            dropouts.setdefault(name, SeenDropout(name, rate, never_called=True))
        seen.unreachable = site_map.unreachable
    seen.dropouts = list(dropouts.values())
