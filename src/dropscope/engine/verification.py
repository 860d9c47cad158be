"""Verification of a plan before it runs: against the plain loop, and for what a graph takes for granted.

Owns the checks and their reasons. Each raises `CaptureFailed`, and the loop runs instead.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from dropscope.data import Batch
from dropscope.engine.cost import Blocks
from dropscope.engine.executor import Chunk, Executor
from dropscope.engine.graph import Captured, CaptureFailed, module_path
from dropscope.engine.loop import LoopEngine
from dropscope.engine.session import Session, sealed
from dropscope.engine.tree import Plan, leading_to
from dropscope.errors import DropscopeError, first_line
from dropscope.injection import ResolvedPlacement
from dropscope.model import main_tensor
from dropscope.tracing import Point

_TOLERANCE = 1e-5
_COUPLED, _COUPLED_HALF = 1e-4, 2e-2  # batches of other sizes round otherwise, by far less


@dataclass(frozen=True, eq=False)
class Forest:
    """Placements of one style (the same noise and mask kind at each site), planned for one input signature."""

    numbers: np.ndarray  # placement numbers of the run, in the order of the plan
    plan: Plan
    executor: Executor
    blocks: Blocks
    named: Mapping[int, list[int]]  # leaf → the placements computed there; −1 for the plain ones


def check_conditions(session: Session, forest: Forest, batch: Batch) -> None:
    """Code that decides by numbers it reads from its inputs must decide alike for every block of the run."""
    captured = forest.plan.captured
    size = forest.blocks.examples
    blocks = [range(i, min(i + size, batch.n)) for i in range(0, batch.n, size)] if captured.expected else []
    for block in blocks:
        call = batch.take(block).call.to(session.device)
        if not forest.executor.holds(call):
            where = module_path(captured.expected[0][0])
            raise CaptureFailed(f"the code of {where} decides by its inputs, and not alike for all examples")


def check_alone(session: Session, batch: Batch) -> None:
    """Passes are folded into the batch, and examples run in blocks: neither may change what an example gets."""
    few = batch.first_two()
    if few.n < 2:
        return
    with torch.no_grad(), sealed():
        together = session.plain(few)
        try:
            alone = torch.cat([session.plain(few.take([i])) for i in range(few.n)])
        except (RuntimeError, ValueError) as error:
            raise CaptureFailed(f"the model does not take an example by itself: {first_line(error)}") from error
    apart = float((together - alone).abs().max())
    half = any(weight.dtype.itemsize < 4 for weight in session.model.parameters())
    if not apart <= (_COUPLED_HALF if half else _COUPLED):
        where = f"by {apart:.1e}, first seen in {_first_apart(session, few)}"
        raise CaptureFailed(f"what an example gets depends on the others of its batch ({where})")


def _first_apart(session: Session, few: Batch) -> str:
    """The first module that gives an example something else when it is alone."""
    seen: list[tuple[str, Tensor]] = []

    def note(path: str, output: object) -> None:
        value = main_tensor(output)
        if value is not None and value.dim() and value.is_floating_point():
            seen.append((path, value))

    hooks = [
        module.register_forward_hook(lambda *given, path=path: note(path, given[-1]))
        for path, module in session.running.named_modules()
    ]
    try:
        with torch.no_grad(), sealed():
            session.plain(few)
            together, seen = seen, []
            session.plain(few.take([few.n - 1]))
    finally:
        for hook in hooks:
            hook.remove()
    for (path, value), (_, alone) in zip(together, seen, strict=False):
        last = value[-len(alone) :]
        if last.shape == alone.shape and not torch.allclose(last, alone, atol=_COUPLED):
            return path or "the model"
    return "the model"


def check_passes(
    session: Session,
    forest: Forest,
    batch: Batch,
    placements: Sequence[ResolvedPlacement],
    *,
    every_site: bool = True,
) -> None:
    """Two examples × two passes of some placements, every site among them, must equal the plain loop."""
    few, executor = batch.first_two(), forest.executor
    loop = LoopEngine(session.in_fp32(), placements, 2, traced=True)
    worst, where = 0.0, "without noise"
    keys, blocks = few.keys.to(session.device), Blocks(few.n, 2, (1,) * len(forest.plan.steps))
    with torch.no_grad(), sealed():
        try:
            plain, reads = executor.plain(few.call.to(session.device))
            worst = float((plain - session.plain(few)).abs().max())
            for i in _compared(forest, placements)[: None if every_site else 1]:
                number = int(forest.numbers[i])
                subtree = leading_to(forest.plan, int(forest.plan.leaf_of[i]))
                slow = torch.cat([block.probabilities for block in loop.samples(number, few, range(2))])
                fast = next(p for _, p in executor.passes(subtree, Chunk(reads, keys, range(2), blocks)))[0]
                apart = float((slow - fast).abs().max())
                if not apart <= worst:
                    worst, where = apart, f"with noise at {next(iter(placements[number])).address}"
        except DropscopeError:
            raise
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
            culprit = _culprit(error, forest.plan.captured)
            raise CaptureFailed(f"{culprit} does not run on folded passes: {first_line(error)}") from error
    if not worst <= _TOLERANCE:
        raise CaptureFailed(f"the graph differs from the plain loop by {worst:.1e} {where}")


def _compared(forest: Forest, placements: Sequence[ResolvedPlacement]) -> list[int]:
    """Placements to compare: the first, the middle, the last, and the first that has each site."""
    found = {int(i) for i in np.linspace(0, len(forest.numbers) - 1, 3)}
    seen: set[Point] = set()
    for i, number in enumerate(forest.numbers):
        new = set(placements[int(number)]) - seen
        if new:
            seen |= new
            found.add(i)
    return sorted(i for i in found if forest.plan.leaf_of[i] >= 0)


def _culprit(error: Exception, captured: Captured) -> str:
    """Where in the user's model the operation stands that failed: lines of a segment begin with a node's name."""
    names = {node.name: node for node in captured.nodes}
    found, step = "its output", error.__traceback__
    while isinstance(step, TracebackType):
        line = linecache.getline(step.tb_frame.f_code.co_filename, step.tb_lineno)
        name = line.strip().partition(" ")[0].rstrip(":")
        found = module_path(names[name]) if name in names else found
        step = step.tb_next
    return found
