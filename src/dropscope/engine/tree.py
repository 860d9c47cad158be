"""The tree of shared work: which noise enters where, and which placements share what. No tensors.

Two placements with the same noise up to a site have the same values there, so each step of the plan multiplies variants
and never repeats a prefix. Owns the order of steps, the tree, its pieces, and which placements are equal by
mathematics. See `executor` for how it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from dropscope.engine.graph import Captured, CaptureFailed, module_path
from dropscope.injection import ResolvedPlacement, SiteNoise
from dropscope.noise import Layout, OwnNoise
from dropscope.tracing import Point

_aten = torch.ops.aten
_HOMOGENEOUS = {_aten.relu.default, _aten.leaky_relu.default}
_MAX_POOLS = {_aten.max_pool1d.default, _aten.max_pool2d.default, _aten.max_pool3d.default}
_MAX_POOLS_WITH_INDICES = {_aten.max_pool2d_with_indices.default, _aten.max_pool3d_with_indices.default}
_AVERAGE_POOLS = {
    _aten.avg_pool1d.default, _aten.avg_pool2d.default, _aten.avg_pool3d.default, _aten.adaptive_avg_pool1d.default,
    _aten.adaptive_avg_pool2d.default, _aten.adaptive_avg_pool3d.default, _aten._adaptive_avg_pool2d.default,
    _aten._adaptive_avg_pool3d.default,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """One place where noise enters: the value of `node` is disturbed before anybody uses it."""

    name: str  # the site's key: its masks depend on this name and call alone
    call: int
    node: fx.Node
    noise: str
    mask: str
    layout: Layout
    rates: tuple[float, ...]  # choices at this step; choice 0 is no noise
    points: tuple[Point, ...]  # what was merged into it
    own: OwnNoise | None = None  # where the noise is a function of the user's


@dataclass(frozen=True, eq=False)
class Level:
    """The variants after one step: each continues a variant of the level before with one of the step's choices."""

    parent: NDArray[np.int64]
    choice: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Subtree:
    """The placements whose first noise is at one step; `leaf[i]` is the plan's number of the i-th placement."""

    steps: tuple[int, ...]  # of the plan, in order: those at which some of these placements has noise
    levels: tuple[Level, ...]  # one per step
    leaf: NDArray[np.int64]

    @property
    def fans(self) -> int:
        """Levels up to the last at which variants grow in number; behind it each variant has one child a level."""
        counts = [1, *(len(level.parent) for level in self.levels)]
        return max((i for i in range(1, len(counts)) if counts[i] > counts[i - 1]), default=1)


@dataclass(frozen=True, eq=False)
class Plan:
    captured: Captured
    steps: tuple[Step, ...]
    subtrees: tuple[Subtree, ...]
    distinct: int  # placements that are computed
    leaf_of: NDArray[np.int64]  # placement → the number under which it is computed; −1 for the plain placement
    _known: dict[Any, Any] = field(default_factory=dict, repr=False)  # both functions are asked for every pair of steps

    def stochastic(self, steps: tuple[int, ...]) -> frozenset[fx.Node]:
        """What is computed once per variant and pass when noise enters at these steps."""
        if steps not in self._known:
            self._known[steps] = self._stochastic(steps)
        return self._known[steps]

    def _stochastic(self, steps: tuple[int, ...]) -> frozenset[fx.Node]:
        entered = {self.steps[i].node for i in steps}
        after: set[fx.Node] = set()
        for node in self.captured.nodes:
            if any(a in entered or a in after for a in node.all_input_nodes):
                after.add(node)
        return frozenset(after)

    def noisy(self, steps: tuple[int, ...]) -> frozenset[fx.Node]:
        """What differs from pass to pass then: the values that get noise, too."""
        if ("noisy", steps) not in self._known:
            self._known["noisy", steps] = self.stochastic(steps) | {self.steps[i].node for i in steps}
        return self._known["noisy", steps]

    def segment(self, steps: tuple[int, ...], level: int) -> list[fx.Node]:
        """The stochastic nodes between the noise of one level and the next, for a subtree with these steps."""
        if (steps, level) not in self._known:
            self._known[steps, level] = self._segment(steps, level)
        return self._known[steps, level]

    def _segment(self, steps: tuple[int, ...], level: int) -> list[fx.Node]:
        position = self.captured.position
        start = position[self.steps[steps[level]].node]
        end = position[self.steps[steps[level + 1]].node] if level + 1 < len(steps) else len(position)
        inside = self.stochastic(steps)
        return [node for node in self.captured.nodes if start < position[node] <= end and node in inside]

    def read_after(self, steps: tuple[int, ...], level: int) -> frozenset[fx.Node]:
        """What levels behind this one read, or the caller does."""
        if ("read", steps, level) not in self._known:
            later = {self.steps[i].node for i in steps[level + 1 :]}
            for i in range(level + 1, len(steps)):
                for node in self.segment(steps, i):
                    later.update(self.captured.rebuilt_inputs(node, self.noisy(steps)))
            later.update(self.captured.results)
            self._known["read", steps, level] = frozenset(later)
        return self._known["read", steps, level]

    def alive(self, steps: tuple[int, ...]) -> int:
        """Levels whose values are held at once, at most, when what nobody reads any more is dropped."""
        made = [{self.steps[i].node, *self.segment(steps, level)} for level, i in enumerate(steps)]
        return max(
            sum(bool(made[i] & self.read_after(steps, level)) for i in range(level + 1)) for level in range(len(steps))
        )


