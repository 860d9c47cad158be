"""A Hugging Face classifier: the usual recipe leaves attention dropout off, and `own` switches it on.

A small BERT learns to tell praise from blame in generated reviews, of which one in seven has a label that its words do
not bear out. No download: the tokenizer is made from the words.
"""

from __future__ import annotations

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import dropscope as ds

good, bad = ["fine", "lovely", "clever", "moving"], ["dull", "awful", "clumsy", "loud"]
rest = ["the", "film", "was", "and", "a", "plot", "cast", "score", "with", "very"]
chance = random.Random(0)


def review() -> tuple[str, int]:
    label = chance.randrange(2)
    words = chance.choices(rest, k=8) + chance.choices(good if label else bad, k=2) + chance.choices(good + bad, k=3)
    chance.shuffle(words)
    return " ".join(words), label if chance.random() < 6 / 7 else 1 - label


texts, labels = map(list, zip(*(review() for _ in range(1000)), strict=True))
words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[PAD]", *good, *bad, *rest])}, unk_token="[PAD]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[PAD]")

torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **size))
inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
for _ in range(8):
    for batch in torch.randperm(500).split(50):
        optimizer.zero_grad()
        model(**{k: v[batch] for k, v in inputs.items()}, labels=torch.tensor(labels)[batch]).loss.backward()
        optimizer.step()
model.eval()

with ds.watch(model) as seen, torch.no_grad():
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.train()
    for _ in range(10):
        model(**{k: v[:8] for k, v in inputs.items()})
print(seen)
model.eval()
choice = ds.try_out(model, (texts[500:], labels[500:]), tokenizer=tokenizer, passes=16, rates=(0.1,), budget=600)
print(choice)
