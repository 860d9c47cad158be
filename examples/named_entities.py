"""Named entities: uncertainty of every word, by a Hugging Face token classifier.

Generated sentences name people and places. Some names are both ("Paris", "Jordan", "Florence"), and half of the
frames do not say which is meant. `maps` gives an uncertainty per token; padding has the label -100 and is left out.
"""

from __future__ import annotations

import random

import torch
from transformers import BertConfig, BertForTokenClassification

import dropscope as ds

people, places, either = ["Ada", "Emil", "Noor"], ["Lima", "Oslo", "Quito"], ["Paris", "Jordan", "Florence"]
# a frame tells a person (1), a place (2), or not (0)
frames = [("{} sings today", 1), ("we met {} in spring", 0), ("they moved to {}", 2), ("a letter about {} came", 0)]
classes = ["O", "PER", "LOC"]
chance = random.Random(0)


def sentence() -> tuple[list[str], list[int]]:
    frame, meant = chance.choice(frames)
    meant = meant or chance.choice([1, 2])
    name = chance.choice(either if chance.random() < 0.4 else people if meant == 1 else places)
    words = frame.format(name).split()
    return words, [meant if word == name else 0 for word in words]


sentences = [sentence() for _ in range(900)]
vocabulary = {word: 1 + number for number, word in enumerate(sorted({w for words, _ in sentences for w in words}))}
tokens = torch.tensor([[vocabulary[w] for w in words] + [0] * (5 - len(words)) for words, _ in sentences])
labels = torch.tensor([tags + [-100] * (5 - len(tags)) for _, tags in sentences])
inputs = {"input_ids": tokens, "attention_mask": (tokens > 0).long()}

torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForTokenClassification(BertConfig(vocab_size=40, num_labels=3, max_position_embeddings=8, **size))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
for _ in range(10):
    for batch in torch.randperm(600).split(50):
        optimizer.zero_grad()
        model(**{k: v[batch] for k, v in inputs.items()}, labels=labels[batch]).loss.backward()
        optimizer.step()

test = {k: v[600:] for k, v in inputs.items()}
measures = ["predictive_entropy", "bald", "plain_entropy"]
found = ds.maps(model.eval(), "own", test, passes=50, measures=measures)
real = labels[600:] != -100
right = (found["prediction"] == labels[600:])[real]
print(f"{int((~right).sum())} of {len(right)} words wrong; AUROC of errors:")
for name in measures:
    print(f"  {name:<18} {ds.scores.error_auroc(found[name][real], right):.3f}")
print("every sixtieth sentence, the most uncertain first:")
for row in found["predictive_entropy"].masked_fill(~real, 0).amax(1).argsort(descending=True)[:300:60].tolist():
    words, tags = sentences[600 + row]
    said = zip(words, found["prediction"][row], found["predictive_entropy"][row], strict=False)
    print("  " + "  ".join(f"{word}/{classes[tag]} {value:.2f}" for word, tag, value in said))