def grow(captured: Captured, vectors: Sequence[ResolvedPlacement]) -> Plan:
    """The plan for resolved placements, all of one noise and mask kind per site (see `styles`)."""
    steps = _steps(captured, vectors)
    where = {point: i for i, step in enumerate(steps) for point in step.points}
    choices = np.zeros((len(vectors), len(steps)), dtype=np.int64)
    for row, vector in enumerate(vectors):
        for point, spec in vector.items():
            column = where[point]
            if choices[row, column]:
                raise CaptureFailed(f"{point.name} has noise at two positions that are one value in the graph")
            choices[row, column] = steps[column].rates.index(spec.rate)
    distinct, leaf_of = np.unique(choices, axis=0, return_inverse=True)
    leaf_of = leaf_of.reshape(-1).astype(np.int64)
    plain = np.all(distinct == 0, axis=1)
    number = np.cumsum(~plain) - 1
    plan = Plan(
        captured,
        tuple(steps),
        tuple(_subtrees(distinct[~plain])),
        int((~plain).sum()),
        np.where(plain[leaf_of], -1, number[leaf_of]),
    )
    for node, _ in captured.expected:
        if node in plan.stochastic(tuple(range(len(steps)))):
            raise CaptureFailed(f"the code of {module_path(node)} decides by a value that noise changes")
    return plan


def _steps(captured: Captured, vectors: Sequence[ResolvedPlacement]) -> list[Step]:
    rates: dict[Point, set[float]] = {}
    noises: dict[Point, SiteNoise] = {}
    for vector in vectors:
        for point, spec in vector.items():
            rates.setdefault(point, set()).add(spec.rate)
            noises[point] = spec
    merged: dict[tuple[str, int, fx.Node, str, str], list[Point]] = {}
    for point, spec in noises.items():
        where = point.name, point.call, _entry(captured, point, spec), spec.noise, spec.mask
        merged.setdefault(where, []).append(point)
    steps = []
    for (name, call, node, _, _), points in merged.items():
        spec = noises[points[0]]
        if (spec.layout.batch_dim is None) != (captured.batch(node) is None):
            raise CaptureFailed(f"{name} has one value for all examples in the model or in its graph, and not in both")
        if spec.noise == "alpha":
            raise CaptureFailed(f"{name} has alpha dropout, which is no factor on its value")
        if spec.noise == "multinomial":
            raise CaptureFailed(f"{name} has multinomial noise, whose words differ from rate to rate")
        if spec.noise == "rate_in":
            raise CaptureFailed(f"{name} has rate_in, whose rates follow from the value of each pass")
        values = sorted({rate for point in points for rate in rates[point]})
        choices = (0.0, *values)
        steps.append(
            Step(name, call, node, spec.noise, spec.mask, spec.layout, choices, tuple(sorted(points)), spec.own)
        )
    return sorted(steps, key=lambda step: captured.position[step.node])


def _entry(captured: Captured, point: Point, spec: SiteNoise) -> fx.Node:
    """The latest node at which this noise gives the same result: past what a non-negative factor commutes with.

    Before and after a ReLU are one place; a feature map's factor passes a pooling, which then runs once for all passes.
    """
    node = captured.marks[point]
    non_negative = spec.noise == "bernoulli"
    maps = spec.mask == "channel" and spec.layout.channel_dim == 1  # pooling leaves dimension 1 alone, and no other
    while len(node.users) == 1:
        (user,) = node.users
        passes = (
            (user.target is torch.ops.dropscope.site.default)
            or (user.target in _HOMOGENEOUS and non_negative)
            or (user.target in _MAX_POOLS and non_negative and maps and _over_maps(user, node))
            or (user.target in _AVERAGE_POOLS and maps and _over_maps(user, node))
        )
        if (
            passes
            and user.args[0] is node
            and not (user.target is torch.ops.dropscope.site.default and _other_site(captured, user, point))
        ):
            node = user
        elif (
            user.target in _MAX_POOLS_WITH_INDICES and non_negative and maps and _over_maps(user, node)
            and _only_values(user)
        ):  # fmt: skip
            (node,) = user.users
        else:
            break
    return node


