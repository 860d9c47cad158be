"""Models prepared and captured once per process, and the two ways of running placements on them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from dropscope.data.batches import Batch
from dropscope.engine.cost import Blocks
from dropscope.engine.executor import Chunk, Executor
from dropscope.engine.graph import Captured, capture
from dropscope.engine.loop import LoopEngine
from dropscope.engine.session import Session, open_session
from dropscope.engine.shared import SharedEngine
from dropscope.engine.tree import Plan, grow
from dropscope.injection.resolution import ResolvedPlacement, resolve
from dropscope.model.outputs import probabilities
from dropscope.placement.placement import Placement
from dropscope.tracing.visitor import Point
from support import zoo

MODELS = {
    "cnn": (zoo.cifar, zoo.images),
    "resnet": (zoo.resnet, zoo.images),
    "unet": (zoo.unet3d, zoo.volumes),
    "monai unet": (zoo.monai_unet, zoo.volumes),
    "lstm": (zoo.recurrent, zoo.tokens),
    "sequence first": (lambda: zoo.encoder(False), zoo.sequences),
    "bert eager": (lambda: zoo.hugging_face("bert"), zoo.text),
    "bert sdpa": (lambda: zoo.hugging_face("bert", "sdpa"), zoo.text),
    "gpt2 eager": (lambda: zoo.hugging_face("gpt2"), zoo.text),
    "gpt2 sdpa": (lambda: zoo.hugging_face("gpt2", "sdpa"), zoo.text),
}


class BranchingText(nn.Module):
    """A text classifier that no graph can hold: its texts are sorted by length, and passes are folded into batches."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = zoo.hugging_face("bert")
        self.config = self.inner.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits if bool(logits.abs().sum() > 0) else -logits


@dataclass(frozen=True, eq=False)
class Case:
    """A model with every value that can be folded marked in one graph."""

    session: Session
    captured: Captured
    points: tuple[Point, ...]

    @property
    def batch(self) -> Batch:
        return self.session.data.batches[0]

    def drawn(self, masks: str) -> Case:
        return replace(self, session=replace(self.session, masks=masks))


@cache
def case(name: str) -> Case:
    model, inputs = MODELS[name]
    return case_of(model(), inputs())


def case_of(model: nn.Module, inputs: object, **common: object) -> Case:
    session = open_session(model, inputs, **common)  # type: ignore[arg-type]
    points = tuple(p for p, value in session.site_map.values.items() if value.layout.batch_dim is not None)
    return Case(session, capture(session.model, session.data.batches[0].call, points), points)


def plan_of(model: nn.Module, inputs: object, placements: Sequence[Placement | str]) -> Plan:
    """The plan as a run makes it: only the points that its placements use are marked."""
    session = open_session(model, inputs)
    resolved = session.resolve(placements)
    return grow(capture(session.model, session.data.batches[0].call, {p for live in resolved for p in live}), resolved)


def executor_of(case: Case, resolved: Sequence[ResolvedPlacement]) -> Executor:
    session = case.session
    return Executor(
        grow(case.captured, resolved),
        lambda output: probabilities(output, session.outputs, check=False),
        session.seed,
        per_pass=session.masks == "per_pass",
    )


@torch.no_grad()
def shared_passes(case: Case, resolved: Sequence[ResolvedPlacement], passes: int, blocks: Blocks) -> Tensor:
    """`[placements, passes, n, classes, …]` by the tree, in blocks of the given sizes."""
    executor, batch = executor_of(case, resolved), case.batch
    whole, _ = executor.plain(batch.call)
    found = torch.full((executor.plan.distinct + 1, passes, *whole.shape), float("nan"))
    found[-1] = whole  # leaf −1 is the plain placement
    for start in range(0, batch.n, blocks.examples):
        rows = slice(start, start + blocks.examples)
        _, reads = executor.plain(batch.cut(rows.start, rows.stop).call)
        for first in range(0, passes, blocks.passes):
            chunk = Chunk(reads, batch.keys[rows], range(first, min(first + blocks.passes, passes)), blocks)
            for subtree in executor.plan.subtrees:
                for leaves, p in executor.passes(subtree, chunk):
                    found[subtree.leaf[leaves], first : chunk.passes.stop, rows] = p
    return found[executor.plan.leaf_of]


@torch.no_grad()
def plain_passes(case: Case, resolved: Sequence[ResolvedPlacement], passes: int) -> Tensor:
    """The same by the plain loop."""
    loop = LoopEngine(case.session, resolved, passes)
    blocks = (loop.samples(number, case.batch, range(passes)) for number in range(len(resolved)))
    return torch.stack([torch.cat([block.probabilities for block in every]) for every in blocks])


def equals_the_loop(model: nn.Module, inputs: Any, placements: Sequence[str], **options: Any) -> SharedEngine:
    """The shared engine for these placements, after three passes of every batch were compared with the loop."""
    session = open_session(model, inputs, batch_size=3, **options)
    resolved = session.resolve(placements)
    engine, loop = SharedEngine.build(session, resolved, 3, 1 << 22), LoopEngine(session, resolved, 3)
    for batch in session.data.batches:
        for number in range(len(resolved)):
            slow = torch.cat([block.probabilities for block in loop.samples(number, batch, range(3))])
            fast = torch.full_like(slow, float("nan"))
            for block in engine.samples(number, batch, range(3)):
                fast[block.first : block.first + len(block.probabilities), block.rows] = block.probabilities
            assert float((fast - slow).abs().max()) <= 1e-5, placements[number]
            assert float(slow.std(0).max()) > 0, placements[number]
    return engine


RATES = (0.1, 0.25, 0.5, 0.8)


@st.composite
def placements(draw: st.DrawFn, case: Case, at_most: int = 4) -> list[ResolvedPlacement]:
    """A few placements over a few common points, as neighbours in a grid are, of one noise and mask kind."""
    noise = draw(st.sampled_from(["bernoulli", "bernoulli", "gaussian"]))
    mask = draw(st.sampled_from(["auto", "auto", "element", "channel"]))
    allowed = [p for p in case.points if not (mask == "channel" and p.position == "weights")]
    chosen = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=4, unique_by=lambda p: p[:2]))
    resolved = []
    for _ in range(draw(st.integers(1, at_most))):
        some = draw(st.lists(st.sampled_from(chosen), min_size=1, unique=True))
        rates = {f"{p.name}#{p.call}@{p.position}": draw(st.sampled_from(RATES)) for p in some}
        resolved.append(resolve(Placement(rates, noise=noise, mask=mask), case.session.site_map))
    return resolved


@st.composite
def block_sizes(draw: st.DrawFn, steps: int, examples: int, passes: int) -> Blocks:
    """Any sizes, down to a row at a time."""
    at_once = draw(st.integers(1, examples)), draw(st.integers(1, passes))
    return Blocks(*at_once, tuple(draw(st.integers(1, 40)) for _ in range(steps)))
