"""Models prepared and captured once per process, and the two ways of running placements on them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from dropscope.data.dataset import Batch
from dropscope.engine.cost import Blocks
from dropscope.engine.executor import Engine
from dropscope.engine.graph import Captured, capture
from dropscope.engine.loop import passes_of
from dropscope.engine.session import Session, prepare
from dropscope.engine.tree import Plan, grow
from dropscope.injection.resolution import SiteNoise, resolve
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


@dataclass(frozen=True, eq=False)
class Case:
    """A model with every value that can be folded marked in one graph."""

    setting: Session
    captured: Captured
    points: tuple[Point, ...]

    @property
    def batch(self) -> Batch:
        return self.setting.data.batches[0]

    def drawn(self, masks: str) -> Case:
        return replace(self, setting=replace(self.setting, masks=masks))


@cache
def case(name: str) -> Case:
    model, inputs = MODELS[name]
    return case_of(model(), inputs())


def case_of(model: nn.Module, inputs: object, **common: object) -> Case:
    setting = prepare(model, inputs, **common)  # type: ignore[arg-type]
    points = tuple(p for p, value in setting.site_map.values.items() if value.layout.batch_dim is not None)
    args, kwargs = setting.on_device(setting.data.batches[0])
    return Case(setting, capture(setting.model, args, kwargs, points), points)


def plan_of(model: nn.Module, inputs: object, placements: Sequence[Placement | str]) -> Plan:
    """The plan as a run makes it: only the points that its placements use are marked."""
    setting = prepare(model, inputs)
    lives = setting.resolve(placements)
    args, kwargs = setting.on_device(setting.data.batches[0])
    return grow(capture(setting.model, args, kwargs, {p for live in lives for p in live}), lives)


def engine_of(case: Case, lives: Sequence[dict[Point, SiteNoise]]) -> Engine:
    setting = case.setting
    return Engine(
        grow(case.captured, lives),
        lambda output: probabilities(output, setting.outputs, check=False),
        setting.seed,
        setting.masks == "per_pass",
    )


@torch.no_grad()
def shared_passes(case: Case, lives: Sequence[dict[Point, SiteNoise]], passes: int, blocks: Blocks) -> Tensor:
    """`[placements, passes, n, classes, …]` by the tree, in blocks of the given sizes."""
    engine, batch = engine_of(case, lives), case.batch
    args, kwargs = case.setting.on_device(batch)
    whole, _ = engine.plain(args, kwargs)
    found = torch.full((engine.plan.distinct + 1, passes, *whole.shape), float("nan"))
    found[-1] = whole  # twin −1 is the plain placement
    for start in range(0, batch.n, blocks.examples):
        some = slice(start, start + blocks.examples)
        few = [{k: v[some] for k, v in kwargs.items()} if kwargs else {}, tuple(a[some] for a in args)]
        _, reads = engine.plain(few[1], few[0])
        for first in range(0, passes, blocks.passes):
            numbers = range(first, min(first + blocks.passes, passes))
            for subtree in engine.plan.subtrees:
                for leaves, p in engine.passes(subtree, reads, batch.keys[some], numbers, blocks):
                    found[subtree.leaf[leaves], first : numbers.stop, some] = p
    return found[engine.plan.twin]


@torch.no_grad()
def plain_passes(case: Case, lives: Sequence[dict[Point, SiteNoise]], passes: int) -> Tensor:
    """The same by the plain loop."""
    return torch.stack([torch.stack(list(passes_of(case.setting, live, case.batch, passes))) for live in lives])


RATES = (0.1, 0.25, 0.5, 0.8)


@st.composite
def placements(draw: st.DrawFn, case: Case, at_most: int = 4) -> list[dict[Point, SiteNoise]]:
    """A few placements over a few common points, as neighbours in a grid are, of one noise and mask kind."""
    noise = draw(st.sampled_from(["bernoulli", "bernoulli", "gaussian"]))
    mask = draw(st.sampled_from(["auto", "auto", "element", "channel"]))
    allowed = [p for p in case.points if not (mask == "channel" and p.position == "weights")]
    chosen = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=4, unique_by=lambda p: p[:2]))
    lives = []
    for _ in range(draw(st.integers(1, at_most))):
        some = draw(st.lists(st.sampled_from(chosen), min_size=1, unique=True))
        rates = {f"{p.name}#{p.call}@{p.position}": draw(st.sampled_from(RATES)) for p in some}
        lives.append(resolve(Placement(rates, noise=noise, mask=mask), case.setting.site_map))
    return lives


@st.composite
def block_sizes(draw: st.DrawFn, steps: int, examples: int, passes: int) -> Blocks:
    """Any sizes, down to a row at a time."""
    at_once = draw(st.integers(1, examples)), draw(st.integers(1, passes))
    return Blocks(*at_once, tuple(draw(st.integers(1, 40)) for _ in range(steps)))
