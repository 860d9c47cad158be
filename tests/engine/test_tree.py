"""The plan: the tree of a grid, what is equal by mathematics, and what all of it costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dropscope import PlacementGrid
from dropscope.engine.cost import bytes_of, multiply_adds, peak_bytes
from dropscope.engine.graph import CaptureFailed
from dropscope.engine.summary import describe
from dropscope.engine.tree import _subtrees, cut, pick, pieces
from support import zoo
from support.engines import plan_of

SITES = ("conv1", "conv2", "conv3", "fc1")


# --- a closed form ----------------------------------------------------------------------------------------------------


def test_the_grid_is_a_tree_of_nines() -> None:
    plan = plan_of(zoo.cifar(), zoo.images(2), PlacementGrid(SITES))
    assert [step.name for step in plan.steps] == list(SITES)
    assert plan.distinct == 9999
    sizes = {tree.steps[0]: [len(level.parent) for level in tree.levels] for tree in plan.subtrees}
    assert sizes == {0: [9, 90, 900, 9000], 1: [9, 90, 900], 2: [9, 90], 3: [9]}
    assert sorted(np.concatenate([tree.leaf for tree in plan.subtrees])) == list(range(9999))
    assert sorted(plan.leaf_of) == list(range(9999))


def test_multiply_adds_of_one_pass() -> None:
    plan = plan_of(zoo.cifar(), zoo.images(2), ["fc1=.5"])
    layers = [3 * 16 * 9 * 256, 16 * 32 * 9 * 64, 32 * 64 * 9 * 16, 256 * 128, 128 * 10]
    assert multiply_adds(plan.captured, plan.captured.nodes) == sum(layers)
    assert multiply_adds(plan.captured, plan.segment((0,), 0)) == layers[-1]


def test_multiply_adds_of_a_grid_against_the_loop() -> None:
    """Counted by hand 112 and 107 times fewer; keeping what comes before the first noise plain saves a little more."""
    layers = np.array([3 * 16 * 9 * 1024, 16 * 32 * 9 * 256, 32 * 64 * 9 * 64, 1024 * 128, 128 * 10])
    for sites, at_least in ((SITES[1:], 112), (SITES, 107)):
        plan = plan_of(zoo.seeded(lambda: zoo.Cifar(32)), zoo.images(2, size=32), PlacementGrid(sites))
        after = layers[-len(sites) :]  # the layer that follows each site
        each = sum(9 * 10**i * work for first in range(len(sites)) for i, work in enumerate(after[first:]))
        found = describe(plan, 100, 10)
        assert found["naive"] == len(PlacementGrid(sites)) * 100 * 10 * layers.sum()
        assert found["multiply_adds"] == 10 * (layers.sum() + 100 * each)
        assert found["fewer"] >= at_least


# --- equal by mathematics ---------------------------------------------------------------------------------------------


def leaves(texts: list[str], model: nn.Module | None = None) -> list[int]:
    return plan_of(model or zoo.cifar(), zoo.images(2), texts).leaf_of.tolist()


def test_before_and_after_a_relu_are_one_place() -> None:
    plan = plan_of(zoo.cifar(), zoo.images(2), ["fc1@before_activation=.5", "fc1@after_activation=.5", "fc1@output=.5"])
    assert plan.leaf_of.tolist() == [0, 0, 0]
    assert [point.position for point in plan.steps[0].points] == ["after_activation", "before_activation", "output"]


def test_gaussian_factors_do_not_pass_a_relu() -> None:
    found = leaves([f"fc1@{where}=.5 noise=gaussian" for where in ("before_activation", "after_activation")])
    assert len(set(found)) == 2


def test_leaky_relu_is_homogeneous_and_gelu_is_not() -> None:
    for activation, count in ((nn.LeakyReLU(), 1), (nn.GELU(), 2)):
        net = zoo.seeded(lambda a=activation: nn.Sequential(nn.Linear(8, 16), a, nn.Linear(16, 3)))
        plan = plan_of(net, zoo.vectors(), ["0@before_activation=.5", "0@after_activation=.5"])
        assert plan.distinct == count


def test_rate_zero_is_no_site() -> None:
    assert leaves(["conv1=0,fc1=.5", "fc1=.5"]) == [0, 0]
    assert leaves(["fc1=0", "none", "fc1=.5"]) == [-1, -1, 0]


def test_a_channel_mask_moves_through_a_pool_and_an_element_mask_does_not() -> None:
    for text, pooled in (("conv1=.5", True), ("conv1=.5 mask=element", False), ("conv1=.5 noise=gaussian", False)):
        (step,) = plan_of(zoo.cifar(), zoo.images(2), [text]).steps
        assert (tuple(step.node.meta["val"].shape[2:]) == (8, 8)) is pooled, text


def test_any_channel_factor_moves_through_an_average_pool() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 3)))
    for text, pooled in (("0=.5", True), ("0=.5 noise=gaussian", True), ("0=.5 mask=element", False)):
        (step,) = plan_of(net, zoo.images(2), [text]).steps
        assert (step.node.meta["val"].shape[-1] == 7) is pooled, text


def test_a_value_with_two_readers_stays_where_it_is() -> None:
    """A skip connection reads the value before the ReLU too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(F.relu(h) + h)

    plan = plan_of(zoo.seeded(Net), zoo.vectors(), ["a@output=.5", "a@after_activation=.5"])
    assert plan.distinct == 2


