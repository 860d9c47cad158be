"""Folding: values that all examples share, and values of any memory layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dropscope.engine.folding import Argument, Copied, per_copy
from support import zoo
from support.engines import equals_the_loop

# --- a closed form ----------------------------------------------------------------------------------------------------


def test_an_operation_runs_for_each_copy_on_its_own_examples() -> None:
    table = torch.tensor([[1.0], [10.0]])  # of two copies, one unit
    rows = torch.arange(6.0).view(6, 1)  # two copies of three examples
    add = per_copy(torch.add, ((Argument(0), Argument(1)), {}), [Copied(0, folded=True), Copied(0)], [(0, 1)])
    assert add(2, rows, table).flatten().tolist() == [1, 2, 3, 13, 14, 15]
    same = per_copy(torch.add, ((Argument(0), Argument(1)), {}), [Copied(None), Copied(0)], [(0, 1)])
    assert same(2, rows[:3], table).flatten().tolist() == [1, 2, 3, 10, 11, 12]
    shared = per_copy(torch.mul, ((Argument(0), 2), {}), [Copied(0)], [None])
    assert shared(2, table).tolist() == [[2], [20]]


# --- values that all examples share -----------------------------------------------------------------------------------


class Positions(nn.Module):
    """Position embeddings without an example dimension, with a layer of their own, and a scale for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.mix, self.first = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.gate, self.head = nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        table = torch.tanh(self.mix(self.position(torch.arange(5))))
        kept, scale = (table * torch.sigmoid(self.gate(table).mean())).split([3, 2])
        rows = torch.cat([kept, scale]).unsqueeze(0).repeat(x.shape[0], 1, 1)
        return self.head(torch.relu(self.first(x) + rows + table).mean(1))


SHARED = ["position=.3", "mix=.2", "mix=.2,first=.3", "position=.3,mix=.2,head@input=.4", "gate@input=.3", "first=.5"]


STYLES = [("", "per_example"), ("", "per_pass"), (" mask=channel", "per_example"), (" noise=gaussian", "per_example")]


@pytest.mark.parametrize(("style", "masks"), STYLES)
def test_a_value_that_all_examples_share_gets_one_mask_a_pass(style: str, masks: str) -> None:
    placements = [text + style for text in SHARED]
    engine = equals_the_loop(zoo.seeded(Positions), zoo.sequences(4, 5, 8), placements, masks=masks)
    assert engine.placements[0][next(iter(engine.placements[0]))].layout.batch_dim is None


def test_noise_on_relative_positions() -> None:
    engine = equals_the_loop(zoo.hugging_face("deberta-v2"), zoo.text(), ["own"])
    assert any(spec.layout.batch_dim is None for spec in engine.placements[0].values())


# --- memory layout ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_noise_on_keys_and_values_under_sdpa(family: str) -> None:
    block = {"bert": "bert.encoder.layer.1.attention.self.", "distilbert": "distilbert.transformer.layer.1.attention."}
    parts = {"bert": ("query", "key", "value"), "distilbert": ("q_lin", "k_lin", "v_lin")}
    placements = [f"{block[family]}{part}=.3" for part in parts[family]]
    equals_the_loop(zoo.hugging_face(family, "sdpa"), zoo.text(), placements)
