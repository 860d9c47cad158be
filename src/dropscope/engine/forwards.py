"""All passes as one forward: a module that takes examples with their keys and returns the passes under one placement.

Owns how the trunk, the noise and the segments of one placement follow each other without anything that looks at values,
so that the whole can be exported. See `segments` for its parts, `executor` for the form that many placements run in.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from dropscope.device import free_bytes
from dropscope.engine import segments
from dropscope.engine.graph import Captured, CaptureFailed, module_path
from dropscope.engine.segments import SegmentNoise
from dropscope.engine.session import Session
from dropscope.engine.shared import SharedEngine
from dropscope.engine.tree import Plan, Step
from dropscope.injection import ResolvedPlacement
from dropscope.model import Call, Outputs, probabilities
from dropscope.noise import bits_of_blocks, site_key, threshold


class PassesForward(nn.Module):
    """`forward(examples, *inputs)` returns the plain probabilities `[N, C, …]` and the passes `[passes, N, C, …]`.

    Args:
        plan: Of one placement.
        passes: How many.
        seed: Seed of the noise.
        draws: "independent" or "stratified".
        per_pass: Whether all examples of a pass share a mask.
        outputs: What the model returns.
    """

    def __init__(self, plan: Plan, passes: int, seed: int, *, draws: str, per_pass: bool, outputs: Outputs) -> None:
        super().__init__()
        self._captured, self._outputs = plan.captured, outputs
        self._passes, self._seed, self._draws, self._per_pass = passes, seed, draws, per_pass
        grows = [plan.captured.batch(feed) is not None for feed in plan.captured.feeds]
        self._batched = grows.index(True)  # the first input that holds examples
        self._trunk = segments.trunk(plan)
        self.trunk = self._trunk.module
        numbers = plan.subtrees[0].steps if plan.subtrees else ()
        self._steps = [plan.steps[number] for number in numbers]
        self._segments = [segments.segment(plan, numbers, level) for level in range(len(numbers))]
        self._last_use = [plan.read_after(numbers, level) for level in range(len(numbers))]
        self.segments = nn.ModuleList(part.module for part in self._segments)

    def forward(self, examples: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        # To a graph the two sizes are one from here on; else it would not hold for a single example.
        torch._check(examples.shape[0] == inputs[self._batched].shape[0])
        reads = dict(zip(self._trunk.outputs, self.trunk(*inputs), strict=True))
        plain = self._probabilities(reads)
        if not self._steps:
            return plain, plain.unsqueeze(0)
        held: dict[fx.Node, Tensor] = {}
        rows = examples.shape[0] * self._passes
        for level, (step, part) in enumerate(zip(self._steps, self._segments, strict=True)):
            entry = held.get(step.node)
            words = self._words(step, examples)
            noise = SegmentNoise(rows, self._passes, words, *_parameters(step), None if entry is None else 1)
            given: list[Any] = []
            for read in part.reads:
                given += [reads[read.node]] if read.level is None else [held[read.node], 1, None]
            made = self.segments[level](*noise, reads[step.node] if entry is None else entry, *given)
            held |= dict(zip(part.outputs, made, strict=True))
            held = {node: value for node, value in held.items() if node in self._last_use[level]}
        p = self._probabilities({**reads, **held})
        return plain, p.reshape(self._passes, -1, *p.shape[1:])

    def _words(self, step: Step, examples: Tensor) -> Tensor:
        shared = self._captured.batch(step.node) is None  # one mask a pass, for all examples
        keys = torch.zeros_like(examples[:1] if shared else examples) if shared or self._per_pass else examples
        centre = step.layout.centre(step.node.meta["val"].dim(), step.mask)
        site, shape = site_key(step.name, step.call), segments.unit_shape(step, self._captured)
        return bits_of_blocks(self._seed, site, self._passes, keys, shape, self._draws, centre)

    def _probabilities(self, values: dict[fx.Node, Tensor]) -> Tensor:
        leaves = [values.get(leaf) if isinstance(leaf, fx.Node) else leaf for leaf in self._captured.output]
        return probabilities(self._captured.rebuilt(leaves), self._outputs, check=False)


def passes_forward(session: Session, resolved: ResolvedPlacement, passes: int) -> PassesForward:
    """The forward of one placement, for batches like the session's first, compared with the loop.

    Raises:
        CaptureFailed: Where the model cannot be run so; the message says which part of it, and why.
    """
    batch = session.data.batches[0]
    session = session.with_data(session.data.part(range(batch.n)))
    engine = SharedEngine.build(session, [resolved], passes, free_bytes(session.device))
    (forest,) = engine.forests(session.data.batches[0])
    _check_unconditional(forest.plan.captured)
    made = PassesForward(
        forest.plan, passes, session.seed, draws=session.draws, per_pass=session.masks == "per_pass",
        outputs=session.outputs,
    )  # fmt: skip
    return made.eval()


def input_names(call: Call) -> list[str]:
    """A name for each of `feed_values`: that of its argument, with the place in it where there are several.

    >>> x = torch.zeros(2, 3)
    >>> input_names(Call((x,), {"mask": x, "aux": (x, x)}))
    ['input', 'aux_0', 'aux_1', 'mask']
    """
    first = [("input" if len(call.args) == 1 else f"input_{i}", part) for i, part in enumerate(call.args)]
    found: list[str] = []
    for name, part in [*first, *sorted(call.kwargs.items())]:
        count = len(Call((part,)).tensors)
        found += [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
    return found


def _check_unconditional(captured: Captured) -> None:
    for node, number in captured.expected:
        where = module_path(node) if isinstance(node, fx.Node) else "the model"
        raise CaptureFailed(f"the code of {where} reads {number!r} from its inputs and goes on by it")


def _parameters(step: Step) -> tuple[Any, Any]:
    """The word below which a unit drops and the factor of a kept one; the amplitude; or the rate itself."""
    rate = step.rates[-1]
    if step.own is not None:
        return None, [rate]
    gain = 1 / (1 - rate) if step.noise == "bernoulli" else math.sqrt(rate / (1 - rate))
    return torch.tensor([threshold(rate)], dtype=torch.int32), torch.tensor([gain], dtype=torch.float32)
