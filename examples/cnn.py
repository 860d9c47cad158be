"""A convolutional network: does MC dropout help, and what would deferral buy?

A small CNN is trained on 300 handwritten digits, so that it makes mistakes. `try_out` tries noise at every site on
one half of the other digits, and judges the best placement on the other half against one plain pass.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d

import dropscope as ds


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = images[order].float().view(-1, 1, 8, 8) / 16, labels[order]

model = CNN()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(40):
    for batch in torch.randperm(300).split(30):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()

held_out = images[300:], labels[300:]
print(ds.find_sites(model, images[:2]))
print()
print(ds.audit(model, "conv2=0.3,fc1=0.5", images[300:364]).raise_if_failed())
print()
print(ds.try_out(model, held_out, passes=30, rates=(0.1, 0.3), budget=600))
