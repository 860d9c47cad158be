"""One configuration of one model on the test items: an audit, the passes, and their rows.

Owns run-level accuracy (each pass gives one accuracy over all items of a group) and the row of an item. Statistics
over models and claims read the tables.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope import measures
from dropscope.data import Batch, Data
from dropscope.engine import LoopEngine, Session, Tick, open_session, quiet, rows_at_once
from dropscope.errors import AuditFailed, BadInput, Phrase
from dropscope.injection import Audit, SiteMap
from dropscope.measures.statistics import PassStatistics
from dropscope.model import Call
from dropscope.placement import Placement
from dropscope.studies.transformer_profile.tokens import Encoded

OVERALL = "overall"
PRECISIONS = ("fp32", "bf16")
_COMPARED = 3  # passes, of bf16 with fp32
_AUDITED = 8  # items


@dataclass(frozen=True, eq=False)
class Bench:
    """A model on its device with its test items: what every evaluation of it shares."""

    encoded: Encoded
    session: Session  # its data are the items in length-sorted batches, on the device
    audited: Data  # a few items
    tokens: int | None = None  # of one forward, at most; what suits the device, if None

    @property
    def model(self) -> nn.Module:
        return self.session.model

    @property
    def site_map(self) -> SiteMap:
        return self.session.site_map

    @property
    def device(self) -> torch.device:
        return self.session.device

    @property
    def example(self) -> Call:
        """A few items, on the device."""
        return self.audited.batches[0].call.to(self.device)

    @property
    def padding(self) -> float:
        return self.session.data.padding

    def engine(self, placement: Placement, passes: int, masks: str, seed: int) -> LoopEngine:
        """The loop with passes folded into the batch: capturing each of 95 configurations would cost more."""
        session = replace(self.session, masks=masks, seed=seed)
        return LoopEngine(session, session.resolve([placement]), passes, fold=True, tokens=self.tokens)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Rows of one configuration, without the names of model and configuration."""

    passes: pd.DataFrame  # pass, group, accuracy
    items: pd.DataFrame
    audits: pd.DataFrame  # site, call, asked, measured, fired
    remarks: tuple[str, ...]
    seconds: float  # of the passes
    difference: tuple[float, float] = (0.0, 0.0)  # |p in bf16 − p in fp32| under the same masks: mean, largest


