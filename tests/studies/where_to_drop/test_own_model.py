"""Own classifiers with inputs by name, texts, groups and several files of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from dropscope.studies.training import save_weights
from dropscope.studies.where_to_drop import Options, plan, run
from dropscope.studies.where_to_drop.own_model import own_task, read_groups
from support.errors import refused

NAMED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.hidden = nn.Linear(8, 16)
        self.act = nn.ReLU()
        self.head = nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids) * attention_mask[..., None]
        return {"logits": self.head(self.act(self.hidden(x.sum(1) / attention_mask.sum(1, keepdim=True))))}

def model():
    torch.manual_seed(0)
    return Net()

def data():
    draw = torch.Generator().manual_seed(0)
    batches = []
    for length in (5, 7, 6):
        ids = torch.randint(1, 20, (40, length), generator=draw)
        batches.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (ids[:, 0] > 9).long()})
    return batches
"""


def scope() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(NAMED, found)
    return found


def test_inputs_by_name_are_padded_to_one_length_and_groups_stay_in_one_half() -> None:
    found = scope()
    groups = [f"g{i // 3}" for i in range(120)]
    task = own_task(found["model"](), found["data"](), ["hidden"], groups=groups)
    inputs, labels = task.test
    assert isinstance(inputs, dict)
    assert {name: tuple(value.shape) for name, value in inputs.items()} == {
        "input_ids": (len(labels), 7),
        "attention_mask": (len(labels), 7),
    }
    assert task.test_groups is not None
    assert len(task.test_groups) == len(labels) == 60
    chosen = task.validation[0]
    assert isinstance(chosen, dict)
    every = torch.cat(
        [torch.nn.functional.pad(b["input_ids"], (0, 7 - b["input_ids"].shape[1])) for b in found["data"]()]
    )
    group_of = {tuple(row.tolist()): group for row, group in zip(every, groups, strict=True)}
    assert {group_of[tuple(row.tolist())] for row in chosen["input_ids"]}.isdisjoint(task.test_groups)


def test_several_inputs_by_position() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.act, self.head = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(self.act(self.hidden(torch.cat([x, y], 1))))

    task = own_task(Two(), ((torch.randn(12, 4), torch.randn(12, 2)), torch.arange(12) % 2), ["hidden"])
    assert isinstance(task.test[0], tuple)
    assert [value.shape[1] for value in task.test[0]] == [4, 2]


@pytest.mark.slow
def test_three_files_of_weights_decide_rules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NAMED)
    files = []
    for seed in range(3):
        net = scope()["model"]()
        torch.manual_seed(seed)
        nn.init.normal_(net.head.weight)
        files.append(str(tmp_path / f"net{seed}.safetensors"))
        save_weights(net, Path(files[-1]))
    asked: dict[str, Any] = {
        "data": f"{tmp_path}/mine.py:data",
        "model": f"{tmp_path}/mine.py:model",
        "progress": False,
    }
    asked |= {"preset": "smoke", "out": tmp_path / "out", "device": "cpu", "sites": ("embed", "hidden")}
    outcome = run(plan(Options(**asked, weights=files)))
    assert [result.name for result in outcome.results] == ["net0", "net1", "net2"]
    assert len(outcome.claims) > 10  # rules about networks are listed, decided or not
    with refused("weights"):
        plan(Options(**asked, weights=[files[0], files[0]]))


def test_groups_come_from_the_table_of_the_data(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    pd.DataFrame({"text": ["a", "b", "c"], "label": [0, 1, 0], "patient": [7, 7, 8]}).to_csv(table, index=False)
    assert read_groups(str(table), None, "patient", ["a", "b", "c"]) == ["7", "7", "8"]
    assert read_groups(str(table), None, None, None) is None
    folder = tmp_path / "images"
    folder.mkdir()
    labels = folder / "labels.csv"
    pd.DataFrame({"file": ["b.png", "a.png"], "label": [0, 1], "who": ["x", "y"]}).to_csv(labels, index=False)
    assert read_groups(str(folder), None, "who", ["a.png", "b.png"]) == ["y", "x"]
    for data, column, names in (
        ("mine.py:data", "who", None),
        (str(table), "none", None),
        (str(table), "patient", ["a"]),
    ):
        with refused("group_column"):
            read_groups(data, None, column, names)


def test_options_of_an_own_model_need_one() -> None:
    with refused("text_column"):
        Options(data="here", text_column="text")
