"""A residual network with batch normalisation: noise in a branch, on a sum, and the statistics left alone.

In a residual block a value can be dropped inside the branch, or after branch and shortcut are added. Both are sites.
A loop that calls `model.train()` to switch dropout on also moves the running statistics of BatchNorm; `watch` sees it.
"""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import dropscope as ds


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(x + branch)


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), Block(12), nn.MaxPool2d(2), Block(12), nn.Flatten())
model.append(nn.Dropout(0.2)).append(nn.Linear(192, 10))
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = images[order].float().view(-1, 1, 8, 8) / 16, labels[order]
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(8):
    for batch in torch.randperm(300).split(30):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()

careless = copy.deepcopy(model)
with ds.watch(careless) as seen, torch.no_grad():
    careless.train()  # dropout on, and BatchNorm with it
    passes = [careless(images[300:364]) for _ in range(20)]
print(seen)

held_out = images[300:1100], labels[300:1100]
placements = ["1.conv1=0.2", "1@sum=0.2", "3.conv2=0.2", "3@sum=0.2", "own", "last=0.5"]
run = ds.sweep(model, placements, held_out, passes=50, label="plain", measures=["predictive_entropy", "bald"])
print()
columns = ["placement", "measure", "accuracy", "aurc", "aurc_minus_single_pass", "cost"]
print(run.rows[columns].round(4).to_string(index=False))
