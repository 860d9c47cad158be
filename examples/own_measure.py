"""A measure of your own, beside the built-in ones, in a table and in a sweep.

A measure turns the passes of an example into one number. Write it as a function of the running statistics (memory
does not grow with passes) or of the passes themselves; Dropscope sees which. Higher means more uncertain.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

import dropscope as ds


def largest_variance(stats: ds.measures.PassStatistics) -> Tensor:
    """The variance over passes of the class that varies most."""
    return stats.class_variance.amax(-1)


def disagreement(passes: Tensor) -> Tensor:
    """The share of passes whose class is not the most frequent one. Passes are [T, N, C]."""
    votes = passes.argmax(2)
    return 1 - (votes == votes.mode(0).values).float().mean(0)


wine = load_wine()
inputs, labels = torch.tensor(wine.data, dtype=torch.float32), torch.tensor(wine.target)
inputs = (inputs - inputs.mean(0)) / inputs.std(0)

torch.manual_seed(0)
order = torch.randperm(len(inputs))
train, held_out = order[:24], order[24:]
model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(60):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[train]), labels[train]).backward()
    optimizer.step()

data = inputs[held_out], labels[held_out]
chosen = ["predictive_entropy", "bald", largest_variance, disagreement]
table = ds.uncertainty(model.eval(), "0=0.5", data, passes=100, measures=chosen, errors=False)
columns = ["label", "prediction", "correct", "predictive_entropy", "bald", "largest_variance", "disagreement"]
print(table.sort_values("largest_variance", ascending=False)[columns].head(6).round(3).to_string(index=False))

run = ds.sweep(model, ["0=0.2", "0=0.5"], data, passes=100, measures=chosen, label="plain")
print()
print(run.rows[["placement", "measure", "accuracy", "aurc", "error_auroc"]].round(4).to_string(index=False))