def _over_maps(pooling: fx.Node, node: fx.Node) -> bool:
    """Whether a pooling sees examples, maps and its own dimensions; on one fewer it takes maps for a dimension."""
    dims = next(d for d in (1, 2, 3) if f"{d}d" in str(pooling.target))
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == dims + 2


def _other_site(captured: Captured, node: fx.Node, point: Point) -> bool:
    others = [other for other, marked in captured.marks.items() if marked is node]  # none where nobody asks for it
    return bool(others) and all(other.site != point.site for other in others)


def _only_values(pool: fx.Node) -> bool:
    return len(pool.users) == 1 and bool(next(iter(pool.users)).args[1] == 0)


def _subtrees(choices: NDArray[np.int64]) -> list[Subtree]:
    """One tree per first live step; rows come sorted, so the children of neighbours are neighbours.

    Steps at which no placement of a tree has noise are none of its levels.
    """
    found = []
    first_of = (choices != 0).argmax(axis=1) if len(choices) else np.zeros(0, dtype=np.int64)
    for first in np.unique(first_of):
        rows = np.flatnonzero(first_of == first)
        live = np.flatnonzero(choices[rows].any(axis=0))
        part = choices[rows][:, live]
        levels, before = [], np.zeros(len(rows), dtype=np.int64)
        for column in range(part.shape[1]):
            keys = before * (part[:, column].max() + 1) + part[:, column]
            _, index, inverse = np.unique(keys, return_index=True, return_inverse=True)
            levels.append(Level(before[index], part[index, column]))
            before = inverse.reshape(-1)
        found.append(Subtree(tuple(int(i) for i in live), tuple(levels), rows))
    return found


def cut(subtree: Subtree, low: int, high: int) -> Subtree:
    """The part of a subtree that leads to the leaves [low, high)."""
    levels = []
    leaf = subtree.leaf[low:high]
    for level in reversed(subtree.levels):
        parent, choice = level.parent[low:high], level.choice[low:high]
        low, high = int(parent[0]), int(parent[-1]) + 1
        levels.append(Level(parent - low, choice))
    return Subtree(subtree.steps, tuple(reversed(levels)), leaf)


def leading_to(plan: Plan, leaf: int) -> Subtree:
    """The part of a plan that leads to one leaf."""
    for subtree in plan.subtrees:
        where = np.flatnonzero(subtree.leaf == leaf)
        if len(where):
            return cut(subtree, int(where[0]), int(where[0]) + 1)
    raise CaptureFailed("a placement is missing from its own plan")


def pick(subtree: Subtree, leaves: np.ndarray) -> Subtree:
    """The part of a subtree that leads to these leaves (sorted), and to no other."""
    levels, kept = [], leaves
    for level in reversed(subtree.levels):
        parents, local = np.unique(level.parent[kept], return_inverse=True)
        levels.append(Level(local.reshape(-1), level.choice[kept]))
        kept = parents
    return Subtree(subtree.steps, tuple(reversed(levels)), subtree.leaf[leaves])


def pieces(subtree: Subtree, at_most: int) -> list[tuple[int, int]]:
    """Leaf ranges of at most `at_most`, cut as high up the tree as that allows, so that little is computed twice."""
    for cuts in _bounds(subtree):
        if int(np.diff(cuts).max()) <= at_most:
            break
    else:
        cuts = np.arange(len(subtree.leaf) + 1)
    found, low = [], 0
    for i in range(1, len(cuts)):
        if int(cuts[i]) - low > at_most:
            found.append((low, int(cuts[i - 1])))
            low = int(cuts[i - 1])
    found.append((low, int(cuts[-1])))
    return found


def _bounds(subtree: Subtree) -> list[np.ndarray]:
    """For each level, where the leaves of its variants begin, and the end."""
    leaves = len(subtree.leaf)
    owner = np.arange(leaves)
    found = [np.append(np.arange(leaves), leaves)]
    for level in reversed(subtree.levels):
        owner = level.parent[owner]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        found.append(np.append(first, leaves))
    return found[::-1][1:]
