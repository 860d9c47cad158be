"""Scores of continuations against a computation by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dropscope as ds
from support.errors import refused
from support.language_models import language_model, prompts

pytest.importorskip("transformers")


def by_hand(name: str, model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> list[list[float]]:
    """Scored tokens of each sequence, one by one."""
    if name == "gpt2":
        logits = model(input_ids=tokens).logits
        pairs = [[(i - 1, i) for i in range(1, tokens.shape[1]) if row[i] != -100] for row in labels]
    else:
        logits = model(input_ids=tokens, labels=labels).logits
        pairs = [[(i, i) for i in range(labels.shape[1]) if row[i] != -100] for row in labels]
    return [
        [float(torch.log(logits[n, at].double().softmax(-1)[labels[n, i]])) for at, i in some]
        for n, some in enumerate(pairs)
    ]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_scores_are_those_of_a_loop(name: str) -> None:
    model, tokens = language_model(name), prompts(2, 6)
    labels = tokens.clone() if name == "gpt2" else prompts(2, 4)
    labels[0, :3] = -100
    labels[1, -1] = -100
    options: dict[str, Any] = {"passes": 4, "seed": 5, "ids": ["a", "b"]}
    batch = {"input_ids": tokens, "labels": labels}
    sequences = ds.score_continuations(model, "all=0.2", batch, **options)
    scored = ds.score_continuations(model, "all=0.2", batch, per="token", **options)
    with torch.no_grad():
        plain, passes = by_hand(name, model, tokens, labels), []
        with ds.injected(model, "all=0.2", seed=5) as noise:
            for number in range(4):
                noise.at(number, ["a", "b"])
                passes.append(by_hand(name, model, tokens, labels))
    sums = torch.tensor([[sum(row) for row in each] for each in passes], dtype=torch.float64)
    each = torch.tensor([[value for row in each for value in row] for each in passes], dtype=torch.float64)
    assert sequences["tokens"].tolist() == [len(row) for row in plain]
    assert scored["id"].tolist() == [i for i, row in zip("ab", plain, strict=True) for _ in row]
    assert scored["token"].tolist() == [
        int(labels["ab".index(i), at]) for i, at in zip(scored["id"], scored["position"], strict=True)
    ]
    for table, drawn in ((sequences, sums), (scored, each)):
        assert table["mean"].tolist() == pytest.approx(drawn.mean(0).tolist(), rel=1e-5)
        assert table["std"].tolist() == pytest.approx(drawn.std(0).tolist(), rel=1e-3)
        assert table["predictive"].tolist() == pytest.approx(drawn.exp().mean(0).log().tolist(), rel=1e-5)
    assert sequences["plain"].tolist() == pytest.approx([sum(row) for row in plain], rel=1e-5)
    assert (sequences["std"] > 0).all()


def test_what_cannot_be_scored_is_refused() -> None:
    model, tokens = language_model("gpt2"), prompts()
    with refused("inputs"):
        ds.score_continuations(model, "all=0.2", {"input_ids": tokens})
    with refused("inputs"):
        ds.score_continuations(model, "all=0.2", {"input_ids": tokens, "labels": torch.full_like(tokens, -100)})
    with refused("inputs"):
        ds.score_continuations(model, "all=0.2", {"input_ids": tokens, "labels": tokens[:, :3]})
    with refused("per"):
        ds.score_continuations(model, "all=0.2", {"input_ids": tokens, "labels": tokens}, per="word")