def test_noise_at_both_names_of_one_value_is_refused() -> None:
    with pytest.raises(CaptureFailed, match="two positions that are one value"):
        leaves(["fc1@before_activation=.5,fc1@after_activation=.2"])


def test_positions_with_different_masks_are_two_steps() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3)))
    texts = ["0@before_activation=.5 mask=element", "0@after_activation=.5 mask=channel"]
    plan = plan_of(net, zoo.images(2), texts)
    assert plan.distinct == 2
    assert {step.mask for step in plan.steps} == {"element", "channel"}


# --- trees ------------------------------------------------------------------------------------------------------------

MATRICES = st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=60)


def vector(tree: object, leaf: int) -> list[int]:
    """The choices on the way to a leaf."""
    found, at = [0] * 4, leaf
    for step, level in zip(reversed(tree.steps), reversed(tree.levels), strict=True):
        found[step] = int(level.choice[at])
        at = int(level.parent[at])
    assert at == 0
    return found


def forest(rows: list[list[int]]) -> tuple[np.ndarray, list]:
    choices = np.unique(np.array(rows), axis=0)
    choices = choices[choices.any(axis=1)]
    return choices, _subtrees(choices)


@given(rows=MATRICES)
def test_every_leaf_leads_back_to_its_choices(rows: list[list[int]]) -> None:
    choices, trees = forest(rows)
    assert sorted(int(n) for tree in trees for n in tree.leaf) == list(range(len(choices)))
    for tree in trees:
        for i, number in enumerate(tree.leaf):
            assert vector(tree, i) == choices[number].tolist()
        for level in tree.levels:
            assert (np.diff(level.parent) >= 0).all()  # children of neighbours are neighbours
            pairs = list(zip(level.parent, level.choice, strict=True))
            assert len(set(pairs)) == len(pairs)  # nothing is computed twice


@given(rows=MATRICES, at_most=st.integers(1, 20))
def test_pieces_cover_every_leaf_once(rows: list[list[int]], at_most: int) -> None:
    choices, trees = forest(rows)
    for tree in trees:
        bounds = pieces(tree, at_most)
        assert [low for low, _ in bounds] == [0, *(high for _, high in bounds[:-1])]
        assert bounds[-1][1] == len(tree.leaf)
        for low, high in bounds:
            assert 0 < high - low <= at_most
            part = cut(tree, low, high)
            assert part.leaf.tolist() == tree.leaf[low:high].tolist()
            for i, number in enumerate(part.leaf):
                assert vector(part, i) == choices[number].tolist()


@settings(max_examples=60)
@given(rows=MATRICES, data=st.data())
def test_picked_leaves_keep_their_way_and_nothing_else(rows: list[list[int]], data: st.DataObject) -> None:
    choices, trees = forest(rows)
    for tree in trees:
        wanted = data.draw(st.sets(st.integers(0, len(tree.leaf) - 1), min_size=1))
        part = pick(tree, np.array(sorted(wanted)))
        assert part.leaf.tolist() == tree.leaf[sorted(wanted)].tolist()
        for i, number in enumerate(part.leaf):
            assert vector(part, i) == choices[number].tolist()
        for level, below in zip(part.levels, [*part.levels[1:], None], strict=True):
            reached = set(range(len(part.leaf))) if below is None else set(below.parent.tolist())
            assert reached == set(range(len(level.choice)))  # every variant leads to a wanted leaf


def test_pieces_are_cut_high_up() -> None:
    """A thousand leaves of ten families: ten pieces of whole families, not fifteen across them."""
    _, trees = forest([[1, a, b, c] for a in range(10) for b in range(10) for c in range(10)])
    assert pieces(trees[0], 150) == [(100 * i, 100 * (i + 1)) for i in range(10)]


def test_a_tree_has_no_level_for_sites_it_leaves_alone() -> None:
    plan = plan_of(zoo.cifar(), zoo.images(2), [f"{site}={rate}" for site in SITES for rate in (0.2, 0.5)])
    assert [tree.steps for tree in plan.subtrees] == [(0,), (1,), (2,), (3,)]
    assert all(len(tree.levels) == 1 for tree in plan.subtrees)


def test_a_tree_that_fans_out_once_holds_what_is_still_read() -> None:
    everywhere = [",".join(f"{site}={rate}" for site in SITES) for rate in (0.2, 0.5)]
    plan = plan_of(zoo.cifar(), zoo.images(2), everywhere)
    (tree,) = plan.subtrees
    assert (tree.fans, plan.alive(tree.steps)) == (1, 1)
    grid = plan_of(zoo.cifar(), zoo.images(2), PlacementGrid(SITES))
    assert [tree.fans for tree in grid.subtrees] == [4, 3, 2, 1]


def test_a_skip_connection_keeps_its_level() -> None:
    plan = plan_of(zoo.resnet(), zoo.images(2), ["all.conv=0.2"])
    (tree,) = plan.subtrees
    assert 1 < plan.alive(tree.steps) < len(tree.steps)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_bytes_of_values_and_their_peak() -> None:
    plan = plan_of(zoo.cifar(), zoo.images(2), ["conv1@output=.5 noise=gaussian"])
    nodes = plan.segment((0,), 0)
    assert bytes_of(plan.captured, plan.steps[0].node) == 16 * 256 * 4
    assert peak_bytes(plan.captured, nodes, frozenset()) <= sum(bytes_of(plan.captured, n) for n in nodes)
    assert peak_bytes(plan.captured, nodes, frozenset(nodes)) == sum(bytes_of(plan.captured, n) for n in nodes)
