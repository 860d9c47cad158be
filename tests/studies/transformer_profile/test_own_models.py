"""Models by code: a module and a tokenizer that no checkpoint holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from dropscope.studies.transformer_profile import Options, plan, run
from dropscope.studies.transformer_profile.checkpoints import load_network, read_checkpoints
from dropscope.studies.transformer_profile.own_models import read_own
from support.errors import refused

OWN = """
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, classes)

    def forward(self, input_ids, attention_mask):
        x = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        weight = attention_mask[..., None].to(x.dtype)
        return {"logits": self.head((x * weight).sum(1) / weight.sum(1))}

def letters(text):
    return [1 + ord(letter) % 63 for letter in text]

def reader():
    return Reader(2), letters

def wide():
    return Reader(3), letters

def alone():
    return Reader(2)

def positional():
    return nn.Linear(4, 2), letters
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    texts = [f"{'good' if i % 2 else 'bad'} text {i}" for i in range(40)]
    table = pd.DataFrame({"text": texts, "label": [i % 2 for i in range(40)]})
    table.to_csv(tmp_path / "items.csv", index=False)
    return tmp_path


def test_code_gives_a_model_and_a_tokenizer(folder: Path) -> None:
    name = f"{folder}/mine.py:reader"
    (checkpoint,), missing = (found := read_checkpoints([name]))[0].values(), found[1]
    assert not missing
    assert checkpoint.config.num_labels == 2
    assert checkpoint.tokenizer(["ab", "abc"], max_length=2)["input_ids"] == [[35, 36], [35, 36]]
    first, second, other = (load_network(checkpoint, 2, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    with refused("models"):
        load_network(checkpoint, 3, 0)
    with refused("models"):
        load_network(checkpoint, 2, 0, {"attention": 0.1})


@pytest.mark.parametrize("name", ["alone", "positional"])
def test_code_that_returns_something_else_is_refused(folder: Path, name: str) -> None:
    with refused("models"):
        read_own(f"{folder}/mine.py:{name}")


@pytest.mark.parametrize("train", ["none", "once"])
def test_the_study_runs_on_a_model_by_code(folder: Path, train: Any) -> None:
    name = f"{folder}/mine.py:reader"
    asked: dict[str, Any] = {"models": [name], "data": folder / "items.csv", "preset": "smoke", "device": "cpu"}
    outcome = run(plan(Options(**asked, train=train, out=folder / "out", progress=False)))
    passes = outcome.tables["passes"]
    assert passes.configuration.nunique() == 5
    spread = passes.groupby("configuration").accuracy.std()
    assert spread["deterministic"] == 0
    models = outcome.tables["models"]
    assert list(models.family) == ["own"]
    assert "model by code" in models.remarks[0]
