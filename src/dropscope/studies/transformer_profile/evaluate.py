"""One configuration of one model on the test items: audited, then passes, then what the tables hold of them.

Owns run-level accuracy (each pass gives one accuracy over all items of a group) and the row of an item. Statistics
over models and claims read the tables.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope import measures
from dropscope.errors import AuditFailed, BadInput
from dropscope.injection import Audit, SiteMap, audit_live, examine, resolve
from dropscope.placement import Placement
from dropscope.statistics import PassStatistics
from dropscope.studies.transformer_profile.passes import probabilities_of_passes, rows_at_once
from dropscope.studies.transformer_profile.tokens import Encoded, TokenBatch, length_sorted, padding

OVERALL = "overall"
PRECISIONS = ("fp32", "bf16")
_COMPARED = 3  # passes, of bf16 with fp32
_AUDITED = 8  # items


@dataclass(frozen=True, eq=False)
class Bench:
    """A model on its device with its test items: what every evaluation of it shares."""

    model: nn.Module
    site_map: SiteMap
    encoded: Encoded
    batches: list[TokenBatch]  # on the device: to send one there waits for all that the device was given before
    example: dict[str, Tensor]  # a few items, on the device
    half: nn.Module | None = None  # its twin in bf16, which then runs the passes; sites and audits are the model's

    @property
    def running(self) -> nn.Module:
        return self.model if self.half is None else self.half

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def padding(self) -> float:
        return padding(self.batches)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Rows of one configuration, without the names of model and configuration."""

    passes: pd.DataFrame  # pass, group, accuracy
    items: pd.DataFrame
    audits: pd.DataFrame  # site, call, asked, measured, fired
    remarks: tuple[str, ...]
    seconds: float  # of the passes
    difference: tuple[float, float] = (0.0, 0.0)  # |p in bf16 − p in fp32| under the same masks: mean, largest


