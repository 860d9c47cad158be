"""Programs: models that torch.export alone refuses, and what they return, in the shared engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dropscope.engine.alignment import aligned
from dropscope.engine.graph import CaptureFailed
from dropscope.engine.programs import export
from dropscope.engine.session import open_session
from dropscope.engine.shared import SharedEngine
from dropscope.injection.sites import find_sites
from dropscope.model.inputs import Call
from support import zoo
from support.engines import equals_the_loop
from support.errors import refused


class Two(nn.Module):
    """Two linear layers; subclasses say what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)


# --- outputs and inputs -----------------------------------------------------------------------------------------------


@dataclass
class Answer:
    logits: Tensor
    auxiliary: Any


@dataclass(frozen=True)
class FrozenAnswer:
    logits: Tensor
    auxiliary: Any


class Pair(NamedTuple):
    logits: Tensor
    auxiliary: Any


class Returning(nn.Module):
    """The main answer is there before an auxiliary one gets noise; `form` puts them together."""

    def __init__(self, form: Callable[[Tensor, Any], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 16)
        self.head, self.side = nn.Linear(16, 3), nn.Linear(16, 3)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.a(x))
        logits = self.head(h)
        return self.form(logits, [self.side(torch.relu(self.b(h))), {"input": x}, "a word"])


FORMS = [Answer, FrozenAnswer, Pair, lambda y, z: (y, z), lambda y, z: {"side": z, "logits": y}]


@pytest.mark.parametrize("form", FORMS, ids=["dataclass", "frozen", "named tuple", "tuple", "dict"])
def test_outputs_of_any_form(form: Callable[[Tensor, Any], Any]) -> None:
    equals_the_loop(zoo.seeded(lambda: Returning(form)), zoo.vectors(), ["a=.3", "a=.3,b=.2,side@input=.5"])


def test_a_function_reads_any_part_of_the_output() -> None:
    def second(output: Any) -> Tensor:
        return (
            output.auxiliary[0] + output.logits + len(output.auxiliary[2]) + output.auxiliary[1]["input"][:, :3]
        ).softmax(1)

    net = zoo.seeded(lambda: Returning(Answer))
    equals_the_loop(net, zoo.vectors(), ["a=.3", "b=.2", "a=.3,b=.2"], outputs=second)


def test_what_only_an_auxiliary_output_needs_is_not_computed() -> None:
    engine = equals_the_loop(zoo.seeded(lambda: Returning(Answer)), zoo.vectors(), ["a=.3"])
    (forest,) = engine.forests(engine.session.data.batches[0])
    linears = [node for node in forest.plan.captured.nodes if node.target is torch.ops.aten.linear.default]
    assert len(linears) == 2


def test_an_object_that_is_no_container_is_not_taken_apart() -> None:
    net = zoo.seeded(lambda: Returning(lambda y, z: SimpleNamespace(logits=y)))
    session = open_session(net, zoo.vectors())
    with pytest.raises(CaptureFailed):
        SharedEngine.build(session, session.resolve(["a=.3"]), 2, 1 << 22)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(8, 16), nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.relu(self.a(x) * self.b(y)))


def test_several_inputs() -> None:
    data = (zoo.vectors(), zoo.vectors(4, 5)), torch.tensor([0, 1, 2, 0])
    equals_the_loop(zoo.seeded(TwoInputs), data, ["a=.3", "b=.2", "a=.3,b=.2"])


class Checkpointed(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(checkpoint(lambda h: torch.relu(self.a(h)), x, use_reentrant=False))


def test_activation_checkpointing() -> None:
    equals_the_loop(zoo.seeded(Checkpointed), zoo.vectors(), ["a=.3"])


# --- a number of examples that code makes a plain number --------------------------------------------------------------


class Counting(Two):
    """`len(x)` is a plain number, and rows are counted."""

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        heads = torch.relu(self.a(x)).reshape(n * 4, 4)
        return self.b(heads.reshape(n, 16)[torch.arange(n)] + x.new_zeros(n, 16))


def test_a_plain_number_of_examples() -> None:
    equals_the_loop(zoo.seeded(Counting), zoo.vectors(), ["a=.3", "b@input=.2"])


def test_a_vision_transformer_that_expands_by_len() -> None:
    placements = ["position=.3", "position=.3,blocks.1.fc1=.2", "blocks.0.qkv=.2"]
    equals_the_loop(zoo.vision(), zoo.images(), placements)


class Powers(Two):
    """A size that is no straight line of the number of examples."""

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        return self.b(torch.relu(self.a(x))) + torch.ones(n * n).sum() - float(n * n)


class Branching(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)) if len(x) < 4 else torch.tanh(self.a(x)))