def bench(
    model: nn.Module, encoded: Encoded, device: torch.device, precision: str = "fp32", tokens: int | None = None
) -> Bench:
    """The model on its device, its sites, and its items in length-sorted batches.

    In `bf16` a shadow runs the passes: what that changes is measured against the model, never assumed.
    """
    model = model.to(device).eval()
    broken = next((name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()), None)
    if broken is not None:
        remedy = "train at a lower learning_rate, or fix the checkpoint"
        raise BadInput(f"weights of {broken} must be finite", broken, Phrase("NaN or infinity"), remedy)
    median = sorted(len(tokens) for tokens in encoded.tokens)[len(encoded.tokens) // 2]
    middle = sorted(range(len(encoded.tokens)), key=lambda i: abs(len(encoded.tokens[i]) - median))[:_AUDITED]
    few = encoded.data(middle)
    session = open_session(model, few, device=device, precision=precision)
    items = encoded.data().length_sorted(lambda length: rows_at_once(model, length, device, tokens=tokens))
    return Bench(encoded, session.with_data(items.on(device)), few, tokens)


def evaluate(
    on: Bench, placement: Placement, passes: int, masks: str = "per_example", seed: int = 42, tick: Tick = quiet
) -> Evaluation:
    """Audits the placement, runs the passes and counts.

    An audit that fails, or a plain pass that is not always the same, is an error: such numbers would not mean what they
    claim.
    """
    audited = audit(on, placement, seed)
    started = time.perf_counter()
    right, statistics = _run(on, placement, passes, masks, seed, tick)
    seconds = time.perf_counter() - started
    return Evaluation(
        _accuracies(on, right), _rows(on, right, statistics), _findings(audited), audited.remarks, seconds,
        difference(on, placement, min(passes, _COMPARED), masks, seed),
    )  # fmt: skip


def difference(on: Bench, placement: Placement, passes: int, masks: str, seed: int) -> tuple[float, float]:
    """|p in bf16 − p in fp32| over a few passes of every item, under the same masks: mean and largest.

    In fp32 no noise is deferred, so this also shows whether deferring changes anything.
    """
    if not on.session.half:
        return 0.0, 0.0
    half = on.engine(placement, passes, masks, seed)
    single = LoopEngine(half.session.in_fp32(), half.placements, passes, fold=True, may_wait=False, tokens=on.tokens)

    def flat(engine: LoopEngine) -> Tensor:
        return torch.cat([block.probabilities.flatten() for _, block in engine.samples_of_all(0)])

    distance = (flat(half) - flat(single)).abs()
    return float(distance.mean()), float(distance.max())


def audit(on: Bench, placement: Placement, seed: int) -> Audit:
    session = replace(on.session, data=on.audited, seed=seed)
    (resolved,) = session.resolve([placement])
    return session.audit(resolved, placement)


def accuracies(on: Bench, placement: Placement, passes: int, masks: str, seed: int, tick: Tick) -> pd.DataFrame:
    """Run-level accuracies alone: pass, group, accuracy."""
    return _accuracies(on, _run(on, placement, passes, masks, seed, tick)[0])


def _run(
    on: Bench, placement: Placement, passes: int, masks: str, seed: int, tick: Tick
) -> tuple[Tensor, list[PassStatistics]]:
    """Which item was right in which pass, `[passes, items]`, and the statistics of each batch.

    Without noise every pass is the plain pass: two are run, must agree to the bit, and stand for all.
    """
    noisy = bool(on.engine(placement, passes, masks, seed).placements[0])
    asked = passes if noisy else min(passes, 2)
    engine = on.engine(placement, asked, masks, seed)
    batches = engine.session.data.batches
    labels = on.encoded.labels.to(on.device)
    right = torch.zeros(asked, len(labels), dtype=torch.bool, device=on.device)
    # Everything is on the device before the first pass: to send something there waits for all it was given before.
    rows = {id(batch): _rows_of(batch).to(on.device) for batch in batches}
    statistics = {id(batch): PassStatistics({"sum_p", "sum_plogp"}) for batch in batches}
    plain: dict[int, Tensor] = {}
    for batch, block in engine.samples_of_all(0, tick):
        p, where = block.probabilities, rows[id(batch)]
        if not noisy and not torch.equal(p, plain.setdefault(id(batch), p[:1]).expand_as(p)):
            raise AuditFailed("two plain passes of the deterministic configuration differ: randomness is left on")
        statistics[id(batch)].update(p, passes_dim=0)
        right[block.first : block.first + len(p), where] = p.argmax(-1) == labels[where]
    return (right if noisy else right[:1].expand(passes, -1)).cpu(), [statistics[id(batch)] for batch in batches]


def _rows_of(batch: Batch) -> Tensor:
    assert batch.rows is not None
    return batch.rows


def _accuracies(on: Bench, right: Tensor) -> pd.DataFrame:
    groups = on.encoded.table.group
    sides = {OVERALL: torch.ones(len(groups), dtype=torch.bool)}
    sides |= {str(name): torch.tensor((groups == name).to_numpy(copy=True)) for name in dict.fromkeys(groups)}
    parts = [
        pd.DataFrame({"pass": range(len(right)), "group": name, "accuracy": right[:, members].double().mean(1).numpy()})
        for name, members in sides.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _rows(on: Bench, right: Tensor, statistics: list[PassStatistics]) -> pd.DataFrame:
    table, count = on.encoded.table, len(on.encoded.table)
    mean: Tensor | None = None
    uncertainties = {name: torch.zeros(count, dtype=torch.float64) for name in ("predictive_entropy", "bald")}
    for batch, kept in zip(on.session.data.batches, statistics, strict=True):
        mean = torch.zeros(count, kept.mean.shape[-1], dtype=torch.float64) if mean is None else mean
        rows = _rows_of(batch)
        mean[rows] = kept.mean.cpu()
        for name, values in uncertainties.items():
            values[rows] = getattr(measures, name)(kept).double().cpu()
    assert mean is not None
    prediction = mean.argmax(-1).numpy()
    items = table[["item", "context", "group", "label"]].copy()
    items["prediction"] = prediction
    items["correct"] = prediction == items.label.to_numpy()
    items["frequency"] = right.double().mean(0).numpy()
    items["probability"] = list(mean.numpy())
    return items.assign(**{name: values.numpy() for name, values in uncertainties.items()})


def _findings(audited: Audit) -> pd.DataFrame:
    rows = []
    for finding in audited.findings:
        address, _, position = finding.site.rpartition("@")
        name, _, call = address.partition("#")
        rows.append({"site": f"{name}@{position}", "call": int(call or 0), "asked": finding.asked,
                     "measured": finding.measured, "fired": finding.fired})  # fmt: skip
    columns = {"site": str, "call": int, "asked": float, "measured": float, "fired": bool}
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)