def bench(model: nn.Module, encoded: Encoded, device: torch.device, precision: str = "fp32") -> Bench:
    """The model on its device, its sites, and its items in length-sorted batches. In `bf16` a twin runs the passes:
    what that changes is measured against the model, never assumed."""
    model = model.to(device).eval()
    median = sorted(len(tokens) for tokens in encoded.tokens)[len(encoded.tokens) // 2]
    broken = next((name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()), None)
    if broken is not None:
        raise BadInput("weights are numbers", broken, "not finite", "train at a lower rate, or mend the checkpoint")
    batches = length_sorted(encoded, lambda length: rows_at_once(model, length, device))
    batches = [batch.to(device) for batch in batches]
    middle = sorted(range(len(encoded.tokens)), key=lambda i: abs(len(encoded.tokens[i]) - median))[:_AUDITED]
    example = {name: value.to(device) for name, value in encoded.inputs(middle).items()}
    half = copy.deepcopy(model).to(torch.bfloat16) if precision == "bf16" else None
    return Bench(model, examine(model, (), example), encoded, batches, example, half)


def evaluate(
    on: Bench,
    placement: Placement,
    passes: int,
    masks: str = "per_example",
    seed: int = 42,
    tick: Callable[[int], None] = lambda predictions: None,
) -> Evaluation:
    """Audits the placement, runs the passes and counts. An audit that fails, or a plain pass that is not always the
    same, is an error: such numbers would not mean what they claim."""
    audited = audit(on, placement, seed)
    started = time.perf_counter()
    right, statistics = _run(on, placement, passes, masks, seed, tick)
    seconds = time.perf_counter() - started
    return Evaluation(
        _accuracies(on, right), _rows(on, right, statistics), _findings(audited), audited.remarks, seconds,
        difference(on, placement, min(passes, _COMPARED), masks, seed),
    )  # fmt: skip


def difference(on: Bench, placement: Placement, passes: int, masks: str, seed: int) -> tuple[float, float]:
    """|p in bf16 − p in fp32| over some passes of every item, under the same masks: mean and largest.

    In fp32 no noise waits for what follows, so that this also shows whether waiting changes anything.
    """
    if on.half is None:
        return 0.0, 0.0
    live = resolve(placement, on.site_map)

    def shown(net: nn.Module, may_wait: bool) -> Tensor:
        found = probabilities_of_passes(net, on.site_map, live, on.batches, passes, masks, seed, may_wait=may_wait)
        return torch.cat([p.flatten() for _, _, p in found])

    apart = (shown(on.half, True) - shown(on.model, False)).abs()
    return float(apart.mean()), float(apart.max())


def audit(on: Bench, placement: Placement, seed: int) -> Audit:
    live = resolve(placement, on.site_map)
    return audit_live(on.model, placement, live, (), on.example, on.site_map, seed).raise_if_failed()


def accuracies(
    on: Bench, placement: Placement, passes: int, masks: str, seed: int, tick: Callable[[int], None]
) -> pd.DataFrame:
    """Run-level accuracies alone: pass, group, accuracy."""
    return _accuracies(on, _run(on, placement, passes, masks, seed, tick)[0])


def _run(
    on: Bench, placement: Placement, passes: int, masks: str, seed: int, tick: Callable[[int], None]
) -> tuple[Tensor, dict[int, PassStatistics]]:
    """Which item was right in which pass, `[passes, items]`, and the statistics of each batch.

    Without noise every pass is the plain pass: two are run, must agree to the bit, and stand for all.
    """
    live = resolve(placement, on.site_map)
    labels = on.encoded.labels.to(on.device)
    asked = passes if live else min(passes, 2)
    right = torch.zeros(asked, len(labels), dtype=torch.bool, device=on.device)
    kept: dict[int, PassStatistics] = {}
    plain: dict[int, Tensor] = {}
    for batch, first, p in probabilities_of_passes(on.running, on.site_map, live, on.batches, asked, masks, seed, tick):
        if not live and not torch.equal(p, plain.setdefault(id(batch), p[:1]).expand_as(p)):
            raise AuditFailed("two plain passes of the deterministic configuration differ: some randomness is left on")
        statistics = kept.setdefault(id(batch), PassStatistics({"sum_p", "sum_plogp"}))
        statistics.update(p, passes_dim=0)
        right[first : first + len(p), batch.rows] = p.argmax(-1) == labels[batch.rows]
    return (right if live else right[:1].expand(passes, -1)).cpu(), kept


def _accuracies(on: Bench, right: Tensor) -> pd.DataFrame:
    groups = on.encoded.table.group
    sides = {OVERALL: torch.ones(len(groups), dtype=torch.bool)}
    sides |= {str(name): torch.tensor((groups == name).to_numpy(copy=True)) for name in dict.fromkeys(groups)}
    parts = [
        pd.DataFrame({"pass": range(len(right)), "group": name, "accuracy": right[:, members].double().mean(1).numpy()})
        for name, members in sides.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _rows(on: Bench, right: Tensor, statistics: dict[int, PassStatistics]) -> pd.DataFrame:
    table, count = on.encoded.table, len(on.encoded.table)
    mean: Tensor | None = None
    shown = {name: torch.zeros(count, dtype=torch.float64) for name in ("predictive_entropy", "bald")}
    for batch in on.batches:
        kept = statistics[id(batch)]
        mean = torch.zeros(count, kept.mean.shape[-1], dtype=torch.float64) if mean is None else mean
        rows = batch.rows.cpu()
        mean[rows] = kept.mean.cpu()
        for name, values in shown.items():
            values[rows] = getattr(measures, name)(kept).double().cpu()
    assert mean is not None
    prediction = mean.argmax(-1).numpy()
    found = table[["item", "context", "group", "label"]].copy()
    found["prediction"] = prediction
    found["correct"] = prediction == found.label.to_numpy()
    found["frequency"] = right.double().mean(0).numpy()
    found["probability"] = list(mean.numpy())
    return found.assign(**{name: values.numpy() for name, values in shown.items()})


def _findings(audited: Audit) -> pd.DataFrame:
    rows = []
    for finding in audited.findings:
        address, _, position = finding.site.rpartition("@")
        name, _, call = address.partition("#")
        rows.append({"site": f"{name}@{position}", "call": int(call or 0), "asked": finding.asked,
                     "measured": finding.measured, "fired": finding.fired})  # fmt: skip
    columns = {"site": str, "call": int, "asked": float, "measured": float, "fired": bool}
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)
