"""Deferral with a guarantee: which answers need no second reader?

A network reads handwritten digits. 700 labelled digits that it was not trained on calibrate a predictor: what it keeps
is wrong in at most 5 % of cases, with probability .9. 697 others test it, and a week of blurred ones raises an alarm.
"""

from __future__ import annotations

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

import dropscope as ds

torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = images[order].float() / 16, labels[order]
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(60):
    for batch in torch.randperm(200).split(25):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
model.eval()

calibration, test = (images[400:1100], labels[400:1100]), (images[1100:], labels[1100:])
predictor = ds.UncertaintyPredictor.fit(model, calibration, "own", passes=50, max_error=0.05)
print(predictor.rule)
print()
found = predictor.evaluate(test).table.iloc[0]
print(f"{found.n} others: keeps {found.coverage:.1%}, of which {found.error_kept:.1%} are wrong", end=" ")
print(f"({found.error_kept_low:.1%} to {found.error_kept_high:.1%}); of the deferred {found.error_deferred:.1%} are")

with tempfile.TemporaryDirectory() as folder:
    predictor.save(folder)
    predictor = ds.UncertaintyPredictor.load(folder, model)  # refuses other weights
said = predictor(images[1100:1104])
print()
print("labels", said.labels.tolist(), "defer", said.defer.tolist())
print()
print(predictor.check(test[0][:300]))
blurred = avg_pool2d(test[0][:300].view(-1, 1, 8, 8), 3, 1, 1).flatten(1)
print(predictor.check(blurred))