@pytest.mark.parametrize("kind", [Powers, Branching])
def test_programs_that_differ_in_more_than_sizes_are_not_aligned(kind: type[Two]) -> None:
    call, numbers = Call.of(zoo.vectors()), (3, 5, 7)
    programs = [export(zoo.seeded(kind), call, [], None, number) for number in numbers]
    with pytest.raises(ValueError, match="number of examples"):
        aligned(programs, numbers)


# --- numbers that code reads from tensors -----------------------------------------------------------------------------


class Causal(nn.Module):
    """torch looks whether the mask is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.fc(self.transformer(x, x, src_mask=mask, tgt_mask=mask)[:, -1])


def test_a_transformer_with_masks() -> None:
    engine = equals_the_loop(zoo.seeded(Causal), zoo.sequences(), ["ffn=.2", "attention=.2,ffn=.1"])
    (forest,) = engine.forests(engine.session.data.batches[0])
    assert not forest.plan.captured.expected  # a constant needs no check


class Long(Two):
    """Another layer for texts with a padded token, as Longformer's global attention."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.b(self.c(h) if bool((x == 0).any()) else h)


def test_a_branch_that_all_examples_take() -> None:
    engine = equals_the_loop(zoo.seeded(Long), zoo.vectors(), ["a=.3"])
    (forest,) = engine.forests(engine.session.data.batches[0])
    assert [number for _, number in forest.plan.captured.expected] == [False]


def test_a_branch_that_one_batch_takes_otherwise() -> None:
    inputs = zoo.vectors(8)
    inputs[-1, 0] = 0
    session = open_session(zoo.seeded(Long), inputs, batch_size=2)
    with pytest.raises(CaptureFailed, match="not alike for all examples"):
        SharedEngine.build(session, session.resolve(["a=.3"]), 2, 1 << 22)


class Deciding(Two):
    def forward(self, x: Tensor) -> Tensor:
        h = self.b(torch.relu(self.a(x)))
        return h if bool(h.abs().sum() > 0) else -h


def test_a_branch_on_noise() -> None:
    session = open_session(zoo.seeded(Deciding), zoo.vectors())
    with pytest.raises(CaptureFailed, match="noise"):
        SharedEngine.build(session, session.resolve(["a=.3"]), 2, 1 << 22)


class Picking(Two):
    """As many values as a mask picks: one of each example, as T5 and BART take the end of a text."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x.unsqueeze(1).expand(-1, 3, -1)))
        last = F.one_hot(x.argmax(1) % 3, 3).bool()
        return self.b(h[last].view(x.shape[0], -1, 16)[:, -1])


def test_tokens_that_a_mask_picks() -> None:
    equals_the_loop(zoo.seeded(Picking), zoo.vectors(), ["a=.3", "a=.3,b@input=.2"])


# --- graphs -----------------------------------------------------------------------------------------------------------


class Convolution(nn.Module):
    """Every node takes up the nodes with an edge to it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = torch.tanh(layer(x.index_add(0, edge_index[1], x[edge_index[0]])))
        return x


class Joined(nn.Module):
    """As docs/data.md has it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Convolution()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        graphs, nodes = x.shape[:2]
        first = nodes * torch.arange(graphs, device=x.device)
        edges = (edge_index + first[:, None, None]).transpose(0, 1).flatten(1)
        return self.model(x.flatten(0, 1), edges).unflatten(0, (graphs, nodes)).transpose(1, 2)


def test_graphs_joined_in_one_batch() -> None:
    edges = torch.randint(0, 5, (4, 2, 7), generator=torch.Generator().manual_seed(0))
    data = (zoo.sequences(4, 5, 8), edges), torch.arange(20).view(4, 5) % 3
    equals_the_loop(zoo.seeded(Joined), data, ["model.a=.3", "model.a=.3,model.b@input=.2"])


def test_nodes_and_edges_are_refused_with_what_to_do() -> None:
    net, inputs = zoo.seeded(Convolution), (zoo.vectors(6), torch.randint(0, 6, (2, 9)))
    with refused("example") as caught:
        find_sites(net, inputs)
    assert "Graphs" in caught.value.remedy
    with refused("data") as caught:
        open_session(net, (inputs, torch.arange(6) % 3))
    assert "Graphs" in caught.value.remedy
