"""Small checkpoints of every family with a tokenizer, and data files in the official layouts, as a user has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from support import zoo

WORDS = 40
LONGEST = 64


def checkpoint(folder: Path, family: str, *, tokenizer: str = "pad", classes: int = 2, **config: Any) -> Path:
    """A random classifier of a family; `tokenizer` has a "pad" token, only an "end" token, or "neither"."""
    import transformers

    name, fields = zoo.FAMILIES[family]
    fast = whole_words(tokenizer)
    positions = LONGEST + (1 if family == "roberta" else 0)
    room = {"n_positions": positions} if family == "gpt2" else {"max_position_embeddings": positions}
    settings = {**fields, **room, "vocab_size": len(fast), "num_labels": classes, **config}
    if tokenizer != "pad":
        settings["pad_token_id"] = None
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForSequenceClassification")(
        getattr(transformers, f"{name}Config")(**settings)
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def whole_words(tokens: str = "pad") -> Any:
    """A tokenizer of the words that the data files below use."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["[PAD]", "[END]", "[UNK]"]
    words = [*special, *(f"w{i}" for i in range(WORDS)), "Question", "Context", "Answer", ":", "?", "."]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"pad": {"pad_token": "[PAD]", "eos_token": "[END]"}, "end": {"eos_token": "[END]"}, "neither": {}}[tokens]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", **named)


def sentence(number: int, words: int = 5) -> str:
    return " ".join(f"w{(number * 7 + i * 3) % WORDS}" for i in range(words))


def squad(path: Path, paragraphs: int = 30, questions: int = 2) -> Path:
    """SQuAD v1.1's layout; every paragraph and every answer is its own."""
    articles = []
    for a in range(0, paragraphs, 10):
        shown = [
            {
                "context": f"{sentence(p, 8)} . number {p} . {sentence(p + 1, 4 + p % 5)}",
                "qas": [
                    {
                        "id": f"q{p}-{q}",
                        "question": f"{sentence(p + q)} ?",
                        "answers": [{"text": f"w{p} w{q}", "answer_start": 0}],
                    }
                    for q in range(questions)
                ],
            }
            for p in range(a, min(a + 10, paragraphs))
        ]
        articles.append({"title": f"article {a}", "paragraphs": shown})
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    return path


def hellaswag(path: Path, stories: int = 30) -> Path:
    rows = [
        {"ind": i, "ctx": f"story {i} . {sentence(i, 4 + i % 7)}", "label": str(i % 4),
         "endings": [f"{sentence(i + e)} e{e}" for e in range(4)]}
        for i in range(stories)
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path
